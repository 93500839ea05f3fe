"""Searches over plans: noise for a budget, and what larger populations give."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dp_accounting import dp_event
from scipy import optimize

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.mechanisms import mechanisms

if TYPE_CHECKING:
  from tff_dpemb.privacy.planning import plan as plan_lib

DEFAULT_TARGET = 4.0  # The epsilon that arXiv 2211.10844 (v2) speaks of.
_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-6, 1e6
_LARGEST_MULTIPLIER = 1e6


@dataclasses.dataclass(frozen=True)
class Extrapolation:
  """What a larger population *would* give. Never part of a certificate.

  The noise of the mean is kept (k virtual clients, k times the noise on the
  sum, k times the users), so that utility should be as simulated; privacy
  comes from the larger cohort and population.

  Attributes:
    population: Users that the figure supposes.
    users_per_round: Expected users a round that it supposes.
    virtual_clients: Virtual clients that it supposes.
    noise_multiplier: Noise on the sum / clip norm that it supposes.
    epsilon: Honest epsilon at `delta`; `math.inf` if there is no noise.
    delta: population ** -1.1.
    reached: Whether epsilon is at most the target; if not, this is the largest
      feasible cohort.
    extrapolated: Always true: nothing like it was run.
  """

  population: int
  users_per_round: float
  virtual_clients: int
  noise_multiplier: float
  epsilon: float
  delta: float
  reached: bool
  extrapolated: bool = True

  def to_json(self) -> dict[str, Any]:
    """Returns a JSON value; an infinite epsilon is null."""
    content = dataclasses.asdict(self)
    content['epsilon'] = guarantee.epsilon_to_json(self.epsilon)
    return content


def extrapolate(
  plan: 'plan_lib.PrivacyPlan',
  populations: Sequence[int],
  *,
  target_epsilon: float = DEFAULT_TARGET,
) -> list[Extrapolation]:
  """Returns, for each population, the smallest cohort that reaches a target.

  Smallest to within 0.1 %; where even the whole population is too few, the
  largest feasible cohort.

  With k = virtual clients / plan.virtual_clients, the noise multiplier and the
  users of a round are k times the plan's.

  Raises:
    PlanError: The plan does not use Poisson sampling, a population is smaller
      than the plan's cohort, or the target is not finite and positive.
  """
  if plan.sampler.kind != 'poisson':
    raise guarantee.PlanError(
      f'extrapolation needs Poisson sampling, got {plan.sampler.kind}.'
    )
  if not (math.isfinite(target_epsilon) and target_epsilon > 0):
    raise guarantee.PlanError(
      f'target_epsilon must be finite and > 0, got {target_epsilon}.'
    )
  found = []
  for population in populations:
    if population < plan.users_per_round:
      raise guarantee.PlanError(
        'a population to extrapolate to must be at least users_per_round ='
        f' {plan.users_per_round:g}, got {population}.'
      )
    found.append(_extrapolate_one(plan, population, target_epsilon))
  return found


def calibrated_mechanism(
  mechanism: mechanisms.Mechanism,
  *,
  budget: guarantee.Budget,
  event: Callable[[mechanisms.Mechanism], dp_event.DpEvent],
) -> mechanisms.Mechanism:
  """Returns a mechanism with the least noise that keeps to a budget.

  The standard deviation of the counts of adaptive clipping stays as it is.

  Args:
    mechanism: Its noise is replaced.
    budget: Epsilon at delta.
    event: What a whole run with a mechanism reveals.

  Raises:
    PlanError: No noise is enough, or it is more than the virtual clients
      allow.
  """
  share = mechanisms.CLIPPED_COUNT_SHARE
  stddev = mechanism.count_stddev
  if mechanisms.is_adaptive(mechanism) and stddev == 0:
    stddev = share * mechanism.virtual_clients

  def with_noise(multiplier: float) -> mechanisms.Mechanism:
    if isinstance(mechanism, mechanisms.CorrelatedGaussian):
      return dataclasses.replace(
        mechanism, noise_multiplier=multiplier, clipped_count_stddev=stddev
      )
    # The count is within the total, so the event is that of fixed clipping.
    return mechanisms.FixedClipGaussian(mechanism.clip_norm, multiplier)

  def spent(multiplier: float, points: int) -> float:
    return accountant.guarantee_of_event(
      event(with_noise(multiplier)),
      delta=budget.delta,
      adjacency=budget.adjacency,
      grid_points=points,
      cross_check=False,
    ).epsilon

  found = _least_noise(spent, budget.epsilon)
  if not isinstance(mechanism, mechanisms.AdaptiveClipGaussian):
    return with_noise(found)
  by_default = stddev == share * mechanism.virtual_clients
  return dataclasses.replace(
    mechanism,
    noise_multiplier=found,
    # So that a cohort that is too small is told how many clients it needs.
    clipped_count_stddev=None if by_default else stddev,
  )


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
  coarse = accountant.COARSE_GRID_POINTS
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
  found = _crossing(lambda value: spent(value, coarse), epsilon, low, high)
  while spent(found, accountant.FINE_GRID_POINTS) > epsilon:
    found *= 1.0005
  return found


def sampled_epsilon(
  noise_multiplier: float,
  *,
  probability: float,
  rounds: int,
  delta: float,
  adjacency: guarantee.Adjacency = guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  grid_points: int = accountant.FINE_GRID_POINTS,
) -> float:
  """Returns epsilon of Poisson-sampled Gaussians (noise / sensitivity)."""
  event = dp_event.GaussianDpEvent(noise_multiplier)
  if probability < 1:
    event = dp_event.PoissonSampledDpEvent(probability, event)
  return accountant.guarantee_of_event(
    dp_event.SelfComposedDpEvent(event, rounds),
    delta=delta,
    adjacency=adjacency,
    grid_points=grid_points,
    cross_check=False,
  ).epsilon


def _crossing(
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


def _extrapolate_one(
  plan: 'plan_lib.PrivacyPlan', population: int, target: float
) -> Extrapolation:
  delta = float(population) ** -1.1
  most = int(population * plan.virtual_clients // plan.users_per_round)

  def spent(clients: float, points: int) -> float:
    ratio = clients / plan.virtual_clients
    multiplier = ratio * plan.mechanism.noise_multiplier
    if multiplier == 0:
      return math.inf
    return sampled_epsilon(
      multiplier / plan.sensitivity,
      probability=min(1.0, ratio * plan.users_per_round / population),
      rounds=plan.rounds,
      delta=delta,
      adjacency=plan.adjacency,
      grid_points=points,
    )

  fine, coarse = accountant.FINE_GRID_POINTS, accountant.COARSE_GRID_POINTS
  low, high = plan.virtual_clients, most
  if spent(low, coarse) <= target:
    high = low
  elif spent(high, coarse) <= target:
    crossing = _crossing(
      lambda clients: spent(clients, coarse), target, float(low), float(high)
    )
    high = min(most, math.ceil(crossing))
    while high < most and spent(high, fine) > target:
      high += max(1, high // 1000)
    high = min(high, most)
  ratio = high / plan.virtual_clients
  epsilon = spent(high, fine)
  return Extrapolation(
    population=population,
    users_per_round=ratio * plan.users_per_round,
    virtual_clients=high,
    noise_multiplier=ratio * plan.mechanism.noise_multiplier,
    epsilon=epsilon,
    delta=delta,
    reached=epsilon <= target,
  )
