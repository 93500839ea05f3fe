"""Threshold attacks: how often they are right, bounded with confidence."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats


@dataclasses.dataclass(frozen=True)
class Point:
  """A threshold attack: 'in' is said of a canary whose score is above.

  Attributes:
    threshold: Chosen on other canaries.
    true_rate: Lower confidence bound of the share of in-canaries above.
    false_rate: Upper confidence bound of the share of out-canaries above.
  """

  threshold: float
  true_rate: float
  false_rate: float

  def epsilon_bound(self, delta: float) -> float:
    """Returns the least epsilon that allows the rates at `delta`, >= 0."""
    return max(
      0.0,
      _log_ratio(self.true_rate - delta, self.false_rate),
      _log_ratio(1 - self.false_rate - delta, 1 - self.true_rate),
    )

  @property
  def mu_bound(self) -> float:
    """Returns the least mu of a Gaussian curve that allows the rates, >= 0."""
    if not 0 < self.true_rate < 1 or not 0 < self.false_rate < 1:
      return 0.0  # An interval that says nothing.
    mu = stats.norm.ppf(self.true_rate) - stats.norm.ppf(self.false_rate)
    return max(0.0, float(mu))


def clopper_pearson_lower(
  successes: int, trials: int, *, alpha: float
) -> float:
  """Returns the one-sided lower bound of a probability, wrong with <= alpha.

  Clopper and Pearson (1934): the p at which `successes` or more have
  probability alpha. If trials have unequal probabilities it bounds their mean
  (Hoeffding 1956) when the bound lies below the observed rate, as it does.
  """
  if successes == 0:
    return 0.0
  return float(_lower(np.asarray(successes), trials, alpha))


def measure(
  inside: np.ndarray, outside: np.ndarray, threshold: float, *, alpha: float
) -> Point:
  """Returns a threshold's rates, each bound wrong with probability <= alpha."""
  above = int((inside > threshold).sum())
  below = int((outside <= threshold).sum())
  return Point(
    threshold,
    clopper_pearson_lower(above, len(inside), alpha=alpha),
    1 - clopper_pearson_lower(below, len(outside), alpha=alpha),
  )


def choose_thresholds(
  inside: np.ndarray,
  outside: np.ndarray,
  *,
  counted: tuple[int, int],
  delta: float,
  alpha: float,
) -> Sequence[float]:
  """Returns two thresholds: one for the bulk and one for the tail of scores.

  Half-way between the means, which is best for two equal Gaussians; and where
  the bound on epsilon at delta would be highest if the counted canaries had
  the rates of these ones.
  """
  middle = (float(inside.mean()) + float(outside.mean())) / 2
  scores = np.unique(np.concatenate([inside, outside]))
  candidates = (scores[1:] + scores[:-1]) / 2
  if not len(candidates):
    return (middle,)
  shares = [
    # One more of each outcome: an empty tail is not taken for certain.
    ((x[:, None] > candidates).sum(axis=0) + 1) / (len(x) + 2)
    for x in (inside, outside)
  ]
  true = _lower(shares[0] * counted[0], counted[0], alpha)
  false = 1 - _lower((1 - shares[1]) * counted[1], counted[1], alpha)
  with np.errstate(divide='ignore', invalid='ignore'):
    gains = np.fmax(
      np.log(np.maximum(true - delta, 0) / false),
      np.log(np.maximum(1 - false - delta, 0) / (1 - true)),
    )
  return tuple(sorted({middle, float(candidates[np.nanargmax(gains)])}))


def _lower(successes: np.ndarray, trials: int, alpha: float) -> np.ndarray:
  return stats.beta.ppf(alpha, successes, trials - successes + 1)


def _log_ratio(numerator: float, denominator: float) -> float:
  if numerator <= 0:
    return 0.0
  return math.inf if denominator <= 0 else math.log(numerator / denominator)
