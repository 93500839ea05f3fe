"""The noise: scale, symmetry, freshness, distance to the Gaussian."""

import numpy as np
import pytest
from scipy import stats

from tff_dpemb.clustering import noise
from tff_dpemb.clustering import queries


def sums(value=0, dim=3):
  return {
    'counts': np.full(4, value, np.int64),
    'scatter': np.full((2, dim, dim), value, np.int64),
    'sums': np.full((4, dim), value, np.int64),
  }


MULTIPLIERS = {'counts': 2.0, 'sums': 0.5, 'scatter': 1.0}


@pytest.mark.parametrize(
  'source', [noise.DiscreteGaussian(), noise.SeededGaussian(1)]
)
@pytest.mark.parametrize('scale', [3.0, 2.0**36])
def test_standard_deviation(source, scale):
  # 4000 draws: the sample deviation is within 6 % but for 1 in 10^7 (chi^2).
  drawn = source.draw(scale, 4000)
  assert drawn.dtype == np.int64
  assert abs(np.std(drawn) / scale - 1) < 0.06
  assert abs(np.mean(drawn)) < 5.5 * scale / np.sqrt(4000)


def test_production_noise_is_fresh_and_certifiable():
  source = noise.DiscreteGaussian()
  first, second = source.draw(1e9, 20), source.draw(1e9, 20)
  assert (first != second).all()
  assert source.certifiable


def test_seeded_noise_is_for_tests():
  first = noise.SeededGaussian(3).draw(1e6, 20)
  second = noise.SeededGaussian(3).draw(1e6, 20)
  np.testing.assert_array_equal(first, second)
  assert not noise.SeededGaussian(3).certifiable


def test_scatter_noise_is_symmetric_and_isotropic():
  dim = 60
  zero = {'scatter': np.zeros((1, dim, dim), np.int64)}
  noisy = noise.add_noise(
    zero, {'scatter': 1.0}, source=noise.SeededGaussian(0)
  )['scatter'][0]
  np.testing.assert_array_equal(noisy, noisy.T)
  off = noisy[np.triu_indices(dim, 1)] / queries.SCATTER_STEPS
  # 1770 draws of deviation 1/sqrt(2): within 10 % but for 1 in 10^8.
  assert abs(off.std() * np.sqrt(2) - 1) < 0.1
  assert abs((np.diag(noisy) / queries.SCATTER_STEPS).std() - 1) < 0.5


def test_noise_is_added_and_input_is_kept():
  before = sums(10**12)
  noisy = noise.add_noise(before, MULTIPLIERS, source=noise.SeededGaussian(0))
  assert (before['sums'] == 10**12).all()
  assert all((noisy[name] != before[name]).all() for name in before)
  assert noisy.keys() == before.keys()


@pytest.mark.parametrize('scale', [2.0, 5.0, 40.0])
def test_distance_bound_covers_the_exact_distance(scale):
  grid = np.arange(-int(12 * scale), int(12 * scale) + 1)
  rounded = stats.norm.cdf((grid + 0.5) / scale) - stats.norm.cdf(
    (grid - 0.5) / scale
  )
  discrete = np.exp(-0.5 * (grid / scale) ** 2)
  discrete /= discrete.sum()
  exact = 0.5 * np.abs(rounded - discrete).sum()
  bound = noise.distance_to_gaussian(scale, 1)
  assert exact <= bound <= 10 * exact
