"""The bound of one run."""

import numpy as np
import pytest

from tff_dpemb.privacy.audit import one_run


class TestOneRun:
  def test_perfect_guesses_by_hand(self):
    """100 canaries, 10 guesses, all right, delta ~ 0: p^10 = alpha.

    p = .05 ** .1 = .7411; epsilon = log(p / (1 - p)) = 1.0516.
    """
    found = one_run.lower_bound(
      np.ones(50), np.zeros(50), delta=1e-12, alpha=0.05
    )
    assert found == pytest.approx(1.0516, abs=1e-3)

  def test_delta_costs(self):
    low, high = (
      one_run.lower_bound(np.ones(500), np.zeros(500), delta=d, alpha=0.05)
      for d in (1e-3, 1e-9)
    )
    assert 0 < low < high

  def test_chance_gives_nothing(self):
    scores = np.random.default_rng(0).standard_normal(400)
    assert (
      one_run.lower_bound(scores[:200], scores[200:], delta=1e-5, alpha=0.01)
      == 0.0
    )
