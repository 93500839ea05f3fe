"""Images: encoded bytes to uint8 pixels, and pixels to the network's range."""

import io
import warnings

import numpy as np
from PIL import Image
from PIL import ImageOps

# Formats that are tried; Pillow's rarer decoders are never given input.
_FORMATS = ('PNG', 'JPEG', 'WEBP', 'BMP', 'GIF', 'PPM', 'TIFF')

# 64 megapixels: larger than any camera picture that is worth 112 x 112, small
# enough (192 MB as RGB) that one bad file cannot exhaust memory.
MAX_PIXELS = 64_000_000


# Pillow warns of large images; the limit here is max_pixels. Once, not at each
# call: filters are the process', and threads decode.
warnings.simplefilter('ignore', Image.DecompressionBombWarning)


class ImageError(ValueError):
  """Bytes that are not an image that can be used."""


def decode(
  data: bytes,
  shape: tuple[int, int, int],
  *,
  max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
  """Returns the image of some encoded bytes at the wanted shape.

  The size comes from the header and is checked before any pixel is decoded.
  Camera orientation (EXIF) is applied, transparency is laid on black, and the
  image is stretched to the wanted size with an antialiasing filter.

  Args:
    data: PNG, JPEG, WebP, BMP, GIF (first frame), PPM or TIFF.
    shape: Wanted (height, width, channels); channels is 1 (grey) or 3 (RGB).
    max_pixels: Images with more pixels are refused.

  Returns:
    uint8 [height, width, channels].

  Raises:
    ImageError: The bytes are not an image, are damaged or truncated, or
      declare too many pixels.
  """
  height, width, channels = shape
  if channels not in (1, 3):
    raise ImageError(f'channels must be 1 or 3, got {channels}.')
  if not data:
    raise ImageError('image must not be empty, got 0 bytes.')
  try:
    image: Image.Image = Image.open(io.BytesIO(data), formats=_FORMATS)
    pixels = image.width * image.height
    if pixels > max_pixels:
      raise ImageError(
        f'image must have at most {max_pixels} pixels, got {image.width} x'
        f' {image.height}; shrink it first.'
      )
    image = _to_mode(ImageOps.exif_transpose(image), channels)
    if image.size != (width, height):
      image = image.resize((width, height), Image.Resampling.LANCZOS)
  except ImageError:
    raise
  except Image.DecompressionBombError as error:
    raise ImageError(
      f'image must have at most {max_pixels} pixels; shrink it first.'
    ) from error
  except Image.UnidentifiedImageError as error:
    raise ImageError(
      f'image must be one of {", ".join(_FORMATS)}, got {len(data)} other'
      ' bytes.'
    ) from error
  except Exception as error:  # Pillow's decoders raise almost anything.
    raise ImageError(
      f'image must be whole, got a damaged one ({error}).'
    ) from error
  return np.asarray(image, np.uint8).reshape(height, width, channels)


def encode_png(image: np.ndarray) -> bytes:
  """Returns the PNG of a uint8 [height, width, 1 or 3] image."""
  image = np.asarray(image)
  if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3):
    raise ImageError(
      'image must be uint8 [height, width, 1 or 3], got'
      f' {image.dtype} {list(image.shape)}.'
    )
  buffer = io.BytesIO()
  pixels = image[:, :, 0] if image.shape[2] == 1 else image
  Image.fromarray(pixels).save(buffer, format='PNG')
  return buffer.getvalue()


def normalise(images: np.ndarray) -> np.ndarray:
  """Returns uint8 images in the network's range: x / 127.5 - 1.

  Args:
    images: uint8 [..., height, width, channels].

  Returns:
    float32, same shape, in [-1, 1].
  """
  images = np.asarray(images)
  if images.dtype != np.uint8:
    raise ImageError(f'images must be uint8, got {images.dtype}.')
  return images.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _to_mode(image: Image.Image, channels: int) -> Image.Image:
  """Returns the image as L or RGB; 16-bit grey is scaled, alpha on black."""
  if image.mode.startswith('I;16') or image.mode == 'I':
    pixels = np.asarray(image, np.int64)
    image = Image.fromarray((pixels.clip(0, 65535) // 257).astype(np.uint8))
  if 'transparency' in image.info or image.mode in ('RGBA', 'LA', 'PA'):
    image = image.convert('RGBA')
    backdrop = Image.new('RGBA', image.size, (0, 0, 0, 255))
    image = Image.alpha_composite(backdrop, image)
  return image.convert('L' if channels == 1 else 'RGB')
