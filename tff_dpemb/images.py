"""THE decoder: encoded bytes to uint8 pixels, for training and serving alike.

A file has one reading. What ingest stores, what the server embeds and what the
client sends come from `decode`, so that a picture is looked up as it was
trained on; the export's graph is measured against it (`export.signature`).

The reading, in this order:

1. The header is checked: format and number of pixels, before any is decoded.
2. A JPEG much larger than wanted is decoded at 1/2, 1/4 or 1/8, straight from
   its cosine coefficients, as long as that leaves twice the wanted size. A
   camera picture then costs a sixth of the time and far less memory. The filter
   below still decides what is seen: values of photographs change by 0.5 of 255
   on average, of drawings by 1.4 (`make bench NAME=decoder`).
3. The first frame is turned as the camera says (EXIF orientation).
4. 16 bits keep their high byte; palettes and CMYK become RGB; transparency is
   laid on black; grey is ITU-R 601 luminance.
5. One filter, Lanczos, stretches it to the wanted size.
"""

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import ExifTags
from PIL import Image
from PIL import ImageOps

# Formats that are tried; Pillow's rarer decoders are never given input.
FORMATS = ('PNG', 'JPEG', 'WEBP', 'BMP', 'GIF', 'PPM', 'TIFF')

# 64 megapixels: larger than any camera picture that is worth 112 x 112, small
# enough (192 MB as RGB) that one bad file cannot exhaust memory.
MAX_PIXELS = 64_000_000

# What a reduced JPEG keeps over the wanted size: below 2 the reduction, not
# the filter, would decide what is seen.
REDUCED_JPEG_KEEPS = 2

# Floating point has no stated range; the others have no conversion.
_REFUSED_MODES = ('F', 'LAB', 'HSV')

# Pillow warns of large images; the limit here is max_pixels. Once, not at each
# call: filters are the process', and threads decode.
warnings.simplefilter('ignore', Image.DecompressionBombWarning)


class ImageError(ValueError):
  """Bytes that are not an image that can be used.

  Attributes:
    rule: The message without its subject, for those who name the image.
  """

  def __init__(self, rule: str, *, subject: str = 'image') -> None:
    super().__init__(f'{subject} {rule}')
    self.rule = rule


@dataclasses.dataclass(frozen=True)
class Header:
  """What encoded bytes state about themselves; no pixel was decoded.

  Attributes:
    format: Of `FORMATS`, or MPO: a JPEG with more pictures behind the first.
    width: Pixels, before the camera's orientation is applied.
    height: Likewise.
  """

  format: str
  width: int
  height: int

  @property
  def pixels(self) -> int:
    """width * height."""
    return self.width * self.height


def read_header(
  data: bytes,
  *,
  formats: Sequence[str] = FORMATS,
  max_pixels: int = MAX_PIXELS,
) -> Header:
  """Returns what some encoded bytes state; arguments and errors as `decode`."""
  with _image_errors(data, formats, max_pixels):
    image = _opened(data, formats, max_pixels)
    return Header(str(image.format), image.width, image.height)


