"""Sensitivities, and numbers that are refused."""

import math

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE
_REPLACE = guarantee.Adjacency.REPLACE_ONE
_ZERO_OUT = guarantee.Adjacency.ZERO_OUT


def _adaptive_tree(**changes):
  values = {'restart_every': 4, 'virtual_clients': 40} | changes
  return correlated_gaussian.CorrelatedGaussian(
    1.0, 0.5, correlated.Tree(), clipping='adaptive', **values
  )


@pytest.mark.parametrize(
  ('adjacency', 'shares', 'multiple'),
  [
    (_ADD_REMOVE, True, 2),
    (_ADD_REMOVE, False, 1),
    (_ZERO_OUT, True, 2),
    (_ZERO_OUT, False, 1),
    (_REPLACE, True, 2),
    (_REPLACE, False, 2),
  ],
)
def test_sensitivity_by_brute_force(adjacency, shares, multiple):
  """The worst neighbours on a line, over every pair of clipped updates."""
  clipped = (-1.0, -0.5, 0.0, 0.5, 1.0)  # Updates / C of one virtual client.
  moves = [abs(one - other) for one in clipped for other in clipped]
  if adjacency is not _REPLACE and not shares:
    # The user *is* the virtual client: without him its update is zero.
    moves = [abs(one) for one in clipped]
  mechanism = independent.FixedClipGaussian(1.0, 1.0)
  assert max(moves) == multiple
  found = clipped_sum.sensitivity_multiple(
    adjacency, shares_virtual_client=shares
  )
  assert found == multiple
  event = mechanism.event(found)
  assert event == dp_event.GaussianDpEvent(1.0 / multiple)


@pytest.mark.parametrize('value', [math.nan, math.inf, -1.0])
def test_non_finite_and_negative_values_are_refused(value):
  for build in (
    lambda: independent.FixedClipGaussian(1.0, value),
    lambda: independent.FixedClipGaussian(value, 1.0),
    lambda: correlated_gaussian.CorrelatedGaussian(
      1.0, value, correlated.Tree()
    ),
    lambda: correlated_gaussian.CorrelatedGaussian(
      value, 1.0, correlated.Tree()
    ),
    lambda: _adaptive_tree(learning_rate=value),
    lambda: _adaptive_tree(clipped_count_stddev=value),
    lambda: _adaptive_tree(target_unclipped_quantile=value),
    lambda: independent.AdaptiveClipGaussian(1.0, value, 100),
    lambda: independent.AdaptiveClipGaussian(value, 1.0, 100),
    lambda: independent.AdaptiveClipGaussian(
      1.0, 1.0, 100, learning_rate=value
    ),
    lambda: independent.AdaptiveClipGaussian(
      1.0, 1.0, 100, clipped_count_stddev=value
    ),
    lambda: independent.AdaptiveClipGaussian(
      1.0, 1.0, 100, target_unclipped_quantile=value
    ),
  ):
    with pytest.raises(guarantee.PlanError, match='must be'):
      build()


@pytest.mark.parametrize(
  ('clip', 'noise', 'message'),
  [
    (1e-13, 1.0, 'clip_norm must be finite and >= 1e-12'),
    (1.0, 1e-308, 'noise_multiplier must be finite and >= 1e-09'),
    (1.0, 5e-10, 'noise_multiplier must be finite and >= 1e-09'),
  ],
)
def test_numbers_too_small_for_arithmetic_are_refused(clip, noise, message):
  with pytest.raises(guarantee.PlanError, match=message):
    independent.FixedClipGaussian(clip, noise)
