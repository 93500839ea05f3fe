"""Images of a request as arrays, within bounds.

Whatever a stranger may send is bounded before it costs: the number of images,
the pixels that a file's *header* states, then the decoding, which is that of
training (`tff_dpemb.images`).
"""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from protos.gen.dpemb.serving.v1 import image_pb2
from serving import status
from tff_dpemb import images as image_codec
from tff_dpemb.export import signature as signature_lib

# Larger files are decoded one at a time, over all requests: each takes up to 12
# bytes a pixel while its transparency is resolved, and there is a thread a
# core. Who waits holds a thread, so nobody waits for long.
_LARGE_PIXELS = 2**24
_LARGE = threading.Lock()
_TURN_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Limits:
  """What the server refuses.

  Attributes:
    max_message_bytes: Bytes of a request.
    max_images: Images, or query embeddings, of a request.
    max_pixels: Pixels that an image file may state; as many as training reads.
    max_request_pixels: Pixels that all files of a request may state; at least
      `max_pixels`.
    max_neighbours: Neighbours of a query.
    max_pending_images: Images that wait or are worked on, over all requests.
    max_pending_bytes: Bytes of those requests.

  Raises:
    status.InvalidValue: A limit is below 1, or no file of `max_pixels` could
      be sent.
  """

  max_message_bytes: int = 16 * 2**20
  max_images: int = 256
  max_pixels: int = image_codec.MAX_PIXELS
  max_request_pixels: int = 2**26
  max_neighbours: int = 1000
  max_pending_images: int = 2048
  max_pending_bytes: int = 256 * 2**20

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value < 1:
        raise status.InvalidValue(f'{field.name} must be >= 1, got {value}.')
    if self.max_request_pixels < self.max_pixels:
      raise status.InvalidValue(
        f'max_request_pixels must be >= max_pixels, {self.max_pixels}, got'
        f' {self.max_request_pixels}.'
      )


def count_of(batch: image_pb2.ImageBatch) -> int:
  """Returns how many images a batch claims to hold; checks nothing."""
  return (
    batch.raw.count
    if batch.WhichOneof('images') == 'raw'
    else len(batch.encoded.contents)
  )


def check_count(count: int, *, limits: Limits, field: str, what: str) -> None:
  """Refuses a request with nothing or too much in it.

  Raises:
    status.InvalidRequest: `count` is 0 or above `limits.max_images`.
  """
  if not 1 <= count <= limits.max_images:
    remedy = '; split the request' if count else ''
    raise status.InvalidRequest(
      f'{field} must hold 1 to {limits.max_images} {what}, got'
      f' {count}{remedy}.',
      field=field,
    )


def images_from_batch(
  batch: image_pb2.ImageBatch,
  *,
  signature: signature_lib.Signature,
  limits: Limits,
) -> np.ndarray:
  """Returns the images as uint8 [N, H, W, C], N >= 1.

  Raises:
    status.InvalidRequest: The images break a rule.
    status.Overloaded: Too many large files are read at the same time.
  """
  match batch.WhichOneof('images'):
    case 'raw':
      return _from_raw(batch.raw, signature=signature, limits=limits)
    case 'encoded':
      return _from_files(
        batch.encoded.contents, signature=signature, limits=limits
      )
  raise status.InvalidRequest(
    'images must be set: raw pixels or encoded files.', field='images'
  )


def _from_raw(
  raw: image_pb2.RawImages,
  *,
  signature: signature_lib.Signature,
  limits: Limits,
) -> np.ndarray:
  check_count(raw.count, limits=limits, field='images.raw', what='images')
  shape = (raw.height, raw.width, raw.channels)
  if shape != signature.image_shape:
    raise status.InvalidRequest(
      'images.raw must have (height, width, channels)'
      f' {signature.image_shape}, got {shape}; resize the images or send them'
      ' encoded.',
      field='images.raw',
    )
  expected = raw.count * raw.height * raw.width * raw.channels
  if len(raw.pixels) != expected:
    raise status.InvalidRequest(
      f'images.raw.pixels must be {expected} bytes (count * height * width *'
      f' channels), got {len(raw.pixels)}; send uint8.',
      field='images.raw.pixels',
    )
  return np.frombuffer(raw.pixels, np.uint8).reshape(raw.count, *shape)


def _from_files(
  contents: Sequence[bytes],
  *,
  signature: signature_lib.Signature,
  limits: Limits,
) -> np.ndarray:
  check_count(
    len(contents), limits=limits, field='images.encoded.contents', what='images'
  )
  headers: list[image_codec.Header] = []
  pixels = 0
  for index, content in enumerate(contents):
    with _naming(index):
      header = image_codec.read_header(content, max_pixels=limits.max_pixels)
    headers.append(header)
    pixels += header.pixels
    if pixels > limits.max_request_pixels:
      raise status.InvalidRequest(
        'images.encoded.contents must state at most'
        f' {limits.max_request_pixels} pixels together, got {pixels} in the'
        f' first {index + 1}; split the request or send smaller images.',
        field='images.encoded.contents',
      )
  images = np.empty([len(contents), *signature.image_shape], np.uint8)
  for index, (content, header) in enumerate(
    zip(contents, headers, strict=True)
  ):
    with _naming(index), _turn_of(header):
      images[index] = image_codec.decode(
        content, signature.image_shape, max_pixels=limits.max_pixels
      )
  return images


@contextlib.contextmanager
def _naming(index: int) -> Iterator[None]:
  """Turns the decoder's refusal of a file into one of the request."""
  field = f'images.encoded.contents[{index}]'
  try:
    yield
  except image_codec.ImageError as error:
    raise status.InvalidRequest(f'{field} {error.rule}', field=field) from error


@contextlib.contextmanager
def _turn_of(header: image_codec.Header) -> Iterator[None]:
  """Holds the turn of a large file; `status.Overloaded` if none comes."""
  if header.pixels <= _LARGE_PIXELS:
    yield
    return
  if not _LARGE.acquire(timeout=_TURN_SECONDS):
    raise status.Overloaded(
      f'files of over {_LARGE_PIXELS} pixels must be read one at a time, and'
      f' no turn came in {_TURN_SECONDS:g} seconds; try again in a second or'
      ' send smaller images.'
    )
  try:
    yield
  finally:
    _LARGE.release()
