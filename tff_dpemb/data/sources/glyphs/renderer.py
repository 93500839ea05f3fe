"""Draws one character in one face, and knows when the face cannot.

A font may lack a character (no cmap entry), map it to `.notdef`, draw nothing,
or draw one placeholder box for many characters. Each of these would give two
identities the same picture, so the renderer answers None for them and the
caller takes another face.
"""

import logging

import numpy as np
from fontTools import ttLib
from PIL import Image
from PIL import ImageDraw
from PIL import ImageFont
from scipy import ndimage

from tff_dpemb.data.sources.glyphs import faces

# Glyphs are drawn with an em of at least this many pixels and averaged down:
# embedded bitmap strikes and hinting of small sizes never show.
_DRAWN_EM = 160

# Code points that no font should draw: whatever appears for one of them is
# the font's placeholder.
_NEVER_ASSIGNED = ('\U0010fffd', '\uffff', '\ufdd0')

# Coverage above its surroundings from which a thin line is drawn.
_HAIRLINE = 64

logging.getLogger('fontTools').setLevel(logging.ERROR)


class FaceRenderer:
  """Draws characters in one face on square canvases, white on black."""

  def __init__(self, installed: faces.InstalledFace, *, em: int):
    """Opens the font.

    Args:
      installed: The face and its file.
      em: Height of the em square in pixels of the result.

    Raises:
      glyph_faces.FaceError: The file is not a font that can be read.
    """
    self.face = installed.face
    self._em = em
    self._oversampling = max(1, -(-_DRAWN_EM // em))
    self._path = installed.path
    try:
      self._font = self._font_of_size(em * self._oversampling)
      with ttLib.TTFont(
        installed.path, fontNumber=installed.face.index, lazy=True
      ) as font:
        # Names by number: reading the real ones takes seconds in some fonts.
        count = font['maxp'].numGlyphs
        font.setGlyphOrder([f'glyph{index}' for index in range(count)])
        cmap = font.getBestCmap() or {}
    except (OSError, ttLib.TTLibError) as error:
      raise faces.FaceError(
        f'font {installed.path!r} must be readable ({error}); install its'
        f' package {installed.face.package} again.'
      ) from error
    # Glyph 0 is .notdef by specification, whatever its name.
    self._covered = frozenset(
      point for point, name in cmap.items() if name != 'glyph0'
    )
    self._placeholders = {
      _key_of(_ink(self._font, text))
      for text in _NEVER_ASSIGNED
      if ord(text) not in self._covered
    }

  def covers(self, code_point: int) -> bool:
    """Returns whether the font claims to draw the character."""
    return code_point in self._covered

  def draw(self, code_point: int, *, canvas: int) -> np.ndarray | None:
    """Returns the glyph's coverage, centred by its ink, or None.

    Args:
      code_point: The character.
      canvas: Side of the square result in pixels. A glyph whose ink is larger
        than the canvas is drawn smaller, so that it fits.

    Returns:
      uint8 [canvas, canvas], 255 = ink; None if the face has no such glyph
      (not in its cmap, blank, or its placeholder).
    """
    if code_point not in self._covered:
      return None
    text = chr(code_point)
    ink = _ink(self._font, text)
    if not ink.size or _key_of(ink) in self._placeholders:
      return None
    room = canvas * self._oversampling
    if max(ink.shape) > room:
      size = int(self._em * self._oversampling * room / max(ink.shape))
      ink = _ink(self._font_of_size(size), text)[:room, :room]
    height, width = ink.shape
    image = np.zeros((room, room), np.uint8)
    top, left = (room - height) // 2, (room - width) // 2
    image[top : top + height, left : left + width] = ink
    return np.asarray(Image.fromarray(image).reduce(self._oversampling))

  def _font_of_size(self, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(
      self._path,
      size,
      index=self.face.index,
      layout_engine=ImageFont.Layout.BASIC,
    )


def one_bit(coverage: np.ndarray) -> np.ndarray:
  """Returns the black-and-white glyph nearest to a grey one, as bool.

  A threshold that keeps the amount of ink (a fixed one would close the
  counters of bold faces), and on top of it the crest of every stroke that is
  thinner than a pixel (the hairlines of Mincho faces stay connected).

  Args:
    coverage: uint8 [size, size], 255 = ink.
  """
  ink = round(int(coverage.sum(dtype=np.int64)) / 255)
  ranked = np.sort(coverage, axis=None)[::-1]
  glyph = coverage >= np.clip(ranked[max(ink - 1, 0)], 80, 160)
  levels = coverage.astype(np.int16)
  for axis, size in ((0, (3, 1)), (1, (1, 3))):
    # What an opening across the stroke removes is at most two pixels wide.
    opened = ndimage.grey_opening(levels, size=size, mode='constant')
    crest = (levels > np.roll(levels, 1, axis)) & (
      levels >= np.roll(levels, -1, axis)
    )
    glyph = glyph | (crest & (levels - opened >= _HAIRLINE))
  return glyph


def _ink(font: ImageFont.FreeTypeFont, text: str) -> np.ndarray:
  """Returns the coverage of a character, cropped to its ink; size 0: blank."""
  left, top, right, bottom = map(int, font.getbbox(text))
  # A pixel of margin: the box is that of the outline, rounded.
  image = Image.new('L', (right - left + 2, bottom - top + 2))
  ImageDraw.Draw(image).text((1 - left, 1 - top), text, fill=255, font=font)
  box = image.getbbox()
  return np.asarray(image.crop(box) if box else Image.new('L', (0, 0)))


def _key_of(ink: np.ndarray) -> tuple[tuple[int, ...], bytes]:
  return ink.shape, ink.tobytes()
