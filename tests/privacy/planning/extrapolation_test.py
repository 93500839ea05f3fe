"""Larger populations, against figures found independently."""

import math

import pytest
from dp_accounting import dp_event

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.planning import extrapolation
from tff_dpemb.privacy.planning import settings as settings_lib


def _plan(population=3000, rounds=30, **settings):
  settings = {
    'users_per_round': 256,
    'virtual_clients': 8,
    'noise_multiplier': 0.03,
  } | settings
  return settings_lib.plan_from_config(
    config.PrivacyConfig(**settings), population=population, rounds=rounds
  )


def _sampled_epsilon(noise_multiplier, probability, *, rounds, delta):
  event = dp_event.PoissonSampledDpEvent(
    probability, dp_event.GaussianDpEvent(noise_multiplier)
  )
  return accountant.guarantee_of_event(
    dp_event.SelfComposedDpEvent(event, rounds),
    delta=delta,
    adjacency=guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  ).epsilon


@pytest.mark.parametrize(
  ('clients', 'noise', 'epsilon'),
  [(282, 1.06, 5.9), (384, 1.44, 3.0), (512, 1.92, 1.5)],
)
def test_golden_scaled_cohorts(clients, noise, epsilon):
  # Shared research on arXiv 2211.10844, section 3: z_sim .03, M 8, G 32, T 30,
  # N 1e6, delta N^-1.1: M' 282 -> 5.9, 384 -> 3.0, 512 -> 1.5.
  scaled = 0.03 * clients / 8
  assert scaled == pytest.approx(noise, abs=5e-3)
  found = _sampled_epsilon(
    scaled / 2, clients * 32 / 1e6, rounds=30, delta=1e6**-1.1
  )
  assert found == pytest.approx(epsilon, abs=0.05)


def test_extrapolate_finds_the_smallest_cohort():
  small, million, ten_million = extrapolation.extrapolate(
    _plan(), (10**5, 10**6, 10**7)
  )
  assert not small.reached  # Even everyone in every round: 4.29.
  assert small.users_per_round == 10**5
  assert small.epsilon == pytest.approx(4.29, abs=1e-2)
  # 4 lies between M' 282 (5.9) and 384 (3.0).
  assert million.reached
  assert million.epsilon <= 4
  assert 282 < million.virtual_clients < 384
  one_less = million.virtual_clients - 1
  assert (
    _sampled_epsilon(
      0.03 * one_less / 8 / 2,
      one_less * 32 / 1e6,
      rounds=30,
      delta=1e6**-1.1,
    )
    > 4 * 0.99
  )
  assert ten_million.reached
  assert ten_million.virtual_clients < million.virtual_clients
  for found in (small, million, ten_million):
    factor = found.virtual_clients / 8
    assert found.extrapolated is True
    assert found.noise_multiplier == pytest.approx(0.03 * factor)
    assert found.users_per_round == pytest.approx(256 * factor)
    assert found.users_per_round <= found.population
    assert found.delta == pytest.approx(found.population**-1.1)
    assert found.to_json()['extrapolated'] is True


def test_extrapolate_reaches_another_target():
  (found,) = extrapolation.extrapolate(_plan(), (10**6,), target_epsilon=1.5)
  assert found.virtual_clients == pytest.approx(512, abs=3)


def test_extrapolate_keeps_a_plan_that_is_private_already():
  plan = _plan(
    10**6, users_per_round=256, virtual_clients=64, noise_multiplier=4.0
  )
  (found,) = extrapolation.extrapolate(plan, (10**6,))
  assert found.virtual_clients == 64
  assert found.epsilon == pytest.approx(plan.guarantee(30).epsilon, rel=1e-6)


def test_extrapolate_without_noise_is_no_guarantee():
  (found,) = extrapolation.extrapolate(_plan(noise_multiplier=0.0), (10**6,))
  assert found.epsilon == math.inf
  assert not found.reached
  assert found.to_json()['epsilon'] is None


@pytest.mark.parametrize(
  ('population', 'target', 'message'),
  [
    (255, 4.0, 'at least users_per_round = 256, got 255'),
    (10**6, 0.0, 'target_epsilon must be finite and > 0'),
    (10**6, math.nan, 'target_epsilon must be finite and > 0'),
  ],
)
def test_extrapolate_refuses(population, target, message):
  with pytest.raises(guarantee.PlanError, match=message):
    extrapolation.extrapolate(_plan(), (population,), target_epsilon=target)
