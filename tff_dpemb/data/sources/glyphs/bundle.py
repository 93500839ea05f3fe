"""The bundled glyphs: clean one-bit pictures of characters, in one file.

`bundle.xz` holds 3 000 kanji and 1 000 Hangul syllables, each drawn in
12 faces, 40 x 40 pixels, black and white. `bundle_build` makes it from
freely licensed fonts (`LICENCES.md`); nuisance is added when a data set
is made from it (`source`).

Format, inside one .xz stream (which carries its own check sum): a line of
JSON (format, size, images, sets and face names); then for each set the code
points (uint16, little endian) and face numbers (uint8 [identities, images]);
then for each set the pixels, eight to a byte, in vertical strips one byte
wide (uint8 [identities, images, size / 8, size]): what stands above predicts
best, so strips compress better than rows.
"""

import dataclasses
import importlib.resources
import json
import lzma
import os
import pathlib
from collections.abc import Mapping

import numpy as np

FORMAT = 'dpemb.glyph_bundle/1'
FILE_NAME = 'bundle.xz'

_FILTERS = (
  {
    'id': lzma.FILTER_LZMA2,
    'preset': 9 | lzma.PRESET_EXTREME,
    'dict_size': 1 << 24,
    'lc': 4,
    'lp': 0,
    'pb': 0,
  },
)


class BundleError(RuntimeError):
  """A glyph bundle that is missing or damaged."""


@dataclasses.dataclass(frozen=True)
class GlyphSet:
  """Clean glyphs of one character set.

  Attributes:
    code_points: int32 [identities].
    face_names: Names of the faces that `faces` counts.
    faces: uint8 [identities, images]: which face drew each glyph; the faces
      of one identity differ.
    strips: uint8 [identities, images, size / 8, size]: packed pixels.
  """

  code_points: np.ndarray
  face_names: tuple[str, ...]
  faces: np.ndarray
  strips: np.ndarray

  def pixels(self, start: int, stop: int) -> np.ndarray:
    """Returns the glyphs of some identities, unpacked.

    Returns:
      uint8 [stop - start, images, size, size], 1 = ink.
    """
    return np.unpackbits(self.strips[start:stop].transpose(0, 1, 3, 2), axis=-1)


def pack(pixels: np.ndarray) -> np.ndarray:
  """Returns the strips of bool glyphs [identities, images, size, size]."""
  return np.ascontiguousarray(
    np.packbits(pixels, axis=-1).transpose(0, 1, 3, 2)
  )


def encode(sets: Mapping[str, GlyphSet]) -> bytes:
  """Returns the bundle file of some glyph sets, which share one shape."""
  first = next(iter(sets.values()))
  header = {
    'format': FORMAT,
    'size': first.strips.shape[3],
    'images': first.strips.shape[1],
    'sets': {
      name: {
        'identities': len(glyphs.code_points),
        'faces': list(glyphs.face_names),
      }
      for name, glyphs in sets.items()
    },
  }
  parts = [json.dumps(header, ensure_ascii=False).encode() + b'\n']
  for glyphs in sets.values():
    parts.append(glyphs.code_points.astype('<u2').tobytes())
    parts.append(glyphs.faces.astype(np.uint8).tobytes())
  parts += [glyphs.strips.tobytes() for glyphs in sets.values()]
  return lzma.compress(
    b''.join(parts), format=lzma.FORMAT_XZ, filters=list(_FILTERS)
  )


def decode(data: bytes) -> dict[str, GlyphSet]:
  """Returns the glyph sets of a bundle file, by name.

  Raises:
    BundleError: The file is damaged or of another format.
  """
  try:
    content = lzma.decompress(data, format=lzma.FORMAT_XZ)
    line, _, body = content.partition(b'\n')
    header = json.loads(line)
    if header['format'] != FORMAT:
      raise ValueError(f'format {header["format"]!r} is not {FORMAT!r}')
    return _sets_from(header, body)
  except (lzma.LZMAError, ValueError, KeyError, TypeError) as error:
    raise BundleError(
      f'the glyph bundle is damaged ({error}); install the package again, or'
      ' make it with python -m tff_dpemb.data.sources.glyphs.bundle_build.'
    ) from error


def load(path: str | os.PathLike[str] | None = None) -> dict[str, GlyphSet]:
  """Returns the glyph sets 'kanji' and 'hangul' of the packaged bundle.

  Args:
    path: Another bundle file instead.

  Raises:
    BundleError: The file is missing or damaged.
  """
  if path is None:
    file = importlib.resources.files(__package__).joinpath(FILE_NAME)
  else:
    file = pathlib.Path(path)
  try:
    data = file.read_bytes()
  except OSError as error:
    raise BundleError(
      f'the glyph bundle {str(file)!r} must be readable ({error.strerror});'
      ' install the package again.'
    ) from error
  return decode(data)


def _sets_from(header: dict, body: bytes) -> dict[str, GlyphSet]:
  size, images = header['size'], header['images']
  offset = 0

  def take(dtype: str, *shape: int) -> np.ndarray:
    nonlocal offset
    count = int(np.prod(shape))
    array = np.frombuffer(body, dtype, count, offset).reshape(shape)
    offset += array.nbytes
    return array

  ids = {
    name: (
      take('<u2', item['identities']).astype(np.int32),
      take('u1', item['identities'], images),
    )
    for name, item in header['sets'].items()
  }
  sets = {
    name: GlyphSet(
      code_points=ids[name][0],
      face_names=tuple(item['faces']),
      faces=ids[name][1],
      strips=take('u1', item['identities'], images, size // 8, size),
    )
    for name, item in header['sets'].items()
  }
  if offset != len(body):
    raise ValueError(f'{len(body) - offset} bytes too many')
  return sets
