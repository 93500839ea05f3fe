"""Planning tables keep to the budget and show costs."""

import math

import pytest

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.planning import cohort_table


def _table(population=19_547, **settings):
  settings = {
    'epsilon': 4.0,
    'delta': float(population) ** -1.1,
    'rounds': 8,
  } | settings
  return cohort_table.cohort_table(population, **settings)


def test_golden_cohorts_keep_to_the_budget():
  rows = _table(cohorts=(2048, 19_547))
  assert [row.plan.users_per_round for row in rows] == [2048, 19_547]
  assert all(3.9 < row.epsilon <= 4.0 for row in rows)
  # Shared research, section 6: noise of the mean x 8 = .203 and .078.
  assert rows[0].noise_of_mean * 8 == pytest.approx(0.203, rel=0.02)
  assert rows[1].noise_of_mean * 8 == pytest.approx(0.078, rel=0.02)
  assert rows[1].users_trained == 8 * 19_547
  assert rows[1].examples_trained == 8 * 8 * 19_547
  assert rows[1].participations == 8
  assert rows[1].noise_of_total == pytest.approx(
    rows[1].noise_of_mean * math.sqrt(8)
  )


def test_a_schedule_of_correlated_noise():
  (row,) = _table(3000, noise='tree', rounds=30, cohorts=(100,))
  # Every 30 rounds, once: the largest total, of 15 rounds, has 4 nodes.
  assert row.participations == 1
  assert row.plan.sampler.min_separation == 30
  assert row.noise_of_total == pytest.approx(2 * row.noise_of_mean)
  assert 3.9 < row.epsilon <= 4.0
  assert cohort_table.noise_of(row.plan) == 'tree'


def test_kinds_of_noise_compare_by_the_noise_of_the_total():
  settings = {'population': 10**5, 'rounds': 50, 'cohorts': (2000,)}
  tree, banded, blt = (
    _table(noise=noise, **settings)[0].noise_of_total
    for noise in ('tree', 'banded', 'blt')
  )
  assert blt < tree / 1.5
  assert banded < tree / 1.5


def test_nobody_shares_with_one_user_a_virtual_client():
  (row,) = _table(users_per_virtual_client=1, cohorts=(2048,))
  assert row.plan.sensitivity == 1
  assert row.plan.virtual_clients == 2048


def test_default_cohorts_halve_the_population():
  rows = _table(1024, noise='tree')
  assert [round(row.plan.users_per_round) for row in rows] == [
    16, 32, 64, 128, 256, 512, 1024,
  ]  # fmt: skip


def test_json_has_the_figures():
  (row,) = _table(cohorts=(2048,))
  content = row.to_json()
  assert content['noise'] == 'independent'
  assert content['users_per_round'] == 2048
  assert content['noise_multiplier'] == row.plan.mechanism.noise_multiplier
  assert content['epsilon'] == row.epsilon


@pytest.mark.parametrize(
  ('population', 'settings', 'match'),
  [
    (1, {'delta': 1e-5}, 'population must be whole and >= 2'),
    (100, {'delta': 0.01}, 'delta must be in'),
    (100, {'cohorts': (101,)}, 'a cohort must be in'),
    (100, {'cohorts': (0,)}, 'a cohort must be in'),
    (100, {'users_per_virtual_client': 0}, 'must be whole and >= 1'),
    (100, {'examples_per_user': 0}, 'must be whole and >= 1'),
    (100, {'rounds': 0, 'noise': 'tree'}, 'must be'),
    (100, {'epsilon': 0.0}, 'epsilon must be finite and > 0'),
  ],
)
def test_refuses(population, settings, match):
  with pytest.raises(guarantee.PrivacyError, match=match):
    _table(population, **settings)


def test_an_unknown_kind_of_noise_is_refused():
  with pytest.raises(config.ConfigError, match='privacy.noise must be'):
    _table(noise='white')
