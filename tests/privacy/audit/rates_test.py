"""Rates of a threshold attack, bounded."""

import math

import pytest
from scipy import stats

from tff_dpemb.privacy.audit import rates


class TestClopperPearson:
  @pytest.mark.parametrize(
    ('successes', 'trials', 'alpha', 'expected'),
    [
      (0, 10, 0.05, 0.0),
      # All succeed: p^n = alpha.
      (10, 10, 0.05, 0.05**0.1),
      (3, 3, 0.125, 0.5),
      # One of two: 1 - (1 - p)^2 = alpha.
      (1, 2, 0.19, 0.1),
      # Clopper and Pearson's own chart: 8 of 10 at 97.5 %: 0.444.
      (8, 10, 0.025, 0.4439),
    ],
  )
  def test_by_hand(self, successes, trials, alpha, expected):
    found = rates.clopper_pearson_lower(successes, trials, alpha=alpha)
    assert found == pytest.approx(expected, abs=1e-4)

  def test_covers(self):
    """Binomial(40, .3): P(bound > .3) <= 5 %, summed exactly."""
    wrong = sum(
      stats.binom.pmf(k, 40, 0.3)
      for k in range(41)
      if rates.clopper_pearson_lower(k, 40, alpha=0.05) > 0.3
    )
    assert 0.02 < wrong <= 0.05


class TestPoint:
  @pytest.mark.parametrize(
    ('true_rate', 'false_rate', 'delta', 'expected'),
    [
      (0.8, 0.2, 0.0, math.log(4)),
      (0.8, 0.2, 0.1, math.log(3.5)),
      (0.5, 0.5, 0.1, 0.0),
      # The other direction is the stronger: (1 - .1 - 0) / (1 - .95).
      (0.95, 0.1, 0.0, math.log(18)),
      (0.05, 0.5, 0.1, 0.0),
    ],
  )
  def test_epsilon_by_hand(self, true_rate, false_rate, delta, expected):
    point = rates.Point(0.0, true_rate, false_rate)
    assert point.epsilon_bound(delta) == pytest.approx(expected)

  def test_mu_by_hand(self):
    # Phi(1) and Phi(-1).
    assert rates.Point(0, 0.841345, 0.158655).mu_bound == pytest.approx(
      2.0, abs=1e-4
    )
    assert rates.Point(0, 0.2, 0.8).mu_bound == 0.0
    assert rates.Point(0, 0.0, 1.0).mu_bound == 0.0
