"""What a plan means, in lines for people, and what looks unintended."""

import math

from tff_dpemb.privacy import checks
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import correlated_sensitivity
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

ZERO_NOISE_WARNING = 'noise_multiplier is 0: no guarantee.'


def strategy_errors(
  plan: plan_lib.PrivacyPlan,
) -> tuple[correlated_sensitivity.Error, correlated_sensitivity.Error] | None:
  """Returns the error of correlated and of independent noise, or None.

  Both for the same guarantee, rounds and schedule; None if the noise is
  independent.
  """
  sampler, mechanism = plan.sampler, plan.mechanism
  if not (
    isinstance(sampler, samplers.MinSeparationSampler)
    and isinstance(mechanism, correlated_gaussian.CorrelatedGaussian)
  ):
    return None
  own = correlated_sensitivity.error(
    mechanism.strategy,
    plan.rounds,
    participation=sampler.participation,
    restart_every=mechanism.restart_every,
  )
  independent = correlated_sensitivity.error(
    correlated.Banded(1), plan.rounds, participation=sampler.participation
  )
  return own, independent


def explain(
  plan: plan_lib.PrivacyPlan, parameters: int | None = None
) -> list[str]:
  """Returns lines for people: noise split, signal, what is released.

  Args:
    parameters: Numbers that are aggregated; adds a line on noise and signal.
  """
  mechanism = plan.mechanism
  ratio = mechanism.value_noise_multiplier / plan.virtual_clients
  lines = [
    f'population {plan.population}, {plan.users_per_round:g} users a round'
    f' (q = {plan.sampling_probability:.4g}, {plan.sampler.kind}) in'
    f' {plan.virtual_clients} virtual clients, {plan.rounds} rounds',
    f'{mechanism.clipping} clip {mechanism.clip_norm:g}, {_clip_text(plan)};'
    f' one user moves the sum by at most {plan.sensitivity:g} x clip',
    f'noise multiplier: total {mechanism.noise_multiplier:.6g}, on the value'
    f' {mechanism.value_noise_multiplier:.6g}, clipped count stddev'
    f' {mechanism.count_stddev:.6g}',
    f'noise of the mean per coordinate: {ratio:.4g} x clip',
  ]
  if parameters is not None:
    checks.whole('parameters', parameters, 1)
    lines.append(
      f'noise to signal of a round: {ratio * math.sqrt(parameters):.4g} (norm'
      f' of the noise of the mean in {parameters} coordinates / clip, the'
      ' largest norm that the mean can have)'
    )
  errors = strategy_errors(plan)
  if errors is not None:
    own, independent = errors
    lines.append(
      f'{mechanism.kind} noise: of running totals'
      f' {own.largest / independent.largest:.3g} x that of independent noise'
      f' for the same guarantee at worst, {own.rms / independent.rms:.3g} x'
      ' on average (root mean square)'
    )
  return lines + warnings(plan)


def warnings(plan: plan_lib.PrivacyPlan) -> list[str]:
  """Returns what is legal but hardly meant, a line each."""
  mechanism = plan.mechanism
  lines = []
  if mechanism.noise_multiplier == 0:
    lines.append(ZERO_NOISE_WARNING)
  if mechanisms.is_adaptive(mechanism) and mechanism.learning_rate == 0:
    lines.append('warning: clip_learning_rate is 0: the clip never adapts.')
  if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    every = mechanism.restart_every
    if mechanism.clipping == 'adaptive' and every >= plan.rounds:
      lines.append(
        f'warning: restart_every {every} is not below rounds {plan.rounds}:'
        ' the clip never adapts.'
      )
    errors = strategy_errors(plan)
    if errors is not None and errors[0].largest > errors[1].largest:
      lines.append(
        f'warning: {mechanism.kind} noise is worse than independent noise'
        ' here; restart less often, or take another strategy.'
      )
  if plan.users_per_round < plan.virtual_clients:
    lines.append(
      'warning: fewer users a round than virtual clients: most of them are'
      ' empty, and the noise is shared out among few.'
    )
  return lines


def _clip_text(plan: plan_lib.PrivacyPlan) -> str:
  mechanism = plan.mechanism
  if not mechanisms.is_adaptive(mechanism):
    return 'the same in every round: longer updates are scaled down to it'
  when = 'every round'
  if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    when = f'every {mechanism.restart_every} rounds, as the noise restarts,'
  return (
    f'moved {when} towards the norm that'
    f' {mechanism.target_unclipped_quantile:.0%} of updates stay below'
  )
