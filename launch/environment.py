"""What a program needs of its environment before the frameworks are imported.

Variables that they read, standard streams that are open, address space for
them, and a folder for what has no other place.
"""

import os
import pathlib
import resource
import sys
import tempfile

_DEFAULTS = {
  # Start-up chatter of the frameworks hides our own lines.
  'TF_CPP_MIN_LOG_LEVEL': '3',
  'GRPC_VERBOSITY': 'ERROR',
  # TensorFlow 2.14 turns oneDNN on by itself only where AVX512 is; with AVX2
  # alone it still halves the time of a training step here.
  'TF_ENABLE_ONEDNN_OPTS': '1',
}
# TensorFlow and TFF's worker map far more than they use (4.7 GB in a small run
# on two cores, more on more), and die or wait for ever where they may not.
_TENSORFLOW_BYTES = 8 * 2**30


class LimitError(RuntimeError):
  """A limit of the shell or the machine that a command cannot work under."""


def prepare() -> None:
  """Sets the variables; call before TensorFlow or grpc is imported.

  Each is a default: a user's own value stays.
  """
  for name, value in _DEFAULTS.items():
    os.environ.setdefault(name, value)


def open_streams() -> None:
  """Opens on the null device what of stdin, stdout and stderr is closed.

  A file that is opened later would get the free number, and what a library
  prints would land in it.
  """
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    try:
      os.fstat(number)
    except OSError:
      # Gets the lowest free number, which is this one. For children, too.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if getattr(sys, name) is None:
      mode = 'w' if number else 'r'
      setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def check_tensorflow_fits() -> None:
  """Refuses a limit of the address space under which TensorFlow would abort.

  Raises:
    LimitError: `ulimit -v` is too low.
  """
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  if limit != resource.RLIM_INFINITY and limit < _TENSORFLOW_BYTES:
    raise LimitError(
      f'`ulimit -v` must be at least {_TENSORFLOW_BYTES // 1024}, or unlimited,'
      f' for TensorFlow to run, got {limit // 1024}; raise it in this shell and'
      ' bound memory itself with a cgroup, e.g. systemd-run -p MemoryMax=4G.'
    )


def state_directory() -> pathlib.Path:
  """Returns where logs go that belong to no run; it may not be there yet."""
  state = os.environ.get('XDG_STATE_HOME', '')
  if os.path.isabs(state):
    return pathlib.Path(state) / 'dpemb'
  home = os.environ.get('HOME', '')
  if os.path.isabs(home) and os.access(home, os.W_OK):
    return pathlib.Path(home) / '.local' / 'state' / 'dpemb'
  return pathlib.Path(tempfile.gettempdir()) / f'dpemb-{os.getuid()}'
