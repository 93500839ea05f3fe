"""Part 8 of a certificate: what follows from its adjacency, parts 6 and 7."""

import dataclasses
from collections.abc import Sequence

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.accounting import loss_distribution
from tff_dpemb.privacy.accounting import profile
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.planning import plan as plan_lib

GROUPS = (2, 5)  # Users of the groups that a certificate gives figures for.
OVERCHARGE_NOISE = 1e-9  # Rounding of sums of 1 / noise_multiplier^2.

# Of the accounting in this product: raise it when the same events get other
# numbers or other notes.
_VERSION = 1


def method() -> document.Method:
  """Returns how this release turns events into numbers."""
  return document.Method(
    library=accountant.library_version(),
    version=_VERSION,
    grid_points=loss_distribution.FINE_GRID_POINTS,
    group_grid_points=profile.GROUP_GRID_POINTS,
  )


def plan_of(
  certificate: document.Certificate, mechanism: noise.ModelMechanism
) -> plan_lib.PrivacyPlan:
  """Returns the plan that the parts of a model's certificate describe.

  Raises:
    PlanError: They break a rule of plans.
  """
  return plan_lib.PrivacyPlan.from_json(
    {
      **certificate.sampling.model_dump(exclude_none=True),
      'rounds': mechanism.rounds_planned,
      'delta': certificate.accounting.delta,
      'adjacency': certificate.adjacency.relation.value,
      'shares_virtual_client': certificate.adjacency.shares_virtual_client,
      'mechanism': mechanism.model_dump(),
    }
  )


@dataclasses.dataclass(frozen=True)
class Revealed:
  """What a release reveals.

  Attributes:
    event: All draws of the release.
    unamplified: The guarantee without gain from sampling.
    adjacency: Relation that their sensitivities refer to.
    sensitivity: By how many clip norms one user moves a round's sum.
  """

  event: dp_event.DpEvent
  unamplified: guarantee_lib.Guarantee
  adjacency: guarantee_lib.Adjacency
  sensitivity: float


def revealed_by_plan(
  plan: plan_lib.PrivacyPlan, *, draws: int, redrawn: int
) -> Revealed:
  """Returns what a model reveals.

  Args:
    plan: Of its training.
    draws: Of noise; a plan that is charged at its start is paid for as a whole.
    redrawn: Those of a round that had been drawn before.
  """
  rounds = plan.rounds if plan.is_charged_at_start else draws - redrawn
  return Revealed(
    event=plan.event(rounds, redrawn),
    unamplified=plan.unamplified_guarantee(rounds, redrawn),
    adjacency=plan.adjacency,
    sensitivity=plan.sensitivity,
  )


def revealed_by_queries(
  draws: Sequence[noise.Draws],
  *,
  delta: float,
  adjacency: guarantee_lib.Adjacency,
) -> Revealed:
  """Returns what a synthetic set reveals: everyone is in every query.

  Raises:
    CertificateError: A draw is no Gaussian of finite noise: nobody is sampled,
      and a draw of nothing reveals nothing of what was queried.
  """
  event = _event_of(draws)
  leaves = events.flatten(event)
  legal = (dp_event.GaussianDpEvent, dp_event.NonPrivateDpEvent)
  strange = [leaf for leaf, _ in leaves if not isinstance(leaf, legal)]
  if strange or not leaves:
    got = type(strange[0]).__name__ if strange else 'nothing'
    raise document.CertificateError(
      f'the draws of a synthetic set must be Gaussians, got {got}.'
    )
  return Revealed(
    event=event,
    unamplified=accountant.guarantee_of_event(
      event, delta=delta, adjacency=adjacency
    ),
    adjacency=adjacency,
    sensitivity=1.0,
  )


def _event_of(draws: Sequence[noise.Draws]) -> dp_event.DpEvent:
  return events.compose(
    (events.from_json(draw.event), draw.count) for draw in draws
  )


def account(
  found: Revealed,
  delta: float,
  *,
  headline: Sequence[float] | None = None,
  deltas: Sequence[float] = profile.PROFILE_DELTAS,
  groups: Sequence[int] = GROUPS,
) -> document.Accounting:
  """Returns the accounting of what a release reveals.

  Args:
    found: What it reveals.
    delta: Of its guarantee.
    headline: Other deltas beside it; by default a tenth and a hundredth.
    deltas: Of the privacy profile.
    groups: Numbers of users who come or go together.
  """
  if headline is None:
    headline = (delta / 100, delta / 10, delta)
  own = accountant.guarantee_of_event(
    found.event, delta=delta, adjacency=found.adjacency
  )
  unamplified = found.unamplified
  bound = profile.gdp_bound(found.event, adjacency=found.adjacency)
  to_json = guarantee_lib.epsilon_to_json
  return document.Accounting(
    method=method(),
    accountant=own.accountant,
    epsilon=to_json(own.epsilon),
    delta=delta,
    cross_check_epsilon=(
      None if own.cross_check is None else to_json(own.cross_check)
    ),
    discretisation=own.discretisation,
    epsilon_at_deltas=_profile(found, headline),
    profile=_profile(found, deltas),
    groups=tuple(
      document.AtGroup(
        users=users,
        epsilon=to_json(
          profile.group_guarantee(
            found.event, users=users, delta=delta, adjacency=found.adjacency
          ).epsilon
        ),
      )
      for users in groups
    ),
    mu_gdp=own.mu_gdp,
    mu_gdp_bound=(
      None
      if bound is None
      else document.GdpBound(mu=bound.mu, least_delta=bound.least_delta)
    ),
    zcdp_rho=own.zcdp_rho,
    unamplified_epsilon=to_json(unamplified.epsilon),
    unamplified_mu_gdp=unamplified.mu_gdp,
    unamplified_zcdp_rho=unamplified.zcdp_rho,
    event=events.to_json(found.event),
    notes=own.assumptions,
    warnings=own.warnings,
  )


def _profile(
  found: Revealed, deltas: Sequence[float]
) -> tuple[document.AtDelta, ...]:
  return tuple(
    document.AtDelta(
      delta=item.delta, epsilon=guarantee_lib.epsilon_to_json(item.epsilon)
    )
    for item in profile.epsilons(found.event, deltas, adjacency=found.adjacency)
  )


def overcharge(
  draws: Sequence[noise.Draws], queries: Sequence[noise.Query]
) -> float | None:
  """Returns how much more was charged than the queries reveal.

  In units of 1 / noise_multiplier^2, in which Gaussians add up. A crash
  between charge and draw leaves some; it may not be negative. None if a query
  states no noise multiplier, or the draws are not Gaussians.

  Raises:
    CertificateError: A noise multiplier is not above 0.
  """
  if not queries or any(item.noise_multiplier is None for item in queries):
    return None
  asked = 0.0
  for item in queries:
    multiplier = item.noise_multiplier or 0.0
    if not multiplier > 0:
      raise document.CertificateError(
        f'queries must have noise_multiplier > 0, got {multiplier}.'
      )
    asked += item.times / multiplier**2
  charged = events.gaussian_multiplier(
    events.compose(events.flatten(_event_of(draws)))
  )
  if not charged:
    return None
  difference = charged**-2 - asked
  return 0.0 if abs(difference) < OVERCHARGE_NOISE else difference
