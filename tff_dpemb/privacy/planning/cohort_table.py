"""Planning tables: what each cohort size needs for a budget, and costs."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tff_dpemb import config
from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import calibration
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.privacy.planning import settings


@dataclasses.dataclass(frozen=True)
class CohortRow:
  """One line of a planning table.

  Attributes:
    plan: What would run; its noise is the least for the budget.
    epsilon: What is then spent; at most the budget.
    participations: Rounds that one user takes part in: expected with Poisson
      sampling, at most with a schedule.
    noise_of_mean: Fresh noise of each coordinate of a round's mean, in clip
      norms.
    noise_of_total: Largest noise of a running total of means, in clip norms:
      what training ends up with. The smaller, the better it learns; comparable
      between kinds of noise.
    users_trained: rounds x users_per_round, the cost in local trainings.
    examples_trained: The same in examples.
  """

  plan: plan_lib.PrivacyPlan
  epsilon: float
  participations: float
  noise_of_mean: float
  noise_of_total: float
  users_trained: int
  examples_trained: int

  def to_json(self) -> dict[str, Any]:
    """Returns the figures of the table as a JSON value."""
    plan = self.plan
    return {
      'noise': noise_of(plan),
      'users_per_round': round(plan.users_per_round),
      'virtual_clients': plan.virtual_clients,
      'rounds': plan.rounds,
      'participations': self.participations,
      'noise_multiplier': plan.mechanism.noise_multiplier,
      'epsilon': self.epsilon,
      'noise_of_mean': self.noise_of_mean,
      'noise_of_total': self.noise_of_total,
      'users_trained': self.users_trained,
      'examples_trained': self.examples_trained,
    }


def noise_of(plan: plan_lib.PrivacyPlan) -> str:
  """Returns 'independent', 'tree', 'banded' or 'blt'."""
  if isinstance(plan.mechanism, correlated_gaussian.CorrelatedGaussian):
    return plan.mechanism.kind
  return 'independent'


def cohort_table(
  population: int,
  *,
  epsilon: float,
  delta: float,
  rounds: int,
  users_per_virtual_client: int = 32,
  cohorts: Sequence[int] = (),
  noise: str = 'independent',
  examples_per_user: int = 8,
) -> list[CohortRow]:
  """Returns what cohorts of several sizes need for a budget.

  Independent noise goes with Poisson sampling, correlated noise with a schedule
  in which every user takes part as rarely as the cohort allows (a cohort then
  is population / a whole number of rounds, at least as asked for). Clipping is
  fixed; adaptive clipping with independent noise costs the same.

  Args:
    population: N users.
    epsilon: Budget at `delta`, add-or-remove-one-user.
    delta: In (0, 1 / population).
    rounds: Rounds, every one charged.
    users_per_virtual_client: Expected users of a slot; 1: nobody shares one.
    cohorts: Expected users a round; default: halvings of the population.
    noise: 'independent', 'tree', 'banded' or 'blt'.
    examples_per_user: A round, for the cost.

  Raises:
    PlanError: A number is out of range, or no noise is enough.
  """
  checks.whole('population', population, 2)
  checks.whole('users_per_virtual_client', users_per_virtual_client, 1)
  checks.whole('examples_per_user', examples_per_user, 1)
  if not cohorts:
    cohorts = sorted({max(1, population >> halvings) for halvings in range(7)})
  rows = []
  for users in cohorts:
    if not 0 < users <= population:
      raise guarantee.PlanError(
        f'a cohort must be in [1, population = {population}], got {users}.'
      )
    plan = settings.plan_from_config(
      _settings(noise, users, users_per_virtual_client, delta),
      population=population,
      rounds=rounds,
      shares_virtual_client=users_per_virtual_client > 1,
    )
    rows.append(_row(calibration.calibrate(plan, epsilon), examples_per_user))
  return rows


def _settings(
  noise: str, users: int, users_per_virtual_client: int, delta: float
) -> config.PrivacyConfig:
  section = {
    'noise': noise,
    'sampler': 'poisson' if noise == 'independent' else 'min-separation',
    'users_per_round': users,
    'virtual_clients': max(1, round(users / users_per_virtual_client)),
    'clipping': 'fixed',
    'clip_norm': 1.0,
    'noise_multiplier': 1.0,
    'delta': delta,
  }
  page = {'name': 'plan', 'privacy': section}
  return config.from_mapping(page, source='plan').privacy


def _row(plan: plan_lib.PrivacyPlan, examples_per_user: int) -> CohortRow:
  noise_of_mean = plan.mechanism.noise_multiplier / plan.virtual_clients
  variance = float(plan.rounds)
  participations = plan.rounds * plan.sampling_probability
  if isinstance(plan.mechanism, correlated_gaussian.CorrelatedGaussian):
    variance = plan.mechanism.strategy.prefix_variances(plan.rounds).max()
  if isinstance(plan.sampler, samplers.MinSeparationSampler):
    participations = plan.sampler.participation.most(plan.rounds)
  users_trained = round(plan.rounds * plan.users_per_round)
  return CohortRow(
    plan=plan,
    epsilon=plan.guarantee(plan.rounds).epsilon,
    participations=participations,
    noise_of_mean=noise_of_mean,
    noise_of_total=noise_of_mean * math.sqrt(variance),
    users_trained=users_trained,
    examples_trained=users_trained * examples_per_user,
  )
