"""A backbone as a SavedModel: named signatures, normalisation in the graph.

Whoever loads it needs TensorFlow and nothing of this package: raw uint8 pixels
or PNG/JPEG bytes go in, unit-norm embeddings come out.
"""

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_dpemb import images as image_codec
from tff_dpemb.artifacts import storage
from tff_dpemb.export import quiet
from tff_dpemb.export import signature
from tff_dpemb.models import embedding_model

ExportError = signature.ExportError

# ITU-R 601 (.299, .587, .114) in 65536ths, as Pillow's mode 'L'.
_LUMINANCE_UNIT = 2**16
_LUMINANCE = (19595, 38470, 7471)
_JPEG_RATIOS = (1, 2, 4, 8)  # what libjpeg reduces by
_BATCH_SIZE = 256  # images a call; bounds the memory of `LoadedModel.embed`


class EmbeddingModule(tf.Module):
  """The exported graph of a backbone.

  The module holds the backbone's variables, not the Keras model: saving a
  Keras model traces every layer once more and stores Keras metadata that a
  loader would need Keras for.
  """

  def __init__(
    self, backbone: tf.keras.Model, image_shape: tuple[int, int, int]
  ) -> None:
    super().__init__(name='embedding')
    self._weights = list(backbone.weights)
    height, width, channels = image_shape

    def embed(images: tf.Tensor) -> dict[str, tf.Tensor]:
      hidden = backbone(embedding_model.normalise(images), training=False)
      unit = embedding_model.unit_norm(hidden, axis=1)
      return {signature.EMBEDDING: tf.identity(unit, signature.EMBEDDING)}

    def embed_bytes(encoded: tf.Tensor) -> dict[str, tf.Tensor]:
      images = tf.map_fn(
        lambda content: decode_image(content, image_shape=image_shape),
        encoded,
        fn_output_signature=tf.TensorSpec([height, width, channels], tf.uint8),
      )
      return embed(images)

    self.embed_uint8 = tf.function(
      embed,
      input_signature=[
        tf.TensorSpec([None, *image_shape], tf.uint8, signature.IMAGES)
      ],
      jit_compile=False,  # on a CPU, XLA made these models slower
    )
    self.embed_bytes = tf.function(
      embed_bytes,
      input_signature=[tf.TensorSpec([None], tf.string, signature.ENCODED)],
      jit_compile=False,
    )


