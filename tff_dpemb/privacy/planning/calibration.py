"""The least noise that keeps a plan to a budget."""

import dataclasses
import math
from collections.abc import Callable

from scipy import optimize

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import loss_distribution
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.planning import plan as plan_lib

_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-6, 1e6
_LARGEST_MULTIPLIER = 1e6


def calibrate(
  plan: plan_lib.PrivacyPlan, epsilon: float
) -> plan_lib.PrivacyPlan:
  """Returns a plan with the least noise that keeps to `epsilon`.

  At the plan's delta, for all its rounds without replays. The noise is at most
  about 0.1 % above the least. The standard deviation of the counts of adaptive
  clipping stays as it is.

  Raises:
    PlanError: No noise is enough, or it is more than the virtual clients
      allow.
  """
  budget = guarantee.Budget(epsilon, plan.delta, plan.adjacency)
  mechanism = plan.mechanism
  share = clipped_sum.CLIPPED_COUNT_SHARE
  stddev = mechanism.count_stddev
  if mechanisms.is_adaptive(mechanism) and stddev == 0:
    stddev = share * mechanism.virtual_clients

  def with_noise(multiplier: float) -> mechanisms.Mechanism:
    return mechanisms.with_noise(mechanism, multiplier, count_stddev=stddev)

  def spent(multiplier: float, points: int) -> float:
    return accountant.guarantee_of_event(
      plan.event_with(with_noise(multiplier), plan.rounds),
      delta=budget.delta,
      adjacency=budget.adjacency,
      grid_points=points,
      cross_check=False,
    ).epsilon

  found = _least_noise(spent, budget.epsilon)
  calibrated = with_noise(found)
  if isinstance(mechanism, independent.AdaptiveClipGaussian):
    by_default = stddev == share * mechanism.virtual_clients
    calibrated = dataclasses.replace(
      mechanism,
      noise_multiplier=found,
      # So that a cohort that is too small is told how many clients it needs.
      clipped_count_stddev=None if by_default else stddev,
    )
  return dataclasses.replace(plan, mechanism=calibrated)


def _least_noise(spent: Callable[[float, int], float], epsilon: float) -> float:
  """Returns the least noise multiplier for which `spent` is <= epsilon.

  Args:
    spent: (noise multiplier, grid points) -> epsilon, falling in the first.
    epsilon: Budget.

  Raises:
    PlanError: No noise multiplier up to 1e6 is enough, or epsilon is one that
      nobody can mean.
  """
  if not _SMALLEST_EPSILON <= epsilon <= _LARGEST_EPSILON:
    raise guarantee.PlanError(
      f'epsilon must be in [{_SMALLEST_EPSILON:g}, {_LARGEST_EPSILON:g}] to'
      f' solve for noise, got {epsilon:g}.'
    )
  coarse = loss_distribution.COARSE_GRID_POINTS
  high = 1.0
  while spent(high, coarse) > epsilon:
    high *= 2
    if high > _LARGEST_MULTIPLIER:
      raise guarantee.PlanError(
        f'no noise multiplier up to {_LARGEST_MULTIPLIER:g} gives epsilon'
        f' {epsilon:g}; raise the budget, or with adaptive clipping the virtual'
        ' clients (the clipped counts may cost more than all of it).'
      )
  low = high / 2
  while spent(low, coarse) <= epsilon:
    low, high = low / 2, low
  found = crossing(lambda value: spent(value, coarse), epsilon, low, high)
  while spent(found, loss_distribution.FINE_GRID_POINTS) > epsilon:
    found *= 1.0005
  return found


def crossing(
  spent: Callable[[float], float], target: float, low: float, high: float
) -> float:
  """Returns where a falling epsilon meets a target, in a few evaluations.

  Epsilon is close to a power of the noise, so the root is sought in
  logarithms; the answer is within 0.05 % and on the private side.
  """

  def excess(log_value: float) -> float:
    return math.log(max(spent(math.exp(log_value)), 1e-9) / target)

  root = optimize.brentq(excess, math.log(low), math.log(high), xtol=2e-4)
  while excess(root) > 0:
    root += 2e-4
  return math.exp(root)
