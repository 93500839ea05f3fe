"""A backbone as TFLite: float32, builtin operators, any batch size.

The file has one signature, `embed_uint8(images: uint8 [N, H, W, C]) ->
embedding: float32 [N, D]`, the same as the SavedModel's: the cast from uint8
and the normalisation are in the graph, so a phone passes its pixels as they
are. The batch is dynamic: resize the input, then allocate.

Keras' GroupNormalization converts but fails when it runs with a dynamic batch;
a model that needs groups must reshape to [-1, H * W, G, C / G] itself.
"""

import os

import numpy as np
import tensorflow as tf

from tff_dpemb.artifacts import storage
from tff_dpemb.export import quiet
from tff_dpemb.export import signature

ExportError = signature.ExportError

_BATCH_SIZE = 32  # images an invocation: more gains nothing and costs memory


def convert(saved_model_directory: str | os.PathLike[str]) -> bytes:
  """Returns the TFLite flatbuffer of a SavedModel written by `saved_model`.

  Raises:
    ExportError: The model needs an operator that TFLite lacks.
  """
  converter = tf.lite.TFLiteConverter.from_saved_model(
    os.fspath(saved_model_directory),
    signature_keys=[signature.EMBED_UINT8],
  )
  converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
  # float32 weights and arithmetic: no optimisation is asked for.
  converter.optimizations = []
  with quiet.native_logs():
    try:
      return converter.convert()
    except Exception as error:  # noqa: BLE001 -- it raises bare Exceptions.
      failure = error
  raise ExportError(
    'the backbone must convert with TFLite builtin operators only, got'
    f' {_reason(failure)!r}; replace that layer.'
  ) from failure


def write(
  saved_model_directory: str | os.PathLike[str],
  path: str | os.PathLike[str],
) -> None:
  """Writes the TFLite file of a SavedModel to `path`; errors as `convert`."""
  try:
    storage.atomic_write_bytes(path, convert(saved_model_directory))
  except storage.ArtifactError as error:
    raise ExportError(str(error)) from error


class LiteModel:
  """A TFLite model in memory. **Not** safe to call from several threads."""

  def __init__(
    self, path: str | os.PathLike[str], *, num_threads: int = 1
  ) -> None:
    """Loads `path`; raises `ExportError` if it is not such an export."""
    try:
      with quiet.native_logs():
        self._interpreter = tf.lite.Interpreter(
          os.fspath(path), num_threads=num_threads
        )
        runner = self._interpreter.get_signature_runner(signature.EMBED_UINT8)
        images = runner.get_input_details()[signature.IMAGES]
        embedding = runner.get_output_details()[signature.EMBEDDING]
        _, height, width, channels = map(int, images['shape_signature'])
        self.signature = signature.build_signature(
          (height, width, channels), int(embedding['shape_signature'][1])
        )
        self._input = images['index']
        self._output = embedding['index']
        self._batch_size = 0
        del runner  # The interpreter refuses to resize while it is held.
        self._resize(1)
    except (ValueError, KeyError, RuntimeError) as error:
      raise ExportError(
        f'{os.fspath(path)!r} must be an embedding TFLite model'
        f' ({_reason(error)}); publish the model again.'
      ) from error

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return self.signature.image_shape

  @property
  def embedding_dim(self) -> int:
    return self.signature.embedding_dim

  def embed(
    self, images: np.ndarray, *, batch_size: int = _BATCH_SIZE
  ) -> np.ndarray:
    """Returns unit-norm float32 [N, D] of uint8 [N, H, W, C].

    Raises:
      ExportError: `images` has another shape or type, or the graph cannot run
        with this batch size.
    """
    images = np.ascontiguousarray(images)
    self.signature.check_images(images)
    parts = [np.zeros([0, self.embedding_dim], np.float32)]
    for start in range(0, len(images), batch_size):
      batch = images[start : start + batch_size]
      try:
        self._resize(len(batch))
        self._interpreter.set_tensor(self._input, batch)
        self._interpreter.invoke()
        parts.append(self._interpreter.get_tensor(self._output))
      except (RuntimeError, ValueError) as error:
        self._batch_size = 0
        raise ExportError(
          f'the TFLite graph must run with a batch of {len(batch)}, got'
          f' {_reason(error)!r}; replace the layer that fixes the batch.'
        ) from error
    return parts[1] if len(parts) == 2 else np.concatenate(parts)

  def _resize(self, batch_size: int) -> None:
    if batch_size != self._batch_size:
      self._interpreter.resize_tensor_input(
        self._input, [batch_size, *self.image_shape], strict=True
      )
      self._interpreter.allocate_tensors()
      self._batch_size = batch_size


def load(path: str | os.PathLike[str], *, num_threads: int = 1) -> LiteModel:
  """Returns the TFLite model at `path`, ready to embed."""
  return LiteModel(path, num_threads=num_threads)


def _reason(error: BaseException | None) -> str:
  """Returns the line of a converter's or interpreter's error that tells why."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  telling = [line for line in lines if 'error:' in line or 'Error code' in line]
  return (telling or lines or [type(error).__name__])[0][:200]
