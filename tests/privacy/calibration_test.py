"""Searches over plans, against figures found independently."""

import math
import time

import pytest

from tff_dpemb import config
from tff_dpemb.privacy import calibration
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy import plan as plan_lib


def _plan(population=3000, rounds=30, **settings):
  settings = {
    'users_per_round': 256,
    'virtual_clients': 8,
    'noise_multiplier': 0.03,
  } | settings
  return plan_lib.plan_from_config(
    config.PrivacyConfig(**settings), population=population, rounds=rounds
  )


@pytest.mark.parametrize(
  ('clients', 'noise', 'epsilon'),
  [(282, 1.06, 5.9), (384, 1.44, 3.0), (512, 1.92, 1.5)],
)
def test_golden_scaled_cohorts(clients, noise, epsilon):
  # Shared research on arXiv 2211.10844, section 3: z_sim .03, M 8, G 32, T 30,
  # N 1e6, delta N^-1.1: M' 282 -> 5.9, 384 -> 3.0, 512 -> 1.5.
  scaled = 0.03 * clients / 8
  assert scaled == pytest.approx(noise, abs=5e-3)
  found = calibration.sampled_epsilon(
    scaled / 2, probability=clients * 32 / 1e6, rounds=30, delta=1e6**-1.1
  )
  assert found == pytest.approx(epsilon, abs=0.05)


def test_extrapolate_finds_the_smallest_cohort():
  start = time.monotonic()
  small, million, ten_million = _plan().extrapolate((10**5, 10**6, 10**7))
  assert time.monotonic() - start < 10
  assert not small.reached  # Even everyone in every round: 4.29.
  assert small.users_per_round == 10**5
  assert small.epsilon == pytest.approx(4.29, abs=1e-2)
  # 4 lies between M' 282 (5.9) and 384 (3.0).
  assert million.reached
  assert million.epsilon <= 4
  assert 282 < million.virtual_clients < 384
  one_less = million.virtual_clients - 1
  assert (
    calibration.sampled_epsilon(
      0.03 * one_less / 8 / 2,
      probability=one_less * 32 / 1e6,
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
  (found,) = _plan().extrapolate((10**6,), target_epsilon=1.5)
  assert found.virtual_clients == pytest.approx(512, abs=3)


def test_extrapolate_keeps_a_plan_that_is_private_already():
  plan = _plan(
    10**6, users_per_round=256, virtual_clients=64, noise_multiplier=4.0
  )
  (found,) = plan.extrapolate((10**6,))
  assert found.virtual_clients == 64
  assert found.epsilon == pytest.approx(plan.guarantee(30).epsilon, rel=1e-6)


def test_extrapolate_without_noise_is_no_guarantee():
  (found,) = _plan(noise_multiplier=0.0).extrapolate((10**6,))
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
    _plan().extrapolate((population,), target_epsilon=target)


def test_calibrate_finds_the_least_noise():
  # Shared research, section 6: N 19,547, everyone, T 8, epsilon 4 -> z 5.92.
  delta = 19_547**-1.1
  found = calibration.calibrate(
    epsilon=4.0, delta=delta, probability=1.0, rounds=8
  )
  assert found == pytest.approx(5.92, abs=2e-2)
  sampled = calibration.calibrate(
    epsilon=4.0, delta=delta, probability=0.1, rounds=8
  )

  def spent(multiplier):
    return calibration.sampled_epsilon(
      multiplier / 2, probability=0.1, rounds=8, delta=delta
    )

  assert spent(sampled) <= 4 < spent(0.995 * sampled)


def test_calibrate_refuses_an_illegal_budget():
  with pytest.raises(guarantee.PrivacyError, match='must be finite and > 0'):
    calibration.calibrate(
      epsilon=math.inf, delta=1e-5, probability=0.1, rounds=8
    )


def test_cohort_table_keeps_to_the_budget_and_shows_the_gain():
  rows = calibration.cohort_table(
    19_547, epsilon=4.0, delta=19_547**-1.1, rounds=8, cohorts=(2048, 19_547)
  )
  assert [row.users_per_round for row in rows] == [2048, 19_547]
  assert all(3.9 < row.epsilon <= 4.0 for row in rows)
  # Noise of the mean falls with the cohort; same source: .203 / 8 and .078 / 8.
  assert rows[0].noise_of_mean * 8 == pytest.approx(0.203, rel=0.02)
  assert rows[1].noise_of_mean * 8 == pytest.approx(0.078, rel=0.02)
  assert rows[1].users_trained == 8 * 19_547


@pytest.mark.parametrize(
  ('population', 'delta', 'cohorts'),
  [(1, 1e-5, ()), (100, 0.01, ()), (100, 1e-3, (101,)), (100, 1e-3, (0,))],
)
def test_cohort_table_refuses(population, delta, cohorts):
  with pytest.raises(guarantee.PlanError, match='must be'):
    calibration.cohort_table(
      population, epsilon=4.0, delta=delta, rounds=8, cohorts=cohorts
    )
