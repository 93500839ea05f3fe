"""Images of a request as arrays, within bounds.

Whatever a stranger may send is bounded before it costs: the number of images,
the pixels that a file's *header* states, then the decoding. Formats are an
allow-list.
"""

import dataclasses
import io
import struct
import warnings
import zlib

import numpy as np
import PIL.Image

from protos.gen.dpemb.serving.v1 import image_pb2
from serving import status
from tff_dpemb.export import signature as signature_lib

# `_open` refuses by the pixels that a header states. For the whole process: a
# filter that is set and taken back is not thread-safe.
warnings.filterwarnings('ignore', category=PIL.Image.DecompressionBombWarning)

_FORMATS = ('PNG', 'JPEG')
_DECODE_ERRORS = (
  OSError,
  SyntaxError,  # Pillow: broken PNG chunks.
  ValueError,
  EOFError,
  IndexError,
  OverflowError,
  struct.error,
  zlib.error,
)


@dataclasses.dataclass(frozen=True)
class Limits:
  """What the server refuses.

  Attributes:
    max_message_bytes: Bytes of a request.
    max_images: Images, or query embeddings, of a request.
    max_pixels: Pixels that an image file may state.
    max_request_pixels: Pixels that all files of a request may state.
    max_neighbours: Neighbours of a query.
    max_pending_images: Images that wait or are worked on, over all requests.
    max_pending_bytes: Bytes of those requests.

  Raises:
    status.InvalidValue: A limit is below 1.
  """

  max_message_bytes: int = 16 * 2**20
  max_images: int = 256
  max_pixels: int = 2**24
  max_request_pixels: int = 2**26
  max_neighbours: int = 1000
  max_pending_images: int = 2048
  max_pending_bytes: int = 256 * 2**20

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value < 1:
        raise status.InvalidValue(f'{field.name} must be >= 1, got {value}.')


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
  contents, *, signature: signature_lib.Signature, limits: Limits
) -> np.ndarray:
  check_count(
    len(contents), limits=limits, field='images.encoded.contents', what='images'
  )
  opened = []
  pixels = 0
  for index, content in enumerate(contents):
    field = f'images.encoded.contents[{index}]'
    opened.append(_open(content, field=field, limits=limits))
    pixels += opened[-1].width * opened[-1].height
    if pixels > limits.max_request_pixels:
      raise status.InvalidRequest(
        'images.encoded.contents must state at most'
        f' {limits.max_request_pixels} pixels together, got {pixels} in the'
        f' first {index + 1}; split the request or send smaller images.',
        field='images.encoded.contents',
      )
  images = np.empty([len(opened), *signature.image_shape], np.uint8)
  for index, image in enumerate(opened):
    images[index] = _decode(
      image,
      signature.image_shape,
      field=f'images.encoded.contents[{index}]',
    )
  return images


def _open(content: bytes, *, field: str, limits: Limits) -> PIL.Image.Image:
  """Reads the header only."""
  try:
    image = PIL.Image.open(io.BytesIO(content), formats=_FORMATS)
    pixels = image.width * image.height
  except PIL.Image.DecompressionBombError:
    pixels = None
  except _DECODE_ERRORS as error:
    raise status.InvalidRequest(
      f'{field} must be a PNG or JPEG file, got {len(content)} bytes of'
      ' something else.',
      field=field,
    ) from error
  if pixels is None or pixels > limits.max_pixels:
    raise status.InvalidRequest(
      f'{field} must state at most {limits.max_pixels} pixels, got'
      f' {pixels or "far more"}; send a smaller image.',
      field=field,
    )
  return image


def _decode(
  image: PIL.Image.Image, image_shape: tuple[int, int, int], *, field: str
) -> np.ndarray:
  """Returns uint8 [H, W, C]; the same steps as the export's `embed_bytes`."""
  height, width, channels = image_shape
  try:
    if image.mode in ('I', 'I;16', 'I;16B', 'I;16L'):
      # 16-bit grey: keep the high byte; Pillow's own conversion would clip.
      high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255)
      image = PIL.Image.fromarray(high.astype(np.uint8))
    image = image.convert('L' if channels == 1 else 'RGB')
    if image.size != (width, height):
      image = image.resize((width, height), PIL.Image.Resampling.BILINEAR)
  except _DECODE_ERRORS as error:
    raise status.InvalidRequest(
      f'{field} must be a whole image file, got a damaged one; send it again.',
      field=field,
    ) from error
  return np.asarray(image, np.uint8).reshape(image_shape)
