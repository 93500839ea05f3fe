"""What an export answers: names, shapes and types of its signatures.

The names are fixed. Keras names a signature's tensors after its layers, and
those names change with the number of models built before it in the process, so
a client that relied on them would break from one export to the next.

Nothing here imports TensorFlow.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

EMBED_UINT8 = 'embed_uint8'  # {IMAGES: uint8 [N, H, W, C]} -> {EMBEDDING}
EMBED_BYTES = 'embed_bytes'  # {ENCODED: string [N], PNG or JPEG} -> {EMBEDDING}
SERVING_DEFAULT = 'serving_default'  # the same as EMBED_UINT8
IMAGES = 'images'
ENCODED = 'encoded'
EMBEDDING = 'embedding'  # float32 [N, D], unit L2 norm


class ExportError(RuntimeError):
  """An export that could not be written, is damaged, or does not fit."""


class ParityError(ExportError):
  """An artefact that does not embed as the live model does."""

  exit_code = 5  # A gate failed.


@dataclasses.dataclass(frozen=True)
class Signature:
  """Shapes of an export's input and output.

  Attributes:
    image_shape: (H, W, C) with C = 1 (grey) or 3 (RGB).
    embedding_dim: D.
  """

  image_shape: tuple[int, int, int]
  embedding_dim: int

  def __post_init__(self) -> None:
    shape = self.image_shape
    if len(shape) != 3 or any(int(size) < 1 for size in shape):
      raise ExportError(
        f'image_shape must be (height, width, channels) >= 1, got {shape}.'
      )
    if shape[2] not in (1, 3):
      raise ExportError(
        f'image_shape must have 1 or 3 channels, got {shape[2]}; convert the'
        ' images to grey or RGB.'
      )
    if self.embedding_dim < 1:
      raise ExportError(
        f'embedding_dim must be >= 1, got {self.embedding_dim}.'
      )

  def check_images(self, images: np.ndarray, *, name: str = IMAGES) -> None:
    """Refuses anything but uint8 [N, H, W, C].

    Raises:
      ExportError: Names the array, the rule and what was given.
    """
    expected = ', '.join(str(size) for size in self.image_shape)
    if images.dtype != np.uint8 or images.shape[1:] != self.image_shape:
      raise ExportError(
        f'{name} must be uint8 [N, {expected}], got {images.dtype}'
        f' {list(images.shape)}; resize to the model and do not normalise.'
      )

  def to_json(self) -> dict[str, Any]:
    """Returns the signatures as the manifest states them."""
    images = {
      'name': IMAGES,
      'dtype': 'uint8',
      'shape': [None, *self.image_shape],
      'range': [0, 255],
    }
    encoded = {
      'name': ENCODED,
      'dtype': 'string',
      'shape': [None],
      'content': 'PNG or JPEG',
    }
    embedding = {
      'name': EMBEDDING,
      'dtype': 'float32',
      'shape': [None, self.embedding_dim],
      'norm': 'l2',
    }
    return {
      'image_shape': list(self.image_shape),
      'embedding_dim': self.embedding_dim,
      'saved_model': {
        EMBED_UINT8: {'input': images, 'output': embedding},
        EMBED_BYTES: {'input': encoded, 'output': embedding},
        SERVING_DEFAULT: {'input': images, 'output': embedding},
      },
      'tflite': {EMBED_UINT8: {'input': images, 'output': embedding}},
    }


def signature_from_json(content: Mapping[str, Any]) -> Signature:
  """Returns the signature of a manifest; `ExportError` if it is malformed."""
  try:
    height, width, channels = (int(size) for size in content['image_shape'])
    return Signature((height, width, channels), int(content['embedding_dim']))
  except (KeyError, TypeError, ValueError) as error:
    raise ExportError(
      'the manifest must state image_shape and embedding_dim; the export is'
      ' damaged, publish it again.'
    ) from error
