import numpy as np
import pytest

from tff_dpemb.data.sources.glyphs import nuisance


def _rng(seed=0):
  return np.random.default_rng(seed)


def _dots(size=40):
  """A glyph with a heavy dot right of the centre and a light one below."""
  glyph = np.zeros((1, size, size), np.uint8)
  unit = size // 40
  glyph[0, 16 * unit : 24 * unit, 30 * unit : 38 * unit] = 1
  glyph[0, 34 * unit : 38 * unit, 18 * unit : 22 * unit] = 1
  return glyph


def test_shape_type_and_range():
  images = nuisance.distort(np.repeat(_dots(), 300, 0), rng=_rng())
  assert images.shape == (300, 28, 28, 1)
  assert images.dtype == np.uint8
  assert images.max() > 200


def test_every_image_differs_and_the_seed_repeats():
  glyphs = np.repeat(_dots(), 40, 0)
  images = nuisance.distort(glyphs, rng=_rng(3))
  assert len({image.tobytes() for image in images}) == 40
  again = nuisance.distort(glyphs, rng=_rng(3))
  np.testing.assert_array_equal(images, again)


def test_blank_glyph_is_offset_and_noise():
  # 500 blank images: offsets uniform in 0..40, noise 14, clipped at 0 and
  # floored after rounding. Mean of max(0, U + 14 Z) by quadrature: 21.28.
  images = nuisance.distort(np.zeros((500, 40, 40), np.uint8), rng=_rng())
  u = np.linspace(0.05, 39.95, 400)[:, None]
  z = np.linspace(-5, 5, 2001)[None]
  weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
  expected = (np.maximum(u + 14 * z, 0) * weight).sum(axis=1).mean()
  # The offset's standard error is 11.5 / sqrt(500) = 0.52; five of them.
  assert abs(images.mean() - expected) < 5 * 0.52


def test_the_undistorted_map_halves_the_frame():
  glyph = np.zeros((1, 40, 40), np.uint8)
  glyph[0, 10:30, 10:30] = 1
  identity = np.zeros((1, 2, 3), np.float32)
  identity[0, 0, 0] = identity[0, 1, 1] = 1
  boxes = nuisance._box_mean(glyph, width=2, ink=1)
  image = nuisance._sample(boxes, identity)[0]
  expected = np.zeros((28, 28))
  expected[9:19, 9:19] = 1  # 20 of 56 pixels in the middle, halved
  np.testing.assert_allclose(image, expected, atol=1e-6)


@pytest.mark.parametrize(('size', 'width'), [(40, 2), (80, 4), (160, 8)])
def test_resolution_does_not_change_the_picture(size, width):
  glyphs = _dots(size)
  identity = np.zeros((1, 2, 3), np.float32)
  identity[0, 0, 0] = identity[0, 1, 1] = size / 40
  image = nuisance._sample(
    nuisance._box_mean(glyphs, width=width, ink=1), identity
  )[0]
  reference = np.zeros((28, 28))
  # The frame is 8 pixels wider than the em on each side: (16 + 8) / 2 = 12.
  reference[12:16, 19:23] = 1
  reference[21:23, 13:15] = 1
  np.testing.assert_allclose(image, reference, atol=1e-6)


def test_maps_invert_the_drawn_ranges():
  # A thousand maps: determinants give scale^2 * aspect, translations the
  # shift, and both stay within the declared ranges and come near their ends.
  maps = nuisance._draw_maps(1000, _rng(1))
  linear = np.linalg.inv(maps[:, :, :2].astype(np.float64))
  area = np.linalg.det(linear)
  assert 0.85**2 * 0.88 <= area.min() < 0.72
  assert 1.55 < area.max() <= 1.25**2 * 1.12
  shift = -np.einsum('nij,nj->ni', linear, maps[:, :, 2])
  assert 2.9 < np.abs(shift).max() <= 3 + 1e-5
  # The first column is the turned and stretched x axis.
  angle = np.rad2deg(np.arctan2(linear[:, 1, 0], linear[:, 0, 0]))
  assert 10.5 < np.abs(angle).max() <= 11 + 1e-6


def test_contrast_range():
  full = np.full((400, 40, 40), 255, np.uint8)
  images = nuisance.distort(full, rng=_rng(2))
  centre = images[:, 12:16, 12:16, 0].mean(axis=(1, 2))
  # 0.6 * 255 = 153 is the dimmest ink; the brightest is clipped at 255.
  assert 153 - 20 < centre.min() < 175
  assert centre.max() == 255
