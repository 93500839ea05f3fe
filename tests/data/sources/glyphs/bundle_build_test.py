import numpy as np
import pytest

from tff_dpemb.data.sources.glyphs import bundle_build
from tff_dpemb.data.sources.glyphs import faces as glyph_faces


def test_draws_around_what_faces_lack(fonts):
  bar, stem = (100, 350, 900, 450), (450, 0, 550, 800)
  square = (200, 200, 700, 700)
  plain = {'一': [bar], '十': [bar, stem], '口': [square]}
  faces = [
    fonts.make('a', plain),
    fonts.make('b', {**plain, '十': []}),  # blank
    fonts.make('c', {**plain, '口': None}),  # placeholder
    fonts.make('d', {**plain, '十': [bar]}),  # one picture for two
    fonts.make('e', plain),
  ]
  made, refused = bundle_build.draw_set(
    faces,
    [ord(character) for character in '一十口'],
    images=3,
    rng=np.random.default_rng(0),
  )
  assert made.face_names == ('a', 'b', 'c', 'd', 'e')
  # 'b' lacks 十, 'c' lacks 口, 'd' draws 一 and 十 alike: both are refused.
  assert refused == 4
  assert 3 not in made.faces[0]
  assert set(made.faces[1].tolist()) <= {0, 2, 4}
  assert 2 not in made.faces[2]
  for cross in made.pixels(1, 2)[0]:
    assert cross[20, 6:34].all() and cross[6:34, 20].all()


def test_too_few_faces(fonts):
  face = fonts.make('a', {'一': [(100, 350, 900, 450)]})
  with pytest.raises(glyph_faces.FaceError, match=r'draw U\+5341, got 0'):
    bundle_build.draw_set(
      [face], [0x4E00, 0x5341], images=1, rng=np.random.default_rng(0)
    )
