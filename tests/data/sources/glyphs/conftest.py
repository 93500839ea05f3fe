"""Small fonts, made on the spot: the tests need none of the host's."""

import dataclasses

import pytest
from fontTools import fontBuilder
from fontTools.pens import ttGlyphPen

from tff_dpemb.data.sources.glyphs import faces


@dataclasses.dataclass(frozen=True)
class FontMaker:
  """Writes TrueType fonts of rectangles into a directory."""

  directory: object

  def make(self, name, rectangles, *, character_set='kanji', placeholder=True):
    """Returns the installed face of a new font.

    Args:
      name: File name without suffix.
      rectangles: For each character a list of (left, bottom, right, top) in
        thousandths of the em; an empty list is a blank glyph; None maps the
        character to a copy of the placeholder.
      character_set: Of the face.
      placeholder: Whether .notdef is a box (else it is blank).
    """
    box = [(100, 0, 900, 800)] if placeholder else []
    outlines = {'.notdef': box}
    cmap = {}
    for character, parts in rectangles.items():
      glyph = f'u{ord(character):04X}'
      outlines[glyph] = box if parts is None else parts
      cmap[ord(character)] = glyph
    builder = fontBuilder.FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(outlines))
    builder.setupCharacterMap(cmap)
    builder.setupGlyf(
      {glyph: _drawn(parts) for glyph, parts in outlines.items()}
    )
    builder.setupHorizontalMetrics({glyph: (1000, 0) for glyph in outlines})
    builder.setupHorizontalHeader(ascent=880, descent=-120)
    builder.setupNameTable({'familyName': name, 'styleName': 'Regular'})
    builder.setupOS2()
    builder.setupPost()
    path = self.directory / f'{name}.ttf'
    builder.save(path)
    face = faces.Face(
      character_set=character_set,
      package='fonts-test',
      file=f'usr/share/fonts/{name}.ttf',
      index=0,
      name=name,
      bundled=True,
      licence='CC0',
      copyright='none',
    )
    return faces.InstalledFace(face, str(path))


def _drawn(rectangles):
  pen = ttGlyphPen.TTGlyphPen(None)
  for left, bottom, right, top in rectangles:
    pen.moveTo((left, bottom))
    for point in ((left, top), (right, top), (right, bottom)):
      pen.lineTo(point)
    pen.closePath()
  return pen.glyph()


@pytest.fixture
def fonts(tmp_path):
  directory = tmp_path / 'fonts'
  directory.mkdir()
  return FontMaker(directory)