def decode(
  data: bytes,
  shape: tuple[int, int, int],
  *,
  formats: Sequence[str] = FORMATS,
  max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
  """Returns the image of some encoded bytes at the wanted shape.

  Args:
    data: A file's content; the format is read from it. Of an animation the
      first frame is taken.
    shape: Wanted (height, width, channels); channels is 1 (grey) or 3 (RGB).
      The aspect ratio is not kept.
    formats: The formats to accept, of `FORMATS`.
    max_pixels: Images with more pixels are refused.

  Returns:
    uint8 [height, width, channels].

  Raises:
    ImageError: The bytes are not an image of these formats, are damaged or
      truncated, or declare too many pixels.
  """
  height, width, channels = shape
  if channels not in (1, 3):
    raise ImageError(f'must be 1 or 3, got {channels}.', subject='channels')
  with _image_errors(data, formats, max_pixels):
    image = _opened(data, formats, max_pixels)
    _load_upright(image, (width, height))
    image = _to_mode(image, 'L' if channels == 1 else 'RGB')
    if image.size != (width, height):
      image = image.resize((width, height), Image.Resampling.LANCZOS)
    return np.asarray(image, np.uint8).reshape(height, width, channels)


def encode_png(image: np.ndarray) -> bytes:
  """Returns the PNG of a uint8 [height, width, 1 or 3] image."""
  image = np.asarray(image)
  if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3):
    raise ImageError(
      'must be uint8 [height, width, 1 or 3], got'
      f' {image.dtype} {list(image.shape)}.'
    )
  buffer = io.BytesIO()
  pixels = image[:, :, 0] if image.shape[2] == 1 else image
  Image.fromarray(pixels).save(buffer, format='PNG')
  return buffer.getvalue()


def _opened(
  data: bytes, formats: Sequence[str], max_pixels: int
) -> Image.Image:
  """Returns an image of which the header was read, and is within bounds."""
  image: Image.Image = Image.open(io.BytesIO(data), formats=tuple(formats))
  if image.width * image.height > max_pixels:
    raise ImageError(
      f'must have at most {max_pixels} pixels, got {image.width} x'
      f' {image.height}; shrink it first.'
    )
  return image


def _load_upright(image: Image.Image, size: tuple[int, int]) -> None:
  """Decodes the first frame and turns it as the camera says, in place.

  Args:
    image: Of `_opened`.
    size: Wanted (width, height) of the upright image; a JPEG is reduced
      towards it.
  """
  if image.format in ('JPEG', 'MPO'):
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    width, height = size[::-1] if orientation in (5, 6, 7, 8) else size
    image.draft(None, (REDUCED_JPEG_KEEPS * width, REDUCED_JPEG_KEEPS * height))
  ImageOps.exif_transpose(image, in_place=True)


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
  """Returns a loaded image as L or RGB, by the rules of 16 bits and alpha."""
  if image.mode in _REFUSED_MODES or (
    image.mode == 'I' and image.format == 'TIFF'  # 32 bits, of no stated range.
  ):
    raise ImageError(
      'must be grey, RGB or CMYK of 8 or 16 bits a channel, got mode'
      f' {image.mode!r}; convert it first.'
    )
  if image.mode.startswith('I'):
    image = _from_sixteen_bits(image)
  if 'transparency' in image.info or image.mode in ('RGBA', 'LA', 'PA'):
    image = image.convert('RGBA')
    backdrop = Image.new('RGBA', image.size, (0, 0, 0, 255))
    image = Image.alpha_composite(backdrop, image)
  return image.convert(mode)


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
  """Returns the high bytes of 16-bit grey; a transparent grey becomes black.

  Pillow's own conversion would clip. Of 16-bit colour Pillow's decoders keep
  the high byte already.
  """
  deep = np.asarray(image)
  high = (deep.clip(0, 65535) >> 8).astype(np.uint8)
  transparent = image.info.get('transparency')
  if isinstance(transparent, int):
    high[deep == transparent] = 0
  return Image.fromarray(high)


@contextlib.contextmanager
def _image_errors(
  data: bytes, formats: Sequence[str], max_pixels: int
) -> Iterator[None]:
  """Turns whatever Pillow raises in the body into an `ImageError`."""
  if not data:
    raise ImageError('must not be empty, got 0 bytes.')
  try:
    yield
  except ImageError:
    raise
  except Image.DecompressionBombError as error:
    raise ImageError(
      f'must have at most {max_pixels} pixels, got far more; shrink it first.'
    ) from error
  except Image.UnidentifiedImageError as error:
    raise ImageError(
      f'must be one of {", ".join(formats)}, got {len(data)} other bytes.'
    ) from error
  except Exception as error:
    raise ImageError(f'must be whole, got a damaged one ({error}).') from error
