"""What an attack proves about epsilon: bounds, estimates, and a verdict.

An audit inserts canaries: users that an attacker would choose. Half of them
are in, half out; each gets a score from what was released; how well the scores
tell the two apart contradicts a claimed epsilon that is too small. It can
never prove that a claim holds.

What is a bound and what is an estimate:

* `Audit.epsilon_delta_bound` is a lower bound on epsilon at delta of *any*
  (epsilon, delta) mechanism, with the stated confidence: Clopper and Pearson's
  intervals of the rates of a threshold attack, the threshold chosen on other
  canaries. It needs scores that are independent given who is in, which
  orthogonal canaries under Gaussian noise have, up to what other clients add.
* `Audit.mu_bound`, and the epsilon of it, is a bound too, for mechanisms whose
  trade-off curve is a Gaussian's; the plan proves exactly that curve if no
  sampling amplifies it. From the same intervals.
* `Audit.one_run_bound` (arXiv 2305.08846, theorem 5.2) needs no independence,
  only that each canary was put in by its own fair coin; it is weaker.
* `Audit.estimate` is no bound: the epsilon of two Gaussians of one deviation,
  fitted to the scores as if they were the truth; `epsilon_of_gaussians` is the
  form of arXiv 2302.03098 (algorithm 1), with two deviations.

NumPy and SciPy only; the canaries are made elsewhere.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import gaussian_mechanism
from scipy import stats

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.planning import plan as plan_lib

DEFAULT_CONFIDENCE = 0.95
CONSISTENT = 'consistent'
VIOLATION = 'VIOLATION'
FEWEST = 8  # canaries of a side
_CHOOSING_SHARE = 0.25  # of the canaries, on which thresholds are chosen
_GUESSING_SHARE = 0.1  # of the canaries, of the one-run bound
_LARGEST_EPSILON = 1e6
# Where a sampled plan is compared besides its own delta.
_DELTAS = (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)


class AuditError(guarantee.PrivacyError):
  """An audit that cannot be made as asked."""


@dataclasses.dataclass(frozen=True)
class Claim:
  """What is held against the scores.

  Attributes:
    epsilon: Claimed at `delta`; infinite if nothing is claimed.
    delta: In (0, 1).
    mu: Of Gaussian DP, if the claim is a Gaussian's whole curve; else None.
    curve: Further (delta, epsilon) pairs that the same proof gives.
  """

  epsilon: float
  delta: float
  mu: float | None = None
  curve: tuple[tuple[float, float], ...] = ()

  def __post_init__(self):
    if not 0 < self.delta < 1:
      raise AuditError(f'delta must be in (0, 1), got {self.delta}.')
    if not self.epsilon >= 0:  # Also refuses NaN.
      raise AuditError(f'epsilon must be >= 0, got {self.epsilon}.')


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


@dataclasses.dataclass(frozen=True)
class Audit:
  """What scores say about a claim.

  Attributes:
    claim: What was held against them.
    confidence: Of each bound, one-sided; in (0, 1).
    canaries: How many were scored, in and out.
    points: Threshold attacks, their rates bounded all at once.
    one_run_bound: See the module; None if canaries were not put in by coins.
    estimate: Epsilon at delta of two Gaussians of the scores' means and their
      pooled deviation: no bound.
    largest_bound: What this many canaries would give were they told apart
      without an error: no claim above it can be contradicted.
  """

  claim: Claim
  confidence: float
  canaries: int
  points: tuple[Point, ...]
  one_run_bound: float | None
  estimate: float
  largest_bound: float

  @property
  def epsilon_delta_bound(self) -> float:
    """Lower bound on epsilon at delta of any mechanism."""
    return max(p.epsilon_bound(self.claim.delta) for p in self.points)

  @property
  def mu_bound(self) -> float:
    """Lower bound on mu, for mechanisms with a Gaussian trade-off curve."""
    return max(point.mu_bound for point in self.points)

  @property
  def lower_bound(self) -> float:
    """The bound on epsilon at delta that the claim's kind admits."""
    if self.claim.mu is None:
      return self.epsilon_delta_bound
    return max(
      self.epsilon_delta_bound,
      gaussian_epsilon(self.mu_bound, self.claim.delta),
    )

  @property
  def broken(self) -> tuple[float, float, float] | None:
    """(delta, claimed epsilon, bound) where the claim fails first, or None.

    One pair of intervals bounds the rates for every delta at once, so no
    further correction is due.
    """
    claim = self.claim
    if self.lower_bound > claim.epsilon:
      return claim.delta, claim.epsilon, self.lower_bound
    for delta, epsilon in claim.curve:
      bound = max(point.epsilon_bound(delta) for point in self.points)
      if bound > epsilon:
        return delta, epsilon, bound
    return None

  @property
  def verdict(self) -> str:
    """'consistent' or 'VIOLATION'."""
    return CONSISTENT if self.broken is None else VIOLATION

  @property
  def is_trivial(self) -> bool:
    """Whether no score whatever could have contradicted the claim."""
    return self.claim.epsilon >= self.largest_bound

  def describe(self) -> str:
    """Returns the finding for people, in a few plain sentences."""
    claim = self.claim
    claimed = guarantee.epsilon_text(claim.epsilon)
    kind = 'any mechanism' if claim.mu is None else 'a Gaussian trade-off'
    lines = [
      f'epsilon >= {self.lower_bound:.3g} at delta {claim.delta:.3g} with'
      f' {self.confidence:.0%} confidence ({kind}, {self.canaries} canaries);'
      f' claimed: {claimed}: {self.verdict}.'
    ]
    if self.broken is not None and self.broken[0] != claim.delta:
      delta, epsilon, bound = self.broken
      lines.append(
        f'At delta {delta:.3g} the same proof claims {epsilon:.3g}, the scores'
        f' show at least {bound:.3g}.'
      )
    if self.is_trivial:
      lines.append(
        f'This many canaries can show at most epsilon {self.largest_bound:.3g},'
        f' so a claim of {claimed} could not have been contradicted: the'
        ' verdict says nothing about it.'
      )
    return ' '.join(lines)

  def to_json(self) -> dict[str, Any]:
    """Returns the result as JSON values, for a certificate's audit block."""
    return {
      'canaries': self.canaries,
      'confidence': self.confidence,
      'delta': self.claim.delta,
      'lower_bound': self.lower_bound,
      'lower_bound_of': (
        'any mechanism whose canaries score independently'
        if self.claim.mu is None
        else 'a Gaussian trade-off'
      ),
      'epsilon_delta_lower_bound': self.epsilon_delta_bound,
      'mu_lower_bound': self.mu_bound,
      'one_run_lower_bound': self.one_run_bound,
      'largest_lower_bound': self.largest_bound,
      'estimate': guarantee.epsilon_to_json(self.estimate),
      'claimed_epsilon': guarantee.epsilon_to_json(self.claim.epsilon),
      'claimed_mu': self.claim.mu,
      'trivial': self.is_trivial,
      'verdict': self.verdict,
    }


