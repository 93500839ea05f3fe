import numpy as np
import pytest

from tff_dpemb.data.sources.glyphs import faces
from tff_dpemb.data.sources.glyphs import renderer as glyph_renderer

_BAR = [(100, 350, 900, 450)]


@pytest.fixture
def renderer(fonts):
  face = fonts.make(
    'plain',
    {
      '一': _BAR,
      '十': [*_BAR, (450, 0, 550, 800)],
      '口': [],  # blank
      '龍': None,  # the placeholder's picture
    },
  )
  return glyph_renderer.FaceRenderer(face, em=40)


class TestDraw:
  def test_ink_is_centred(self, renderer):
    glyph = renderer.draw(ord('一'), canvas=40)
    assert glyph.shape == (40, 40)
    assert glyph.dtype == np.uint8
    expected = np.zeros((40, 40), np.uint8)
    expected[18:22, 4:36] = 255  # 4 x 32 pixels of an em of 40
    np.testing.assert_allclose(glyph, expected, atol=64)
    assert abs(glyph.sum() / 255 - 128) < 2

  def test_canvas_and_em(self, fonts):
    face = fonts.make('plain', {'一': _BAR})
    glyph = glyph_renderer.FaceRenderer(face, em=80).draw(ord('一'), canvas=96)
    assert glyph.shape == (96, 96)
    assert abs(glyph.sum() / 255 - 64 * 8) < 6

  @pytest.mark.parametrize('character', ['口', '龍', '亜'])
  def test_what_the_face_cannot_draw(self, renderer, character):
    assert renderer.draw(ord(character), canvas=40) is None

  def test_covers_is_the_fonts_claim(self, renderer):
    assert renderer.covers(ord('龍'))
    assert not renderer.covers(ord('亜'))

  def test_a_blank_placeholder_hides_nothing(self, fonts):
    face = fonts.make('open', {'一': _BAR, '口': []}, placeholder=False)
    renderer = glyph_renderer.FaceRenderer(face, em=40)
    assert renderer.draw(ord('一'), canvas=40) is not None
    assert renderer.draw(ord('口'), canvas=40) is None

  def test_ink_larger_than_the_canvas_is_shrunk(self, fonts):
    face = fonts.make('wide', {'一': [(-500, 300, 1500, 500)]})
    glyph = glyph_renderer.FaceRenderer(face, em=40).draw(ord('一'), canvas=40)
    columns = np.flatnonzero(glyph.max(axis=0) > 128)
    assert 38 <= len(columns) <= 40
    rows = np.flatnonzero(glyph.max(axis=1) > 128)
    assert 3 <= len(rows) <= 5  # A tenth: the proportions stay.

  def test_damaged_font(self, fonts):
    face = fonts.make('plain', {'一': _BAR})
    with open(face.path, 'r+b') as file:
      file.truncate(60)
    with pytest.raises(faces.FaceError, match='plain.ttf.*fonts-test'):
      glyph_renderer.FaceRenderer(face, em=40)


class TestOneBit:
  def test_black_and_white_stays(self):
    glyph = np.zeros((10, 10), np.uint8)
    glyph[2:7, 3:5] = 255
    np.testing.assert_array_equal(glyph_renderer.one_bit(glyph), glyph > 0)

  def test_blank(self):
    assert not glyph_renderer.one_bit(np.zeros((10, 10), np.uint8)).any()

  def test_hairline_between_two_rows_stays_one_line(self):
    glyph = np.zeros((12, 12), np.uint8)
    glyph[:, 2:5] = 255  # a thick stem, most of the ink
    glyph[5:7, 5:] = 70  # a hairline that straddles two rows
    bits = glyph_renderer.one_bit(glyph)
    np.testing.assert_array_equal(bits[:, 2:5], True)
    assert (bits[:, 7:11].sum(axis=0) == 1).all()

  def test_soft_edge_of_a_thick_stroke_does_not_grow(self):
    glyph = np.zeros((12, 12), np.uint8)
    glyph[3:9] = 255
    glyph[2] = glyph[9] = 75
    bits = glyph_renderer.one_bit(glyph)
    assert np.flatnonzero(bits.all(axis=1)).tolist() == [3, 4, 5, 6, 7, 8]
