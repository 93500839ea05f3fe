"""Epsilon of two Gaussians."""

import math

import numpy as np
import pytest
from scipy import stats

from tff_dpemb.privacy.audit import gaussians


class TestGaussians:
  def test_equal_deviations_are_gaussian_dp(self):
    for mu in (0.1, 1.0, 4.0):
      assert gaussians.epsilon_of_gaussians(
        (mu * 3, 3.0), (0.0, 3.0), delta=1e-5
      ) == pytest.approx(gaussians.gaussian_epsilon(mu, 1e-5), abs=1e-4)

  def test_different_deviations_by_integration(self):
    """delta(epsilon) = integral of max(0, p - e^epsilon q), numerically."""
    one, other = (0.3, 1.2), (0.0, 1.0)
    epsilon = gaussians.epsilon_of_gaussians(one, other, delta=0.01)
    x = np.linspace(-15, 15, 400_001)
    p, q = stats.norm.pdf(x, *one), stats.norm.pdf(x, *other)
    step = x[1] - x[0]
    deltas = [
      np.maximum(0, a - math.exp(epsilon) * b).sum() * step
      for a, b in ((p, q), (q, p))
    ]
    assert max(deltas) == pytest.approx(0.01, rel=1e-3)

  @pytest.mark.parametrize(
    ('one', 'other', 'expected'),
    [
      ((1.0, 1.0), (1.0, 1.0), 0.0),
      ((1.0, 0.0), (1.0, 0.0), 0.0),
      ((1.0, 0.0), (2.0, 0.0), math.inf),
      ((1.0, 1e-9), (2.0, 1e-9), math.inf),
    ],
  )
  def test_edges(self, one, other, expected):
    assert gaussians.epsilon_of_gaussians(one, other, delta=1e-5) == expected

  def test_gaussian_epsilon_reference(self):
    # arXiv 1905.02383, figure 6: 1-GDP is (4.3777, 1e-5)-DP.
    assert gaussians.gaussian_epsilon(1.0, 1e-5) == pytest.approx(
      4.377, abs=1e-3
    )
    assert gaussians.gaussian_epsilon(0.0, 1e-5) == 0.0
