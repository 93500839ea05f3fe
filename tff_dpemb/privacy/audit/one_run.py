"""The bound of one run that needs no independence of scores."""

import math

import numpy as np
from scipy import stats

_GUESSING_SHARE = 0.1  # of the canaries


def lower_bound(
  inside: np.ndarray, outside: np.ndarray, *, delta: float, alpha: float
) -> float:
  """Returns the lower bound of arXiv 2305.08846 (theorem 5.2), >= 0.

  The highest twentieth of all scores is guessed 'in', the lowest 'out', the
  rest is passed over. Valid for any mechanism and any dependence of scores, if
  each canary was put in by its own fair coin.

  Args:
    inside: Scores of the canaries whose coin said in.
    outside: Scores of the others.
    delta: In (0, 1).
    alpha: Probability of a bound that is too high.
  """
  scores = np.concatenate([inside, outside])
  truth = np.repeat([True, False], [len(inside), len(outside)])
  each = max(1, int(_GUESSING_SHARE * len(scores) / 2))
  # Ties are broken without a look at the truth.
  order = np.random.default_rng(0).permutation(len(scores))
  ranked = truth[order][np.argsort(scores[order], kind='stable')]
  correct = int(ranked[-each:].sum() + (~ranked[:each]).sum())
  low, high = 0.0, 1.0
  found = _p_value(low, correct, 2 * each, len(scores), delta)
  if found > alpha:
    return 0.0
  while (
    high < 100
    and _p_value(high, correct, 2 * each, len(scores), delta) <= alpha
  ):
    low, high = high, 2 * high
  for _ in range(40):
    middle = (low + high) / 2
    p = _p_value(middle, correct, 2 * each, len(scores), delta)
    low, high = (middle, high) if p <= alpha else (low, middle)
  return low


def _p_value(
  epsilon: float, correct: int, guesses: int, canaries: int, delta: float
) -> float:
  """Returns the chance of that many correct guesses, at most.

  Binomial(guesses, e^epsilon / (1 + e^epsilon)) tail, plus 2 m delta max_i
  Pr[correct - i <= W < correct] / i.
  """
  probability = 1 / (1 + math.exp(-epsilon))
  tail = stats.binom.sf(correct - 1, guesses, probability)
  steps = np.arange(1, correct + 1)
  near = stats.binom.sf(correct - 1 - steps, guesses, probability) - tail
  alpha = float(np.max(near / steps, initial=0.0))
  return min(1.0, float(tail) + 2 * canaries * delta * alpha)
