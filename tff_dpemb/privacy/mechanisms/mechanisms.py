"""Mechanisms as frozen values: what is clipped, what noise is added.

Independent noise (`independent`) has an event a round; correlated noise
(`correlated_gaussian`) only one for the whole run.
"""

import dataclasses
import math
from typing import Any, TypeGuard

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent

Mechanism = (
  independent.FixedClipGaussian
  | independent.AdaptiveClipGaussian
  | correlated_gaussian.CorrelatedGaussian
)


def is_adaptive(
  mechanism: Mechanism,
) -> TypeGuard[
  independent.AdaptiveClipGaussian | correlated_gaussian.CorrelatedGaussian
]:
  """Whether the clip norm moves, hence clipped counts are released."""
  return mechanism.clipping == 'adaptive'


def with_noise(
  mechanism: Mechanism, noise_multiplier: float, *, count_stddev: float
) -> Mechanism:
  """Returns one whose events are those of the mechanism with other noise.

  The count of `AdaptiveClipGaussian` is within the total, so its events are
  those of fixed clipping; `count_stddev` is that of correlated noise.
  """
  if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    return dataclasses.replace(
      mechanism,
      noise_multiplier=noise_multiplier,
      clipped_count_stddev=count_stddev,
    )
  return independent.FixedClipGaussian(mechanism.clip_norm, noise_multiplier)


def from_json(content: dict[str, Any]) -> Mechanism:
  """Returns the mechanism of `to_json`'s value.

  Raises:
    PlanError: The kind is unknown, a field is missing or no number, or the two
      noises do not belong to the total.
  """
  try:
    clip_and_noise = (content['clip_norm'], content['noise_multiplier'])
    adaptive = {
      name: content[name]
      for name in clipped_sum.ADAPTIVE_FIELDS
      if name in content
    }
    adaptive['clipped_count_stddev'] = content['clipped_count_stddev']
    match content['kind']:
      case 'fixed':
        mechanism: Mechanism = independent.FixedClipGaussian(*clip_and_noise)
      case 'adaptive':
        for name in clipped_sum.ADAPTIVE_FIELDS:
          content[name]  # All must be there.
        mechanism = independent.AdaptiveClipGaussian(
          *clip_and_noise, **adaptive
        )
      case 'tree' | 'banded' | 'blt' as kind:
        strategy = correlated.strategy_from_json(content['strategy'])
        if strategy.kind != kind:
          raise guarantee.PlanError(
            f'strategy must be {kind!r} as the mechanism, got'
            f' {strategy.kind!r}.'
          )
        if content['clipping'] == 'adaptive':
          for name in clipped_sum.ADAPTIVE_FIELDS:
            content[name]
        mechanism = correlated_gaussian.CorrelatedGaussian(
          *clip_and_noise,
          strategy,
          restart_every=content['restart_every'],
          clipping=content['clipping'],
          **adaptive,
        )
      case kind:
        raise guarantee.PlanError(
          "mechanism kind must be 'fixed', 'adaptive', 'tree', 'banded' or"
          f" 'blt', got {kind!r}."
        )
  except KeyError as error:
    raise guarantee.PlanError(f'mechanism must have {error}.') from error
  for name, computed in (
    ('value_noise_multiplier', mechanism.value_noise_multiplier),
    ('clipped_count_stddev', mechanism.count_stddev),
  ):
    stated: Any = content.get(name)
    if not checks.is_number(stated) or not math.isclose(
      stated, computed, rel_tol=1e-9
    ):
      raise guarantee.PlanError(
        f'{name} must be {computed!r} for noise_multiplier'
        f' {mechanism.noise_multiplier}, got {stated!r}.'
      )
  return mechanism
