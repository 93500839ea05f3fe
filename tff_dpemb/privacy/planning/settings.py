"""From the `[privacy]` section of a run page to a sampler and a mechanism."""

from typing import Any

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated_design
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers


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
  if privacy.noise == 'independent':
    if privacy.restart_every:
      raise guarantee.PlanError(
        'restart_every must be 0 with independent noise, got'
        f' {privacy.restart_every}; set noise to tree, banded or blt for it.'
      )
    if privacy.clipping == 'fixed':
      return mechanisms.FixedClipGaussian(
        privacy.clip_norm, privacy.noise_multiplier
      )
    return mechanisms.AdaptiveClipGaussian(
      privacy.clip_norm,
      privacy.noise_multiplier,
      virtual_clients=privacy.virtual_clients,
      target_unclipped_quantile=privacy.target_unclipped_quantile,
      learning_rate=privacy.clip_learning_rate,
    )
  if not isinstance(sampler, samplers.MinSeparationSampler):
    raise needs_schedule(privacy.noise, sampler)
  adaptive: dict[str, Any] = {}
  if privacy.clipping == 'adaptive':
    adaptive = {
      'virtual_clients': privacy.virtual_clients,
      'target_unclipped_quantile': privacy.target_unclipped_quantile,
      'learning_rate': privacy.clip_learning_rate,
    }
  return mechanisms.CorrelatedGaussian(
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


def needs_schedule(kind: str, sampler: samplers.Sampler) -> guarantee.PlanError:
  """Returns the error of correlated noise without a schedule."""
  return guarantee.PlanError(
    f'sampler must be min-separation for {kind} noise (correlated over rounds,'
    f' it needs a schedule), got {sampler.kind}; set sampler ='
    " 'min-separation' or noise = 'independent'."
  )
