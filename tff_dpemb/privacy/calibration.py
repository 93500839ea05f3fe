"""Searches over plans: noise for a budget, and what larger populations give."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dp_accounting import dp_event
from scipy import optimize

from tff_dpemb.privacy import accounting
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy import mechanisms

if TYPE_CHECKING:
  from tff_dpemb.privacy import plan as plan_lib

DEFAULT_TARGET = 4.0  # The epsilon that arXiv 2211.10844 (v2) speaks of.
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


def calibrate(
  *,
  epsilon: float,
  delta: float,
  probability: float,
  rounds: int,
  sensitivity: float = 2.0,
  adjacency: guarantee.Adjacency = guarantee.Adjacency.ADD_OR_REMOVE_ONE,
) -> float:
  """Returns the least nominal noise multiplier that keeps to a budget.

  For Poisson sampling with `probability` (1: everyone, every round). The
  answer is at most about 0.1 % above the least and checked on the fine grid.

  Raises:
    PlanError: No noise multiplier up to 1e6 is enough.
  """
  guarantee.Budget(epsilon, delta, adjacency)

  def spent(multiplier: float, points: int) -> float:
    return sampled_epsilon(
      multiplier / sensitivity,
      probability=probability,
      rounds=rounds,
      delta=delta,
      adjacency=adjacency,
      grid_points=points,
    )

  coarse = accounting.COARSE_GRID_POINTS
  high = 1.0
  while spent(high, coarse) > epsilon:
    high *= 2
    if high > _LARGEST_MULTIPLIER:
      raise guarantee.PlanError(
        f'no noise multiplier up to {_LARGEST_MULTIPLIER:g} gives epsilon'
        f' {epsilon} at delta {delta:g}; raise the budget.'
      )
  low = high / 2
  while spent(low, coarse) <= epsilon:
    low, high = low / 2, low
  found = _crossing(lambda value: spent(value, coarse), epsilon, low, high)
  while spent(found, accounting.FINE_GRID_POINTS) > epsilon:
    found *= 1.0005
  return found


@dataclasses.dataclass(frozen=True)
class CohortRow:
  """One line of a planning table.

  Attributes:
    users_per_round: Expected users a round.
    virtual_clients: Slots that they are hashed into.
    noise_multiplier: Noise on the sum / clip norm that the budget needs.
    epsilon: What is then spent; at most the budget.
    noise_of_mean: noise_multiplier / virtual_clients: noise of each coordinate
      of the mean, in clip norms; the smaller, the better it learns.
    users_trained: rounds x users_per_round, the cost in local trainings.
  """

  users_per_round: int
  virtual_clients: int
  noise_multiplier: float
  epsilon: float
  noise_of_mean: float
  users_trained: int


def cohort_table(
  population: int,
  *,
  epsilon: float,
  delta: float,
  rounds: int,
  users_per_virtual_client: int = 32,
  cohorts: Sequence[int] = (),
) -> list[CohortRow]:
  """Returns what cohorts of several sizes need for a budget.

  Args:
    population: N users.
    epsilon: Budget at `delta`, add-or-remove-one-user.
    delta: In (0, 1 / population).
    rounds: Rounds, every one charged.
    users_per_virtual_client: Expected users of a slot.
    cohorts: Expected users a round; default: doublings up to the population.
  """
  if population < 2 or not 0 < delta < 1 / population:
    raise guarantee.PlanError(
      'population must be at least 2 and delta in (0, 1 / population), got'
      f' {population} and {delta}.'
    )
  if not cohorts:
    cohorts = sorted({max(1, population >> halvings) for halvings in range(7)})
  rows = []
  for users in cohorts:
    if not 0 < users <= population:
      raise guarantee.PlanError(
        f'a cohort must be in [1, population = {population}], got {users}.'
      )
    sharing = users_per_virtual_client > 1
    sensitivity = mechanisms.sensitivity_multiple(
      guarantee.Adjacency.ADD_OR_REMOVE_ONE, shares_virtual_client=sharing
    )
    multiplier = calibrate(
      epsilon=epsilon,
      delta=delta,
      probability=users / population,
      rounds=rounds,
      sensitivity=sensitivity,
    )
    clients = max(1, round(users / users_per_virtual_client))
    rows.append(
      CohortRow(
        users_per_round=users,
        virtual_clients=clients,
        noise_multiplier=multiplier,
        epsilon=sampled_epsilon(
          multiplier / sensitivity,
          probability=users / population,
          rounds=rounds,
          delta=delta,
        ),
        noise_of_mean=multiplier / clients,
        users_trained=rounds * users,
      )
    )
  return rows


def sampled_epsilon(
  noise_multiplier: float,
  *,
  probability: float,
  rounds: int,
  delta: float,
  adjacency: guarantee.Adjacency = guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  grid_points: int = accounting.FINE_GRID_POINTS,
) -> float:
  """Returns epsilon of Poisson-sampled Gaussians (noise / sensitivity)."""
  event = dp_event.GaussianDpEvent(noise_multiplier)
  if probability < 1:
    event = dp_event.PoissonSampledDpEvent(probability, event)
  return accounting.guarantee_of_event(
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

  fine, coarse = accounting.FINE_GRID_POINTS, accounting.COARSE_GRID_POINTS
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
