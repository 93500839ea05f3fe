"""Noise splits, sensitivities, and what is refused."""

import math

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import events
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy import mechanisms

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE
_REPLACE = guarantee.Adjacency.REPLACE_ONE
_ZERO_OUT = guarantee.Adjacency.ZERO_OUT


@pytest.mark.parametrize(
  ('noise', 'clients', 'factor'),
  [
    # z_value / z_total that TFF 0.87's adaptive_clip_noise_params gives for
    # z = 1 (field reports, M6).
    (1.0, 20, 1.155),
    (1.0, 21, 1.137),
    (1.0, 100, 1.005),
    (1.0, 500, 1.0002),
  ],
)
def test_golden_adaptive_split(noise, clients, factor):
  mechanism = mechanisms.AdaptiveClipGaussian(0.5, noise, clients)
  assert mechanism.value_noise_multiplier == pytest.approx(factor, abs=6e-4)
  assert mechanism.clipped_count_stddev == pytest.approx(0.05 * clients)


@pytest.mark.parametrize('adjacency', list(guarantee.Adjacency))
@pytest.mark.parametrize('shares', [True, False])
@pytest.mark.parametrize(
  ('noise', 'clients', 'stddev'),
  [(1.0, 11, None), (0.03, 8, None), (5.92, 610, None), (1.0, 4, 0.6)],
)
def test_value_and_count_compose_to_exactly_the_total(
  noise, clients, stddev, shares, adjacency
):
  mechanism = mechanisms.AdaptiveClipGaussian(
    0.5, noise, clients, clipped_count_stddev=stddev
  )
  parts = mechanism.components(adjacency, shares_virtual_client=shares)
  whole = mechanism.event(adjacency, shares_virtual_client=shares)
  together = events.gaussian_multiplier(parts)
  assert together == pytest.approx(whole.noise_multiplier, rel=1e-6)
  multiple = mechanism.sensitivity(adjacency, shares_virtual_client=shares)
  assert together * multiple == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize(
  ('noise', 'smallest'), [(1.0, 11), (0.62, 7), (0.03, 1), (1.1, 12), (10, 101)]
)
def test_too_small_a_cohort_names_the_smallest_legal_one(noise, smallest):
  assert mechanisms.smallest_cohort(noise) == smallest
  mechanisms.AdaptiveClipGaussian(1.0, noise, smallest)
  if smallest > 1:
    with pytest.raises(
      guarantee.PlanError, match=f'at least {smallest} .*got {smallest - 1}'
    ):
      mechanisms.AdaptiveClipGaussian(1.0, noise, smallest - 1)


def test_too_small_a_count_noise_says_how_much_is_needed():
  with pytest.raises(guarantee.PlanError, match='> noise_multiplier / 2 = 0.5'):
    mechanisms.AdaptiveClipGaussian(1.0, 1.0, 100, clipped_count_stddev=0.5)


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
  mechanism = mechanisms.FixedClipGaussian(1.0, 1.0)
  assert max(moves) == multiple
  assert (
    mechanism.sensitivity(adjacency, shares_virtual_client=shares) == multiple
  )
  event = mechanism.event(adjacency, shares_virtual_client=shares)
  assert event == dp_event.GaussianDpEvent(1.0 / multiple)


@pytest.mark.parametrize(
  'mechanism',
  [
    mechanisms.FixedClipGaussian(1.0, 0.0),
    mechanisms.AdaptiveClipGaussian(1.0, 0.0, 8),
  ],
)
def test_no_noise_is_a_non_private_event(mechanism):
  assert mechanism.event(_ADD_REMOVE) == dp_event.NonPrivateDpEvent()
  assert mechanism.value_noise_multiplier == 0
  assert mechanism.clipped_count_stddev == 0


def test_tree_event_is_one_for_all_steps():
  tree = mechanisms.TreeGaussian(1.0, 3.84)
  assert tree.event(_ZERO_OUT, steps=30) == (
    dp_event.SingleEpochTreeAggregationDpEvent(
      noise_multiplier=1.92, step_counts=30
    )
  )


@pytest.mark.parametrize('value', [math.nan, math.inf, -1.0])
def test_non_finite_and_negative_values_are_refused(value):
  for build in (
    lambda: mechanisms.FixedClipGaussian(1.0, value),
    lambda: mechanisms.FixedClipGaussian(value, 1.0),
    lambda: mechanisms.TreeGaussian(1.0, value),
    lambda: mechanisms.AdaptiveClipGaussian(1.0, value, 100),
    lambda: mechanisms.AdaptiveClipGaussian(value, 1.0, 100),
    lambda: mechanisms.AdaptiveClipGaussian(1.0, 1.0, 100, learning_rate=value),
    lambda: mechanisms.AdaptiveClipGaussian(
      1.0, 1.0, 100, clipped_count_stddev=value
    ),
    lambda: mechanisms.AdaptiveClipGaussian(
      1.0, 1.0, 100, target_unclipped_quantile=value
    ),
  ):
    with pytest.raises(guarantee.PlanError, match='must be'):
      build()


@pytest.mark.parametrize(
  'mechanism',
  [
    mechanisms.FixedClipGaussian(1.0, 0.5),
    mechanisms.AdaptiveClipGaussian(1.0, 0.5, 100, learning_rate=0.1),
    mechanisms.TreeGaussian(1.0, 0.5),
  ],
)
def test_json_gives_the_mechanism_back(mechanism):
  assert mechanisms.from_json(mechanism.to_json()) == mechanism


@pytest.mark.parametrize(
  'name', ['value_noise_multiplier', 'clipped_count_stddev', 'noise_multiplier']
)
def test_json_with_a_split_that_does_not_add_up_is_refused(name):
  content = mechanisms.AdaptiveClipGaussian(1.0, 0.5, 100).to_json()
  content[name] *= 1.01
  with pytest.raises(guarantee.PlanError, match='must be'):
    mechanisms.from_json(content)