def claim_of_plan(
  plan: plan_lib.PrivacyPlan, rounds: int | None = None
) -> Claim:
  """Returns what a plan proves for `rounds` rounds (default: all of them)."""
  number = plan.rounds if rounds is None else rounds
  found = plan.guarantee(number)
  if found.mu_gdp is not None or not found.is_private:
    return Claim(found.epsilon, plan.delta, mu=found.mu_gdp)
  curve = tuple(
    (delta, plan.guarantee(number, delta=delta).epsilon) for delta in _DELTAS
  )
  return Claim(found.epsilon, plan.delta, curve=curve)


def audit(
  inside: np.ndarray,
  outside: np.ndarray,
  *,
  claim: Claim,
  confidence: float = DEFAULT_CONFIDENCE,
  coins: bool,
) -> Audit:
  """Returns what the scores of canaries say about a claim.

  The order of the canaries within each array must not depend on their scores:
  the first quarter chooses thresholds, the rest is counted.

  Args:
    inside: Scores [n] of canaries that took part; higher means 'in'.
    outside: Scores [m] of canaries that did not.
    claim: What is held against them.
    confidence: Of each bound, in (0, 1).
    coins: Whether each canary was put in or out by its own fair coin, as the
      one-run bound needs.

  Raises:
    AuditError: Too few canaries, a score that is not finite, or an argument
      out of range.
  """
  inside, outside = np.asarray(inside, float), np.asarray(outside, float)
  if not 0 < confidence < 1:
    raise AuditError(f'confidence must be in (0, 1), got {confidence}.')
  if min(len(inside), len(outside)) < FEWEST:
    raise AuditError(
      f'an audit must have at least {FEWEST} canaries in and {FEWEST} out, got'
      f' {len(inside)} and {len(outside)}; take more canaries.'
    )
  if not (np.isfinite(inside).all() and np.isfinite(outside).all()):
    raise AuditError('scores must be finite; the audited model is not.')
  alpha = 1 - confidence
  first = [math.ceil(_CHOOSING_SHARE * len(x)) for x in (inside, outside)]
  counted = (len(inside) - first[0], len(outside) - first[1])
  # Two one-sided intervals for each of at most two thresholds, all at once.
  share = alpha / 4
  thresholds = _thresholds(
    inside[: first[0]],
    outside[: first[1]],
    counted=counted,
    delta=claim.delta,
    alpha=share,
  )
  points = tuple(
    rates(inside[first[0] :], outside[first[1] :], threshold, alpha=share)
    for threshold in thresholds
  )
  best = Point(
    0.0,
    clopper_pearson_lower(counted[0], counted[0], alpha=share),
    1 - clopper_pearson_lower(counted[1], counted[1], alpha=share),
  )
  largest = best.epsilon_bound(claim.delta)
  if claim.mu is not None:
    largest = max(largest, gaussian_epsilon(best.mu_bound, claim.delta))
  return Audit(
    claim=claim,
    confidence=confidence,
    canaries=len(inside) + len(outside),
    points=points,
    one_run_bound=(
      one_run_bound(inside, outside, delta=claim.delta, alpha=alpha)
      if coins
      else None
    ),
    estimate=_estimate(inside, outside, claim.delta),
    largest_bound=largest,
  )


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


