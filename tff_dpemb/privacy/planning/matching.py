"""Which sampler, mechanism and adjacency go together in a plan."""

import math

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import correlated_sensitivity
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers


def check(
  sampler: samplers.Sampler,
  mechanism: mechanisms.Mechanism,
  *,
  virtual_clients: int,
  rounds: int,
  adjacency: guarantee.Adjacency,
) -> None:
  """Refuses parts that do not go together; arguments as those of a plan.

  Raises:
    PlanError: It says which part, and the remedy.
  """
  if adjacency not in sampler.adjacencies:
    legal = ' or '.join(sampler.adjacencies)
    raise guarantee.PlanError(
      f'adjacency must be {legal} for {sampler.kind} sampling, got'
      f' {adjacency.value}.'
    )
  if (
    mechanisms.is_adaptive(mechanism)
    and mechanism.virtual_clients != virtual_clients
  ):
    raise guarantee.PlanError(
      'virtual_clients of plan and mechanism must be equal, got'
      f' {virtual_clients} and {mechanism.virtual_clients}.'
    )
  if isinstance(sampler, samplers.MinSeparationSampler):
    most = sampler.min_separation * sampler.max_participations
    if rounds > most:
      raise guarantee.PlanError(
        f'rounds must be at most min_separation x max_participations ='
        f' {sampler.min_separation} x {sampler.max_participations}, beyond'
        f' which nobody is left, got {rounds}; raise max_participations'
        ' or run fewer rounds.'
      )
  if not isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    return
  if not isinstance(sampler, samplers.MinSeparationSampler):
    raise needs_schedule(mechanism.kind, sampler)
  found = mechanism.correlated_sensitivity(
    rounds, participation=sampler.participation
  )
  if mechanism.clipping == 'adaptive' and mechanism.noise_multiplier > 0:
    _check_count_noise(mechanism, found)


def _check_count_noise(
  mechanism: correlated_gaussian.CorrelatedGaussian,
  found: correlated_sensitivity.Sensitivity,
) -> None:
  """Refuses counts that reveal more than the sums that they serve."""
  least = math.sqrt(found.times) * mechanism.noise_multiplier / 2 / found.whole
  if mechanism.count_stddev >= least:
    return
  share = clipped_sum.CLIPPED_COUNT_SHARE
  raise guarantee.PlanError(
    f'clipped_count_stddev must be at least {least:.4g} (counts would reveal'
    f' more than the sums), got {mechanism.count_stddev:.4g}, which by'
    f' default is {share:g} x virtual_clients = {mechanism.virtual_clients}; raise'
    f' virtual_clients to {math.ceil(least / share)}, lower the noise, or use'
    " clipping = 'fixed'."
  )


def needs_schedule(kind: str, sampler: samplers.Sampler) -> guarantee.PlanError:
  """Returns the error of correlated noise without a schedule."""
  return guarantee.PlanError(
    f'sampler must be min-separation for {kind} noise (correlated over rounds,'
    f' it needs a schedule), got {sampler.kind}; set sampler ='
    " 'min-separation' or noise = 'independent'."
  )
