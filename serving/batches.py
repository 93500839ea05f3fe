"""A call as requests: images, files or embeddings, within a server's limits.

A file has one reading (`tff_dpemb.images`). The server decodes what is sent;
a file that no request has room for is decoded here and sent as pixels, so it
has the embedding that the server would have given it.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from protos.gen.dpemb.serving.v1 import image_pb2
from serving import servicer
from serving import status
from tff_dpemb import images as image_codec

_ENVELOPE_BYTES = 4096  # room for everything in a request but its images
_FILE_BYTES = 16  # what a file takes in a request beside its content


@dataclasses.dataclass(frozen=True)
class Limits:
  """What a server takes in a request, as it told.

  Attributes:
    image_shape: (H, W, C) of its model.
    max_message_bytes: Bytes.
    max_images: Images, or query embeddings.
    max_pixels: Pixels that an image file may state ...
    max_request_pixels: ... and all files of a request.
  """

  image_shape: tuple[int, int, int]
  max_message_bytes: int
  max_images: int
  max_pixels: int
  max_request_pixels: int

  @property
  def room_bytes(self) -> int:
    """What images may take in a request, >= 1."""
    return max(1, self.max_message_bytes - _ENVELOPE_BYTES)

  def count_of(self, each_bytes: int) -> int:
    """Returns how many things of a size go into a request, >= 1."""
    return max(1, min(self.max_images, self.room_bytes // max(1, each_bytes)))


def of_images(
  images: np.ndarray | Sequence[bytes], limits: Limits
) -> Iterator[image_pb2.ImageBatch]:
  """Yields requests' worth of uint8 [N, H, W, C] or of files, in order.

  Raises:
    status.InvalidRequest: The array is another, or a file that has to be
      decoded here cannot be.
  """
  if not isinstance(images, np.ndarray):
    yield from _of_files(images, limits)
    return
  if images.ndim != 4 or images.dtype != np.uint8:
    raise status.InvalidRequest(
      f'images must be uint8 [N, H, W, C], got {images.dtype}'
      f' {list(images.shape)}; do not normalise.',
      field='images',
    )
  size = limits.count_of(int(np.prod(images.shape[1:])))
  for start in range(0, len(images), size):
    yield _raw(images[start : start + size])


def of_embeddings(
  embeddings: np.ndarray, limits: Limits
) -> Iterator[image_pb2.Embeddings]:
  """Yields requests' worth of float32 [N, D].

  Raises:
    status.InvalidRequest: The array has another shape.
  """
  embeddings = np.asarray(embeddings, np.float32)
  if embeddings.ndim != 2:
    raise status.InvalidRequest(
      f'embeddings must be [N, D], got {list(embeddings.shape)}.',
      field='embeddings',
    )
  size = limits.count_of(4 * embeddings.shape[1])
  for start in range(0, len(embeddings), size):
    yield servicer.proto_from_embeddings(embeddings[start : start + size])


def _of_files(
  contents: Sequence[bytes], limits: Limits
) -> Iterator[image_pb2.ImageBatch]:
  batch: list[bytes] = []
  size = pixels = 0
  for index, content in enumerate(contents):
    more_size = len(content) + _FILE_BYTES
    more_pixels = _stated_pixels(content)
    fits = more_size <= limits.room_bytes
    if batch and (
      not fits
      or len(batch) == limits.max_images
      or size + more_size > limits.room_bytes
      or pixels + more_pixels > limits.max_request_pixels
    ):
      yield _encoded(batch)
      batch, size, pixels = [], 0, 0
    if fits:
      batch.append(content)
      size += more_size
      pixels += more_pixels
    else:
      yield _raw(_decoded(content, index, limits)[np.newaxis])
  if batch:
    yield _encoded(batch)


def _stated_pixels(content: bytes) -> int:
  """Returns the pixels that a file states; 0: let the server tell why not."""
  try:
    return image_codec.read_header(content).pixels
  except image_codec.ImageError:
    return 0


def _decoded(content: bytes, index: int, limits: Limits) -> np.ndarray:
  try:
    return image_codec.decode(
      content, limits.image_shape, max_pixels=limits.max_pixels
    )
  except image_codec.ImageError as error:
    raise status.InvalidRequest(
      f'images[{index}] {error.rule}', field='images'
    ) from error


def _encoded(contents: Sequence[bytes]) -> image_pb2.ImageBatch:
  return image_pb2.ImageBatch(
    encoded=image_pb2.EncodedImages(contents=contents)
  )


def _raw(images: np.ndarray) -> image_pb2.ImageBatch:
  count, height, width, channels = images.shape
  return image_pb2.ImageBatch(
    raw=image_pb2.RawImages(
      pixels=images.tobytes(),
      count=count,
      height=height,
      width=width,
      channels=channels,
    )
  )
