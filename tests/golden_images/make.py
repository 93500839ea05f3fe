"""Writes the golden images and what the one decoder makes of them.

    .venv/bin/python tests/golden_images/make.py

The files are committed: they are what is read in tests and by `make bench
NAME=decoder`, whatever encoder a later Pillow brings. `expected.json` holds the
SHA-256 of the pixels at two shapes. A change in it is a change of what models
are trained on and must be looked at; `tests/images_test.py` holds the pixels
against `picture()` and NumPy.
"""

import hashlib
import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent
SHAPES = ((12, 10, 3), (5, 7, 1))

_ORIENTATION = 0x0112
# Where each pass of PNG's Adam7 begins and how far apart its pixels are.
_ADAM7 = (
  (0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2),
  (0, 1, 2, 2), (1, 0, 2, 1),
)  # fmt: skip


def picture() -> np.ndarray:
  """Returns uint8 [12, 10, 3] in which no turn or flip goes unseen."""
  rows, columns = np.mgrid[:12, :10]
  colours = np.stack([20 * columns + 30, 18 * rows + 20, 7 * (rows + columns)])
  image = colours.transpose(1, 2, 0).astype(np.uint8)
  image[:3, :4] = (250, 240, 10)
  return image


def alpha() -> np.ndarray:
  """Returns uint8 [12, 10]: opaque, half transparent and transparent."""
  rows = np.repeat([255, 128, 1, 0], 3)
  return np.repeat(rows[:, np.newaxis], 10, 1).astype(np.uint8)


def stored(image: np.ndarray, orientation: int) -> np.ndarray:
  """Returns how a camera that is held so stores an upright image."""
  if orientation in (5, 6, 7, 8):  # Turned by a quarter: a transpose and ...
    image = image.swapaxes(0, 1)
  if orientation in (2, 3, 7, 8):
    image = image[:, ::-1]
  if orientation in (3, 4, 6, 7):
    image = image[::-1]
  return image


def palette() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns indices [12, 10], colours [n, 3] and an alpha [n] for each."""
  colours, indices = np.unique(
    picture().reshape(-1, 3), axis=0, return_inverse=True
  )
  alphas = np.arange(len(colours)) * 255 // (len(colours) - 1)
  return indices.reshape(12, 10), colours, alphas.astype(np.uint8)


def files() -> dict[str, bytes]:
  """Returns the content of each file by name."""
  image = picture()
  grey = image[..., 0]
  deep = (image.astype(np.uint16) << 8) + 137
  indices, colours, alphas = palette()
  paletted = Image.fromarray(indices.astype(np.uint8), 'P')
  paletted.putpalette(colours.tobytes())
  jpeg = {'quality': 95, 'subsampling': 0, 'optimize': True}
  large = image.repeat(8, 0).repeat(8, 1)
  rest = [Image.fromarray(255 - image), Image.fromarray(image // 2)]
  animated = {'save_all': True, 'append_images': rest, 'duration': 50}
  found = {
    f'orientation_{n}.jpg': _encoded(
      stored(image, n), 'JPEG', exif=_exif(n), **jpeg
    )
    for n in range(1, 9)
  }
  return found | {
    'orientation_6_reduced.jpg': _encoded(
      stored(large, 6), 'JPEG', exif=_exif(6), **jpeg
    ),
    'orientation_6.png': _encoded(stored(image, 6), 'PNG', exif=_exif(6)),
    'orientation_3.webp': _encoded(
      stored(image, 3), 'WEBP', exif=_exif(3), lossless=True
    ),
    'grey_16.png': _encoded(deep[..., 0], 'PNG'),
    'colour_16.png': _png(
      struct.pack('>IIBBBBB', 10, 12, 16, 2, 0, 0, 0),
      b''.join(b'\0' + row.astype('>u2').tobytes() for row in deep),
    ),
    'one_bit.png': _encoded(grey > 100, 'PNG'),
    'palette_transparent.png': _encoded(
      paletted, 'PNG', transparency=alphas.tobytes()
    ),
    'grey_alpha.png': _encoded(np.dstack([grey, alpha()]), 'PNG'),
    'colour_alpha.png': _encoded(np.dstack([image, alpha()]), 'PNG'),
    'interlaced.png': _interlaced(image),
    'grey.jpg': _encoded(grey, 'JPEG', quality=95, optimize=True),
    'cmyk.jpg': _encoded(
      Image.fromarray(image).convert('CMYK'), 'JPEG', quality=95, optimize=True
    ),
    'progressive.jpg': _encoded(image, 'JPEG', progressive=True, **jpeg),
    'lossless_alpha.webp': _encoded(
      np.dstack([image, alpha()]), 'WEBP', lossless=True, exact=True
    ),
    'animated.webp': _encoded(image, 'WEBP', lossless=True, **animated),
    'animated.gif': _encoded(image, 'GIF', **animated),
    'colour.bmp': _encoded(image, 'BMP'),
    'colour.ppm': _encoded(image, 'PPM'),
    'colour.tiff': _encoded(image, 'TIFF', compression='tiff_lzw'),
  }


def main() -> None:
  from tff_dpemb import images

  expected = {}
  for name, content in sorted(files().items()):
    (FOLDER / name).write_bytes(content)
    expected[name] = [
      hashlib.sha256(images.decode(content, shape).tobytes()).hexdigest()
      for shape in SHAPES
    ]
  table = {'shapes': SHAPES, 'sha256': expected}
  (FOLDER / 'expected.json').write_text(json.dumps(table, indent=2) + '\n')


def _encoded(image: np.ndarray | Image.Image, kind: str, **options) -> bytes:
  if not isinstance(image, Image.Image):
    image = Image.fromarray(np.ascontiguousarray(image))
  buffer = io.BytesIO()
  image.save(buffer, kind, **options)
  return buffer.getvalue()


def _exif(orientation: int) -> Image.Exif:
  exif = Image.Exif()
  exif[_ORIENTATION] = orientation
  return exif


def _interlaced(image: np.ndarray) -> bytes:
  """Returns the Adam7 PNG of uint8 [H, W, 3]; Pillow does not write them."""
  rows = b''.join(
    b'\0' + row.tobytes()
    for top, left, down, across in _ADAM7
    for row in image[top::down, left::across]
    if row.size
  )
  height, width = image.shape[:2]
  return _png(struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 1), rows)


def _png(header: bytes, rows: bytes) -> bytes:
  def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return (
      struct.pack('>I', len(content))
      + kind
      + content
      + struct.pack('>I', checksum)
    )

  return (
    b'\x89PNG\r\n\x1a\n'
    + chunk(b'IHDR', header)
    + chunk(b'IDAT', zlib.compress(rows, 9))
    + chunk(b'IEND', b'')
  )


if __name__ == '__main__':
  main()
