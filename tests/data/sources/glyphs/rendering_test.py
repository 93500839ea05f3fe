import numpy as np
import pytest

from tff_dpemb.data.sources.glyphs import faces as glyph_faces
from tff_dpemb.data.sources.glyphs import rendering

_PARTS = {
  '一': [(100, 350, 900, 450)],
  '十': [(100, 350, 900, 450), (450, 0, 550, 800)],
  '口': [(200, 100, 800, 200), (200, 600, 800, 700), (200, 100, 300, 700)],
}
_POINTS = [ord(character) for character in _PARTS] * 15  # two chunks


@pytest.fixture
def faces(fonts):
  return [fonts.make(name, _PARTS) for name in 'abc']


def _rendered(faces, **options):
  chunks = rendering.render(faces, _POINTS, images=3, **options)
  return np.concatenate(list(chunks))


def test_shape_and_content(faces):
  images = _rendered(faces, seed=0, processes=1)
  assert images.shape == (45, 3, 28, 28, 1)
  assert images.dtype == np.uint8
  # A cross has more ink than a bar.
  ink = images.astype(float).mean(axis=(1, 2, 3, 4))
  assert ink[0] < ink[1]


def test_processes_do_not_change_the_result(faces):
  np.testing.assert_array_equal(
    _rendered(faces, seed=0, processes=1), _rendered(faces, seed=0, processes=2)
  )


def test_the_seed_does(faces):
  assert not np.array_equal(
    _rendered(faces, seed=0, processes=1), _rendered(faces, seed=1, processes=1)
  )


@pytest.mark.parametrize('processes', [1, 2])
def test_a_character_that_too_few_faces_draw(fonts, faces, processes):
  poor = [*faces[:2], fonts.make('poor', {**_PARTS, '口': []})]
  with pytest.raises(glyph_faces.FaceError, match=r'draw U\+53E3, got 2'):
    _rendered(poor, seed=0, processes=processes)
