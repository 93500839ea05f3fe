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
  fitted to the scores as if they were the truth; `gaussians.epsilon_of_gaussians` is the
  form of arXiv 2302.03098 (algorithm 1), with two deviations.

NumPy and SciPy only; the canaries are made elsewhere.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.audit import gaussians
from tff_dpemb.privacy.audit import one_run
from tff_dpemb.privacy.audit import rates
from tff_dpemb.privacy.planning import plan as plan_lib

DEFAULT_CONFIDENCE = 0.95
CONSISTENT = 'consistent'
VIOLATION = 'VIOLATION'
FEWEST = 8  # canaries of a side
_CHOOSING_SHARE = 0.25  # of the canaries, on which thresholds are chosen
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
  points: tuple[rates.Point, ...]
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
      gaussians.gaussian_epsilon(self.mu_bound, self.claim.delta),
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
  thresholds = rates.choose_thresholds(
    inside[: first[0]],
    outside[: first[1]],
    counted=counted,
    delta=claim.delta,
    alpha=share,
  )
  points = tuple(
    rates.measure(
      inside[first[0] :], outside[first[1] :], threshold, alpha=share
    )
    for threshold in thresholds
  )
  best = rates.Point(
    0.0,
    rates.clopper_pearson_lower(counted[0], counted[0], alpha=share),
    1 - rates.clopper_pearson_lower(counted[1], counted[1], alpha=share),
  )
  largest = best.epsilon_bound(claim.delta)
  if claim.mu is not None:
    largest = max(
      largest, gaussians.gaussian_epsilon(best.mu_bound, claim.delta)
    )
  return Audit(
    claim=claim,
    confidence=confidence,
    canaries=len(inside) + len(outside),
    points=points,
    one_run_bound=(
      one_run.lower_bound(inside, outside, delta=claim.delta, alpha=alpha)
      if coins
      else None
    ),
    estimate=_estimate(inside, outside, claim.delta),
    largest_bound=largest,
  )


def _estimate(inside: np.ndarray, outside: np.ndarray, delta: float) -> float:
  gap = float(inside.mean() - outside.mean())
  pooled = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
  if gap <= 0:
    return 0.0
  if pooled <= 1e-9 * gap:
    return math.inf
  return gaussians.gaussian_epsilon(gap / pooled, delta)
