"""Makes the glyph bundle and its licence list from installed fonts.

  python -m tff_dpemb.data.sources.glyphs.bundle_build --fonts /usr/share/fonts

Run it when the faces or the characters change, and commit both outputs. The
same fonts give the same bytes.
"""

import argparse
import collections
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from tff_dpemb.artifacts import storage
from tff_dpemb.data.sources.glyphs import bundle
from tff_dpemb.data.sources.glyphs import classes
from tff_dpemb.data.sources.glyphs import faces as glyph_faces
from tff_dpemb.data.sources.glyphs import licences
from tff_dpemb.data.sources.glyphs import renderer as glyph_renderer

_SIZE = 40  # pixels; the largest size that keeps the bundle under 3 MB
_IMAGES = 12  # faces an identity
_KANJI = 3000
_HANGUL = 1000
_SEED = 20160811
_MAX_BYTES = 3_000_000


def kanji_of_bundle() -> list[int]:
  """Returns 3 000 kanji: JIS level 1, and level 2 of the fullest radicals."""
  first = classes.jis_kanji((1,))
  counts = collections.Counter(map(classes.radical_index, first))
  second = sorted(
    classes.jis_kanji((2,)),
    key=lambda point: (-counts[classes.radical_index(point)], point),
  )
  return sorted(first + second[: _KANJI - len(first)])


def hangul_of_bundle() -> list[int]:
  """Returns 1 000 syllables of KS X 1001, drawn with a fixed seed."""
  syllables = classes.ks_hangul()
  rng = np.random.default_rng(_SEED)
  return sorted(rng.choice(syllables, _HANGUL, replace=False).tolist())


def draw_set(
  faces: Sequence[glyph_faces.InstalledFace],
  code_points: Sequence[int],
  *,
  images: int,
  rng: np.random.Generator,
) -> tuple[bundle.GlyphSet, int]:
  """Draws each character in `images` different faces, in random order.

  Returns:
    The glyphs, and how many drawings were refused: a face lacks the character,
    draws nothing, or draws one picture for several of the characters.

  Raises:
    glyph_faces.FaceError: Fewer than `images` faces draw some character.
  """
  drawn = [_drawn_by(face, code_points) for face in faces]
  pixels = np.zeros((len(code_points), images, _SIZE, _SIZE), bool)
  used = np.zeros((len(code_points), images), np.uint8)
  for row, point in enumerate(code_points):
    order = rng.permutation(len(faces)).tolist()
    able = [face for face in order if row in drawn[face]][:images]
    if len(able) < images:
      raise glyph_faces.FaceError(
        f'{images} faces must draw U+{point:04X}, got {len(able)}; install'
        ' more fonts.'
      )
    pixels[row] = np.stack([drawn[face][row] for face in able])
    used[row] = able
  return (
    bundle.GlyphSet(
      code_points=np.asarray(code_points, np.int32),
      face_names=tuple(face.face.name for face in faces),
      faces=used,
      strips=bundle.pack(pixels),
    ),
    len(faces) * len(code_points) - sum(map(len, drawn)),
  )


def _drawn_by(
  face: glyph_faces.InstalledFace, code_points: Sequence[int]
) -> dict[int, np.ndarray]:
  """Returns the glyphs of a face by row of `code_points`, each of its own."""
  renderer = glyph_renderer.FaceRenderer(face, em=_SIZE)
  glyphs = {}
  for row, point in enumerate(code_points):
    coverage = renderer.draw(point, canvas=_SIZE)
    if coverage is not None:
      glyphs[row] = glyph_renderer.one_bit(coverage)
  pictures = collections.Counter(glyph.tobytes() for glyph in glyphs.values())
  return {
    row: glyph
    for row, glyph in glyphs.items()
    if pictures[glyph.tobytes()] == 1
  }


def main(arguments: Sequence[str] | None = None) -> int:
  """Builds the bundle; returns the exit status."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--fonts', action='append', default=[], metavar='DIR')
  parser.add_argument(
    '--output',
    default=pathlib.Path(__file__).parent,
    type=pathlib.Path,
    metavar='DIR',
    help='where to write (default: beside this module)',
  )
  options = parser.parse_args(arguments)
  sets: dict[str, bundle.GlyphSet] = {}
  used: list[glyph_faces.Face] = []
  for name, points in (
    ('kanji', kanji_of_bundle()),
    ('hangul', hangul_of_bundle()),
  ):
    known = [face for face in glyph_faces.known_faces(name) if face.bundled]
    faces = glyph_faces.require_faces(
      name, len(known), directories=options.fonts, bundled_only=True
    )
    used += [item.face for item in faces]
    sets[name], refused = draw_set(
      faces,
      points,
      images=_IMAGES,
      rng=np.random.default_rng((_SEED, len(sets))),
    )
    print(
      f'{name}: {len(points)} characters x {_IMAGES} of {len(faces)} faces,'
      f' {refused} drawings refused'
    )
  data = bundle.encode(sets)
  if len(data) > _MAX_BYTES:
    print(
      f'the bundle must be at most {_MAX_BYTES} bytes, got {len(data)};'
      ' draw fewer characters.',
      file=sys.stderr,
    )
    return 1
  storage.atomic_write_bytes(options.output / bundle.FILE_NAME, data)
  storage.atomic_write_bytes(
    options.output / licences.FILE_NAME,
    licences.page(used).encode(),
  )
  print(f'{options.output / bundle.FILE_NAME}: {len(data)} bytes')
  return 0


if __name__ == '__main__':
  sys.exit(main())
