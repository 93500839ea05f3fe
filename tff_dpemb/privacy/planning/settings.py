"""From the `[privacy]` section of a run page to a plan."""

from typing import Any

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated_design
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import matching
from tff_dpemb.privacy.planning import plan as plan_lib


def plan_from_config(
  privacy: config.PrivacyConfig,
  *,
  population: int,
  rounds: int,
  shares_virtual_client: bool = True,
) -> plan_lib.PrivacyPlan:
  """Returns the plan of a run page for a population of users.

  Args:
    privacy: The `[privacy]` section.
    population: Users in the private store.
    rounds: Rounds planned.
    shares_virtual_client: False only if no virtual client ever holds more than
      one user.

  Raises:
    PlanError: A value breaks a rule; the message says which and the remedy.
  """
  if (
    not shares_virtual_client
    and privacy.virtual_clients != privacy.users_per_round
  ):
    raise guarantee.PlanError(
      'virtual_clients must equal users_per_round where virtual clients are'
      f' not shared (each sampled user is one), got {privacy.virtual_clients}'
      f' and {privacy.users_per_round}; set virtual_clients ='
      f' {privacy.users_per_round}, or share virtual clients.'
    )
  sampler = sampler_from_config(privacy, population, rounds)
  if privacy.adjacency is None:
    adjacency = samplers.default_adjacency(sampler)
  else:
    adjacency = guarantee.Adjacency(privacy.adjacency)
  delta = privacy.delta
  return plan_lib.PrivacyPlan(
    sampler=sampler,
    mechanism=mechanism_from_config(privacy, sampler, rounds),
    virtual_clients=privacy.virtual_clients,
    rounds=rounds,
    delta=plan_lib.default_delta(population) if delta is None else delta,
    adjacency=adjacency,
    shares_virtual_client=shares_virtual_client,
  )


def sampler_from_config(
  privacy: config.PrivacyConfig, population: int, rounds: int
) -> samplers.Sampler:
  """Returns how users enter rounds, as a run page says.

  Raises:
    PlanError: A value breaks a rule, or does not go with the sampler.
  """
  if privacy.sampler != 'min-separation':
    for name in ('min_separation', 'max_participations'):
      if getattr(privacy, name) is not None:
        raise guarantee.PlanError(
          f'{name} must be left out with {privacy.sampler} sampling, got'
          f" {getattr(privacy, name)}; set sampler = 'min-separation' for it."
        )
  match privacy.sampler:
    case 'poisson':
      return samplers.PoissonSampler(population, privacy.users_per_round)
    case 'fixed-size':
      return samplers.FixedSizeSampler(population, privacy.users_per_round)
    case _:
      # As if drawn, so that a cohort beyond the population is refused alike.
      samplers.PoissonSampler(population, privacy.users_per_round)
      separation = (
        privacy.min_separation or population // privacy.users_per_round
      )
      most = privacy.max_participations or -(-rounds // separation)
      return samplers.MinSeparationSampler(population, separation, most)


def mechanism_from_config(
  privacy: config.PrivacyConfig, sampler: samplers.Sampler, rounds: int
) -> mechanisms.Mechanism:
  """Returns how sums are clipped and noised, as a run page says.

  Strategies of correlated noise are fitted to the rounds and the schedule.

  Raises:
    PlanError: A value breaks a rule, or does not go with the sampler.
  """
  adaptive: dict[str, Any] = {}
  if privacy.clipping == 'adaptive':
    adaptive = {
      'virtual_clients': privacy.virtual_clients,
      'target_unclipped_quantile': privacy.target_unclipped_quantile,
      'learning_rate': privacy.clip_learning_rate,
    }
  if privacy.noise == 'independent':
    if privacy.restart_every:
      raise guarantee.PlanError(
        'restart_every must be 0 with independent noise, got'
        f' {privacy.restart_every}; set noise to tree, banded or blt for it.'
      )
    clip_and_noise = (privacy.clip_norm, privacy.noise_multiplier)
    if privacy.clipping == 'fixed':
      return independent.FixedClipGaussian(*clip_and_noise)
    return independent.AdaptiveClipGaussian(*clip_and_noise, **adaptive)
  if not isinstance(sampler, samplers.MinSeparationSampler):
    raise matching.needs_schedule(privacy.noise, sampler)
  return correlated_gaussian.CorrelatedGaussian(
    privacy.clip_norm,
    privacy.noise_multiplier,
    correlated_design.build(
      privacy.noise,
      rounds,
      participation=sampler.participation,
      restart_every=privacy.restart_every,
      bands=privacy.bands,
      buffers=privacy.blt_buffers,
    ),
    restart_every=privacy.restart_every,
    clipping=privacy.clipping,
    **adaptive,
  )
