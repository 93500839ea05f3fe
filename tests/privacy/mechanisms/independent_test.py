"""Noise splits of adaptive clipping, and what is refused."""

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import independent


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
  mechanism = independent.AdaptiveClipGaussian(0.5, noise, clients)
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
  mechanism = independent.AdaptiveClipGaussian(
    0.5, noise, clients, clipped_count_stddev=stddev
  )
  multiple = clipped_sum.sensitivity_multiple(
    adjacency, shares_virtual_client=shares
  )
  parts = mechanism.components(multiple)
  whole = mechanism.event(multiple)
  together = events.gaussian_multiplier(parts)
  assert together == pytest.approx(whole.noise_multiplier, rel=1e-6)
  assert together * multiple == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize(
  ('noise', 'smallest'), [(1.0, 11), (0.62, 7), (0.03, 1), (1.1, 12), (10, 101)]
)
def test_too_small_a_cohort_names_the_smallest_legal_one(noise, smallest):
  assert independent.smallest_cohort(noise) == smallest
  independent.AdaptiveClipGaussian(1.0, noise, smallest)
  if smallest > 1:
    with pytest.raises(
      guarantee.PlanError, match=f'at least {smallest} .*got {smallest - 1}'
    ):
      independent.AdaptiveClipGaussian(1.0, noise, smallest - 1)


def test_too_small_a_count_noise_says_how_much_is_needed():
  with pytest.raises(guarantee.PlanError, match='> noise_multiplier / 2 = 0.5'):
    independent.AdaptiveClipGaussian(1.0, 1.0, 100, clipped_count_stddev=0.5)


@pytest.mark.parametrize(
  'mechanism',
  [
    independent.FixedClipGaussian(1.0, 0.0),
    independent.AdaptiveClipGaussian(1.0, 0.0, 8),
  ],
)
def test_no_noise_is_a_non_private_event(mechanism):
  assert mechanism.event(2.0) == dp_event.NonPrivateDpEvent()
  assert mechanism.value_noise_multiplier == 0
  assert mechanism.count_stddev == 0
