"""Variables that the frameworks read when they are imported.

Each is a default: a user's own value stays.
"""

import os

_DEFAULTS = {
  # Start-up chatter of the frameworks hides our own lines.
  'TF_CPP_MIN_LOG_LEVEL': '3',
  'GRPC_VERBOSITY': 'ERROR',
  # TensorFlow 2.14 turns oneDNN on by itself only where AVX512 is; with AVX2
  # alone it still halves the time of a training step here.
  'TF_ENABLE_ONEDNN_OPTS': '1',
}


def prepare() -> None:
  """Sets the defaults; call before TensorFlow or grpc is imported."""
  for name, value in _DEFAULTS.items():
    os.environ.setdefault(name, value)