def decode_image(
  content: tf.Tensor, *, image_shape: tuple[int, int, int]
) -> tf.Tensor:
  """Returns PNG or JPEG bytes as uint8 [H, W, C].

  The steps of `tff_dpemb.images.decode` in TensorFlow, without the camera's
  orientation; `signature.Decoding` states what it cannot do and how near it
  comes.
  """
  height, width, channels = image_shape
  pixels = tf.cond(
    tf.io.is_jpeg(content),
    lambda: _decode_jpeg(content, height=height, width=width),
    lambda: _decode_png(content),
  )
  pixels = tf.ensure_shape(pixels, [None, None, 3])
  if channels == 1:
    weighted = tf.cast(pixels, tf.int32) * tf.constant(_LUMINANCE)
    total = tf.reduce_sum(weighted, axis=2, keepdims=True)
    pixels = (total + _LUMINANCE_UNIT // 2) // _LUMINANCE_UNIT
  # Pillow filters rows, then columns, and rounds to bytes after each.
  values = tf.cast(pixels, tf.float32)
  values = _filtered(values, [tf.shape(values)[0], width])
  values = _filtered(values, [height, width])
  return tf.ensure_shape(tf.cast(values, tf.uint8), image_shape)


def _decode_jpeg(content: tf.Tensor, *, height: int, width: int) -> tf.Tensor:
  """Returns uint8 RGB; reduced where that leaves enough for the filter."""
  size = tf.io.extract_jpeg_shape(content)
  keeps = image_codec.REDUCED_JPEG_KEEPS
  fits = tf.minimum(size[0] // (keeps * height), size[1] // (keeps * width))
  return tf.switch_case(
    tf.reduce_sum(tf.cast(fits >= _JPEG_RATIOS[1:], tf.int32)),
    [
      functools.partial(
        tf.io.decode_jpeg,
        content,
        channels=3,
        ratio=ratio,
        dct_method='INTEGER_ACCURATE',
      )
      for ratio in _JPEG_RATIOS
    ],
  )


def _decode_png(content: tf.Tensor) -> tf.Tensor:
  """Returns uint8 RGB with transparency laid on black."""
  pixels = tf.cast(tf.io.decode_png(content, channels=4), tf.int32)
  # The nearest whole number to colour * alpha / 255.
  blended = (2 * pixels[..., :3] * pixels[..., 3:] + 255) // 510
  return tf.cast(blended, tf.uint8)


def _filtered(values: tf.Tensor, size: Sequence[Any]) -> tf.Tensor:
  """Returns float32 [H, W, C] resized, in whole numbers of 0 to 255."""
  values = tf.image.resize(
    values, size, method=tf.image.ResizeMethod.LANCZOS3, antialias=True
  )
  return tf.clip_by_value(tf.floor(values + 0.5), 0.0, 255.0)


def signature_of(
  backbone: tf.keras.Model, image_shape: tuple[int, int, int]
) -> signature.Signature:
  """Returns the signature; `ExportError` if the backbone is of another kind."""
  height, width, channels = (int(size) for size in image_shape)
  shape = (height, width, channels)
  output_shape = backbone.output_shape
  if not isinstance(output_shape, tuple) or len(output_shape) != 2:
    raise ExportError(
      f'backbone must return one tensor [N, D], got {output_shape}.'
    )
  if tuple(backbone.input_shape[1:]) not in (shape, (None, None, shape[2])):
    raise ExportError(
      f'image_shape must be the input of the backbone,'
      f' {backbone.input_shape[1:]}, got {shape}.'
    )
  return signature.build_signature(shape, int(output_shape[1]))


def write(
  backbone: tf.keras.Model,
  directory: str | os.PathLike[str],
  *,
  image_shape: tuple[int, int, int],
) -> signature.Signature:
  """Writes `backbone` as a SavedModel in `directory`.

  Args:
    backbone: float32 [N, H, W, C] in [-1, 1] -> float32 [N, D], not normalised.
    directory: Where to write; made if missing.
    image_shape: (H, W, C).

  Returns:
    The signature. The signatures of the graph are `embed_uint8(images: uint8
    [N, H, W, C])`, `embed_bytes(encoded: string [N])` and `serving_default`,
    which is `embed_uint8`; each returns `embedding`, float32 [N, D] of unit L2
    norm. A backbone that returns zero for an image has a zero embedding there.

  Raises:
    ExportError: The backbone has another input or output, or the files could
      not be written.
  """
  result = signature_of(backbone, image_shape)
  module = EmbeddingModule(usable_copy(backbone), result.image_shape)
  uint8 = module.embed_uint8.get_concrete_function()
  try:
    with quiet.native_logs():
      tf.saved_model.save(
        module,
        os.fspath(directory),
        signatures={
          signature.EMBED_UINT8: uint8,
          signature.EMBED_BYTES: module.embed_bytes.get_concrete_function(),
          signature.SERVING_DEFAULT: uint8,
        },
      )
  except (OSError, tf.errors.OpError) as error:
    raise ExportError(
      f'{os.fspath(directory)!r} could not be written ({_first_line(error)});'
      ' free space or choose another directory.'
    ) from error
  return result


def usable_copy(backbone: tf.keras.Model) -> tf.keras.Model:
  """Returns a copy of `backbone` that can be called eagerly and traced.

  Building a Keras model inside a TF 1 graph, as TFF's computations do, rebases
  the *classes* of its layers, and models made earlier then fail with "Your
  Layer or Model is in an invalid state". Building the layers anew outside of
  any graph puts the classes right. A subclassed model has no configuration to
  copy and is returned as it is.
  """
  with tf.init_scope():
    try:
      copy = tf.keras.models.clone_model(backbone)
    except (ValueError, NotImplementedError):
      return backbone
    if [w.shape for w in copy.weights] != [w.shape for w in backbone.weights]:
      return backbone
    for target, source in zip(copy.weights, backbone.weights, strict=True):
      target.assign(source)
  return copy


class LoadedModel:
  """A SavedModel in memory. Safe to call from several threads."""

  def __init__(self, directory: str | os.PathLike[str]) -> None:
    """Loads `directory`; raises `ExportError` if it is not such an export."""
    self._directory = pathlib.Path(directory)
    try:
      with quiet.native_logs():
        self._loaded = tf.saved_model.load(os.fspath(directory))
      self._embed = self._loaded.signatures[signature.EMBED_UINT8]
      self._embed_bytes = self._loaded.signatures[signature.EMBED_BYTES]
      shape = self._embed.structured_input_signature[1][signature.IMAGES].shape
      output = self._embed.structured_outputs[signature.EMBEDDING].shape
    except (OSError, KeyError, AttributeError, tf.errors.OpError) as error:
      raise ExportError(
        f'{os.fspath(directory)!r} must be an embedding SavedModel'
        f' ({_first_line(error)}); publish the model again.'
      ) from error
    self.signature = signature.build_signature(
      tuple(shape.as_list()[1:]), int(output[1])
    )

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return self.signature.image_shape

  @property
  def embedding_dim(self) -> int:
    return self.signature.embedding_dim

  @property
  def digest(self) -> str:
    """SHA-256 of the files of the SavedModel (hex)."""
    return storage.sha256_of(self._directory)

  def embed(self, images: np.ndarray) -> np.ndarray:
    """Returns unit-norm float32 [N, D] of uint8 [N, H, W, C].

    Raises:
      ExportError: `images` has another shape or type.
    """
    images = np.asarray(images)
    self.signature.check_images(images)
    return self._in_batches(
      images, lambda batch: self._embed(**{signature.IMAGES: batch})
    )

  def embed_bytes(self, encoded: Sequence[bytes]) -> np.ndarray:
    """Returns unit-norm float32 [N, D] of PNG or JPEG files.

    What the graph does and cannot do is `signature.decoding`: it ignores the
    camera's orientation and decodes whatever size the header states, so decode
    files of strangers with `tff_dpemb.images` and call `embed`.

    Raises:
      ExportError: A file is neither PNG nor JPEG or is damaged.
    """
    try:
      return self._in_batches(
        np.array(list(encoded), dtype=object),
        lambda batch: self._embed_bytes(
          **{signature.ENCODED: tf.constant(batch, tf.string)}
        ),
      )
    except tf.errors.InvalidArgumentError as error:
      raise ExportError(
        'encoded must hold PNG or JPEG files, got one that does not decode.'
      ) from error

  def _in_batches(self, items, call) -> np.ndarray:
    if not len(items):
      return np.zeros([0, self.embedding_dim], np.float32)
    parts = [
      call(items[start : start + _BATCH_SIZE])[signature.EMBEDDING].numpy()
      for start in range(0, len(items), _BATCH_SIZE)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def load(directory: str | os.PathLike[str]) -> LoadedModel:
  """Returns the SavedModel in `directory`, ready to embed."""
  return LoadedModel(directory)


def _first_line(error: BaseException) -> str:
  return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
