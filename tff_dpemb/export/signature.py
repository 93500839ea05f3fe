"""What an export answers: names, shapes and types of its signatures.

The names are fixed. Keras names a signature's tensors after its layers, and
those names change with the number of models built before it in the process, so
a client that relied on them would break from one export to the next.

Nothing here imports TensorFlow.
"""

from typing import Any, Literal

import numpy as np

from tff_dpemb import images as image_codec
from tff_dpemb.artifacts import documents

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


class Decoding(documents.Value):
  """How `embed_bytes` reads files, and what it cannot do.

  The graph is for those who have TensorFlow and none of this package. It reads
  as `tff_dpemb.images`, the decoder of training and serving, but for what is
  stated here.

  Attributes:
    formats: Others are refused; the one decoder reads more.
    exif_orientation: `ignored`: a picture that the camera marks as turned is
      embedded as it lies. Turn it first.
    size_limit: `none`: whatever size a header states is decoded. Check files
      of strangers first.
    transparency: `on_black`.
    sixteen_bits: `high_byte`.
    grey: `itu_r_601` luminance.
    filter: `lanczos3`, stretching to the image shape; the aspect ratio is not
      kept.
    reduced_jpeg_keeps: A JPEG is decoded at 1/2, 1/4 or 1/8 where that leaves
      so many times the wanted size.
    max_difference: Largest difference to the one decoder of a pixel's value
      (of 255), on upright files of these formats.
    max_mean_difference: Largest mean of the differences over an image.
  """

  formats: tuple[Literal['PNG', 'JPEG'], ...] = ('PNG', 'JPEG')
  exif_orientation: Literal['ignored'] = 'ignored'
  size_limit: Literal['none'] = 'none'
  transparency: Literal['on_black'] = 'on_black'
  sixteen_bits: Literal['high_byte'] = 'high_byte'
  grey: Literal['itu_r_601'] = 'itu_r_601'
  filter: Literal['lanczos3'] = 'lanczos3'
  reduced_jpeg_keeps: documents.PositiveCount = image_codec.REDUCED_JPEG_KEEPS
  max_difference: documents.Count = 1
  max_mean_difference: float = 0.01


class Tensor(documents.Value):
  """An input or output of a signature.

  Attributes:
    name: In the graph.
    dtype: TensorFlow's name of it.
    shape: None for the free number of images.
    content: What the numbers or strings are.
  """

  name: str
  dtype: Literal['uint8', 'string', 'float32']
  shape: tuple[documents.PositiveCount | None, ...]
  content: str


class Call(documents.Value):
  """One signature of an artefact."""

  input: Tensor
  output: Tensor


class Signature(documents.Value):
  """Shapes of an export's input and output; made by `build_signature`.

  Attributes:
    image_shape: (H, W, C) with C = 1 (grey) or 3 (RGB).
    embedding_dim: D.
    saved_model: The calls of the SavedModel by name.
    tflite: The calls of the TFLite file by name.
    decoding: How `embed_bytes` decodes.
  """

  image_shape: tuple[
    documents.PositiveCount, documents.PositiveCount, documents.PositiveCount
  ]
  embedding_dim: documents.PositiveCount
  saved_model: dict[str, Call]
  tflite: dict[str, Call]
  decoding: Decoding = Decoding()

  def model_post_init(self, context: Any) -> None:
    """Refuses what contradicts the two facts from which all follows."""
    if self.image_shape[2] not in (1, 3):
      raise ValueError(f'must have 1 or 3 channels, got {self.image_shape[2]}.')
    calls = _calls(self.image_shape, self.embedding_dim)
    if (self.saved_model, self.tflite) != calls:
      raise ValueError(
        'saved_model and tflite must state the calls of image_shape and'
        ' embedding_dim, got others.'
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


def build_signature(
  image_shape: tuple[int, int, int], embedding_dim: int
) -> Signature:
  """Returns the signature of a backbone.

  Raises:
    ExportError: A size is below 1, or the images are neither grey nor RGB.
  """
  if len(image_shape) != 3 or any(int(size) < 1 for size in image_shape):
    raise ExportError(
      f'image_shape must be (height, width, channels) >= 1, got {image_shape}.'
    )
  if image_shape[2] not in (1, 3):
    raise ExportError(
      f'image_shape must have 1 or 3 channels, got {image_shape[2]}; convert'
      ' the images to grey or RGB.'
    )
  if embedding_dim < 1:
    raise ExportError(f'embedding_dim must be >= 1, got {embedding_dim}.')
  saved_model, tflite = _calls(image_shape, embedding_dim)
  return Signature(
    image_shape=image_shape,
    embedding_dim=embedding_dim,
    saved_model=saved_model,
    tflite=tflite,
  )


def _calls(
  image_shape: tuple[int, int, int], embedding_dim: int
) -> tuple[dict[str, Call], dict[str, Call]]:
  """Returns the calls of the SavedModel and of the TFLite file."""
  embedding = Tensor(
    name=EMBEDDING,
    dtype='float32',
    shape=(None, embedding_dim),
    content='of unit L2 norm',
  )
  of_pixels = Call(
    input=Tensor(
      name=IMAGES,
      dtype='uint8',
      shape=(None, *image_shape),
      content='pixels, 0 to 255',
    ),
    output=embedding,
  )
  of_files = Call(
    input=Tensor(
      name=ENCODED, dtype='string', shape=(None,), content='PNG or JPEG files'
    ),
    output=embedding,
  )
  saved_model = {
    EMBED_UINT8: of_pixels,
    EMBED_BYTES: of_files,
    SERVING_DEFAULT: of_pixels,
  }
  return saved_model, {EMBED_UINT8: of_pixels}
