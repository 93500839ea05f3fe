"""Samplers as values: expected cohorts, events, what is refused."""

import math

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import samplers

_INNER = dp_event.GaussianDpEvent(1.0)
_EVERY = [
  samplers.PoissonSampler(1000, 12.5),
  samplers.FixedSizeSampler(1000, 10),
  samplers.MinSeparationSampler(1000, 7, 3),
]


def test_events_of_samples():
  poisson, fixed, _ = _EVERY
  assert poisson.event(_INNER) == dp_event.PoissonSampledDpEvent(0.0125, _INNER)
  assert fixed.event(_INNER) == dp_event.SampledWithoutReplacementDpEvent(
    1000, 10, _INNER
  )


@pytest.mark.parametrize(
  'kind', [samplers.PoissonSampler, samplers.FixedSizeSampler]
)
def test_everyone_and_no_noise_are_not_amplified(kind):
  assert kind(1000, 1000).event(_INNER) == _INNER
  nothing = dp_event.NonPrivateDpEvent()
  assert kind(1000, 10).event(nothing) == nothing


def test_a_schedule_by_hand():
  sampler = samplers.MinSeparationSampler(1000, 8, 3)
  assert sampler.users_per_round == 125
  assert sampler.probability == 0.125
  assert sampler.participation == samplers.Participation(8, 3)


@pytest.mark.parametrize('sampler', _EVERY)
def test_json_gives_the_sampler_back(sampler):
  assert samplers.from_json(sampler.to_json()) == sampler


def test_default_adjacencies():
  found = [samplers.default_adjacency(sampler) for sampler in _EVERY]
  assert found == [
    guarantee.Adjacency.ADD_OR_REMOVE_ONE,
    guarantee.Adjacency.REPLACE_ONE,
    guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  ]


@pytest.mark.parametrize('users', [math.nan, math.inf, 0, -1, 1001, '10', True])
@pytest.mark.parametrize(
  'kind', [samplers.PoissonSampler, samplers.FixedSizeSampler]
)
def test_illegal_cohorts_are_refused(kind, users):
  with pytest.raises(guarantee.PlanError, match='users_per_round must be in'):
    kind(1000, users)


def test_fixed_size_cohorts_are_whole():
  with pytest.raises(guarantee.PlanError, match='must be whole'):
    samplers.FixedSizeSampler(1000, 10.5)


@pytest.mark.parametrize(
  ('population', 'match'),
  [
    (1, 'at least 2 users'),
    (2.5, 'whole'),
    ('9', 'whole'),
    (math.inf, 'whole'),
  ],
)
def test_illegal_populations_are_refused(population, match):
  for build in (
    lambda: samplers.PoissonSampler(population, 1),
    lambda: samplers.FixedSizeSampler(population, 1),
    lambda: samplers.MinSeparationSampler(population, 1, 1),
  ):
    with pytest.raises(
      guarantee.PlanError, match=f'population must be .*{match}'
    ):
      build()


@pytest.mark.parametrize(
  ('separation', 'most', 'match'),
  [
    (0, 1, 'min_separation must be whole and >= 1'),
    (1001, 1, r'min_separation must be in \[1, population = 1000\]'),
    (5, 0, 'max_participations must be whole and >= 1'),
    (5, 1.5, 'max_participations must be whole and >= 1'),
  ],
)
def test_illegal_schedules_are_refused(separation, most, match):
  with pytest.raises(guarantee.PlanError, match=match):
    samplers.MinSeparationSampler(1000, separation, most)


class TestParticipation:
  @pytest.mark.parametrize(
    ('phase', 'rounds', 'expected'),
    [(0, 10, [0, 3, 6]), (1, 10, [1, 4, 7]), (2, 4, [2]), (0, 0, [])],
  )
  def test_pattern(self, phase, rounds, expected):
    found = samplers.Participation(3, 3).pattern(phase, rounds)
    assert found.tolist() == expected

  @pytest.mark.parametrize(
    ('rounds', 'expected'), [(1, 1), (3, 1), (4, 2), (9, 3), (10, 3)]
  )
  def test_most(self, rounds, expected):
    assert samplers.Participation(3, 3).most(rounds) == expected

  @pytest.mark.parametrize('value', [0, -1, 1.5, True])
  def test_illegal(self, value):
    for values in ((value, 1), (1, value)):
      with pytest.raises(guarantee.PlanError, match='must be whole and >= 1'):
        samplers.Participation(*values)