def rates(
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


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(mu: float, delta: float) -> float:
  """Returns epsilon at delta of mu-Gaussian DP (arXiv 1905.02383, cor. 1)."""
  if mu <= 0:
    return 0.0
  return float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta))


def one_run_bound(
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
  found = _one_run_p_value(low, correct, 2 * each, len(scores), delta)
  if found > alpha:
    return 0.0
  while (
    high < 100
    and _one_run_p_value(high, correct, 2 * each, len(scores), delta) <= alpha
  ):
    low, high = high, 2 * high
  for _ in range(40):
    middle = (low + high) / 2
    p = _one_run_p_value(middle, correct, 2 * each, len(scores), delta)
    low, high = (middle, high) if p <= alpha else (low, middle)
  return low


def epsilon_of_gaussians(
  one: tuple[float, float], other: tuple[float, float], *, delta: float
) -> float:
  """Returns the epsilon at which two Gaussians are (epsilon, delta)-close.

  Each is (mean, standard deviation), the deviations may differ. Infinite if
  no finite epsilon up to 1e6 suffices, as for two different constants.
  """
  (mean, stddev), (mean2, stddev2) = one, other
  if min(stddev, stddev2) <= 0:
    return 0.0 if mean == mean2 and stddev == stddev2 else math.inf

  def needed(epsilon: float) -> float:
    return max(
      _hockey_stick(one, other, epsilon), _hockey_stick(other, one, epsilon)
    )

  if needed(0.0) <= delta:
    return 0.0
  low, high = 0.0, 1.0
  while needed(high) > delta:
    if high > _LARGEST_EPSILON:
      return math.inf
    low, high = high, 2 * high
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if needed(middle) > delta else (low, middle)
  return high


def _hockey_stick(
  one: tuple[float, float], other: tuple[float, float], epsilon: float
) -> float:
  """Returns P(R) - e^epsilon Q(R), R = where log p/q > epsilon."""
  (m, s), (n, t) = one, other
  # log p/q (x) = a x^2 + b x + c.
  a = 0.5 / t**2 - 0.5 / s**2
  b = m / s**2 - n / t**2
  c = 0.5 * (n / t) ** 2 - 0.5 * (m / s) ** 2 + math.log(t / s) - epsilon

  def gap(low: float, high: float) -> float:
    mass = _mass((low - m) / s, (high - m) / s)
    against = _mass((low - n) / t, (high - n) / t)
    if against == 0:
      return mass
    return mass - math.exp(min(epsilon + math.log(against), 700.0))

  if abs(a) < 1e-12 * (0.5 / t**2 + 0.5 / s**2):
    if b == 0:
      return gap(-math.inf, math.inf) if c > 0 else 0.0
    return gap(-c / b, math.inf) if b > 0 else gap(-math.inf, -c / b)
  square = b * b - 4 * a * c
  if square <= 0:
    return gap(-math.inf, math.inf) if a > 0 else 0.0
  root = math.sqrt(square)
  low, high = sorted(((-b - root) / (2 * a), (-b + root) / (2 * a)))
  if a > 0:
    return gap(-math.inf, low) + gap(high, math.inf)
  return gap(low, high)


def _mass(low: float, high: float) -> float:
  """Returns the standard normal's probability of (low, high), tails exact."""
  if low > 0:
    low, high = -high, -low
  root = math.sqrt(2)
  return (math.erfc(-high / root) - math.erfc(-low / root)) / 2


def _one_run_p_value(
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


def _estimate(inside: np.ndarray, outside: np.ndarray, delta: float) -> float:
  gap = float(inside.mean() - outside.mean())
  pooled = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
  if gap <= 0:
    return 0.0
  if pooled <= 1e-9 * gap:
    return math.inf
  return gaussian_epsilon(gap / pooled, delta)


def _thresholds(
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
