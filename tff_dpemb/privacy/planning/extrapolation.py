"""What larger populations would need and get; never certified."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import loss_distribution
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import calibration
from tff_dpemb.privacy.planning import plan as plan_lib

DEFAULT_TARGET = 4.0  # The epsilon that arXiv 2211.10844 (v2) speaks of.


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
  plan: plan_lib.PrivacyPlan,
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


def _extrapolate_one(
  plan: plan_lib.PrivacyPlan, population: int, target: float
) -> Extrapolation:
  delta = float(population) ** -1.1
  most = int(population * plan.virtual_clients // plan.users_per_round)

  def spent(clients: float, points: int) -> float:
    ratio = clients / plan.virtual_clients
    multiplier = ratio * plan.mechanism.noise_multiplier
    if multiplier == 0:
      return math.inf
    sampler = samplers.PoissonSampler(
      population, min(population, ratio * plan.users_per_round)
    )
    noise = dp_event.GaussianDpEvent(multiplier / plan.sensitivity)
    return accountant.guarantee_of_event(
      dp_event.SelfComposedDpEvent(sampler.event(noise), plan.rounds),
      delta=delta,
      adjacency=plan.adjacency,
      grid_points=points,
      cross_check=False,
    ).epsilon

  fine, coarse = (
    loss_distribution.FINE_GRID_POINTS,
    loss_distribution.COARSE_GRID_POINTS,
  )
  low, high = plan.virtual_clients, most
  if spent(low, coarse) <= target:
    high = low
  elif spent(high, coarse) <= target:
    crossing = calibration.crossing(
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
