"""Plans: published figures, and mismatches that are refused."""

import dataclasses
import json
import math
import time

import pytest
from dp_accounting import dp_event

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy import mechanisms
from tff_dpemb.privacy import plan as plan_lib


def _plan(population=3000, rounds=30, shares=True, **settings):
  settings = {'users_per_round': 256, 'virtual_clients': 8} | settings
  return plan_lib.plan_from_config(
    config.PrivacyConfig(**settings),
    population=population,
    rounds=rounds,
    shares_virtual_client=shares,
  )


@pytest.mark.parametrize(
  ('population', 'naive', 'honest'), [(6800, 9.67, 64.2), (10**6, 0.55, 10.8)]
)
def test_golden_emnist_command(population, naive, honest):
  # README of google-research/federated, dp_visual_embeddings: dynamic_clients
  # 8, clients_per_round 32 (256 users), z .62, 200 rounds; delta N^-1.1.
  # Figures: shared research on arXiv 2211.10844, section 1.7 (PLD, Poisson).
  plan = _plan(
    population, rounds=200, virtual_clients=32, noise_multiplier=0.62
  )
  assert plan.delta == pytest.approx(population**-1.1)
  assert plan.guarantee(200).epsilon == pytest.approx(honest, rel=3e-3)
  assert plan.naive_epsilon() == pytest.approx(naive, abs=6e-3)
  assert plan.unamplified_epsilon() > 1000


def test_golden_tree():
  # Same source: tree, T 30, N 1e6, z 3.84: naive 3.02, honest 6.53.
  plan = plan_lib.PrivacyPlan(
    sampler=plan_lib.OncePerTreeSampler(10**6, 32_768),
    mechanism=mechanisms.TreeGaussian(1.0, 3.84),
    virtual_clients=1024,
    rounds=30,
    delta=1e6**-1.1,
    adjacency=guarantee.Adjacency.ZERO_OUT,
  )
  assert plan.event(30) == dp_event.SingleEpochTreeAggregationDpEvent(
    noise_multiplier=1.92, step_counts=30
  )
  assert plan.guarantee(30).epsilon == pytest.approx(6.53, abs=5e-3)
  assert plan.naive_epsilon() == pytest.approx(3.02, abs=5e-3)
  assert plan.unamplified_epsilon() == plan.guarantee(30).epsilon
  with pytest.raises(guarantee.PlanError, match='charged once'):
    plan.round_event()


def test_golden_fixed_size_replace_one():
  # Same source: without replacement, 32,768 of 1e6, z 3.84, T 30: 1.09 (RDP).
  plan = plan_lib.PrivacyPlan(
    sampler=plan_lib.FixedSizeSampler(10**6, 32_768),
    mechanism=mechanisms.FixedClipGaussian(1.0, 3.84),
    virtual_clients=1024,
    rounds=30,
    delta=1e6**-1.1,
    adjacency=guarantee.Adjacency.REPLACE_ONE,
  )
  assert plan.guarantee(30).epsilon == pytest.approx(1.09, abs=5e-3)


def test_golden_everyone_in_every_round():
  # Same source, section 6: N 19,547, everyone, z 5.92, T 8 -> epsilon 4.0.
  plan = _plan(
    19_547,
    rounds=8,
    users_per_round=19_547,
    virtual_clients=610,
    noise_multiplier=5.92,
  )
  assert plan.round_event() == dp_event.GaussianDpEvent(5.92 / 2)
  assert plan.guarantee(8).epsilon == pytest.approx(4.0, abs=1e-2)
  assert plan.unamplified_epsilon() == plan.guarantee(8).epsilon


def test_golden_no_sharing_is_what_published_accounting_assumes():
  # Field reports M4: N 10000, 500 a round, T 200, z 1, delta 4e-5: 4.31.
  plan = _plan(
    10_000,
    rounds=200,
    shares=False,
    users_per_round=500,
    virtual_clients=500,
    noise_multiplier=1.0,
    delta=4e-5,
  )
  assert plan.guarantee(200).epsilon == pytest.approx(4.31, abs=1e-2)
  assert plan.naive_epsilon() == plan.guarantee(200).epsilon


def test_the_round_event_samples_users_and_halves_the_noise():
  plan = _plan(noise_multiplier=0.5)
  event = plan.round_event()
  assert event == dp_event.PoissonSampledDpEvent(
    256 / 3000, dp_event.GaussianDpEvent(0.25)
  )
  assert plan.event(30) == dp_event.SelfComposedDpEvent(event, 30)
  assert plan.sensitivity == 2
  alone = _plan(noise_multiplier=0.5, shares=False, virtual_clients=256)
  assert alone.round_event() == (
    dp_event.PoissonSampledDpEvent(256 / 3000, dp_event.GaussianDpEvent(0.5))
  )


def test_adaptive_and_fixed_clipping_cost_the_same():
  adaptive, fixed = (
    _plan(noise_multiplier=0.5, clipping=kind) for kind in ('adaptive', 'fixed')
  )
  assert adaptive.round_event() == fixed.round_event()
  assert (
    adaptive.mechanism.value_noise_multiplier
    > fixed.mechanism.value_noise_multiplier
  )


def test_guarantee_grows_with_rounds_executed():
  plan = _plan(noise_multiplier=0.6, clipping='fixed')
  found = [plan.guarantee(rounds).epsilon for rounds in (0, 1, 30, 31)]
  assert found[0] == 0
  assert found == sorted(found)
  assert len(set(found)) == 4


def test_no_noise_is_no_guarantee():
  plan = _plan(noise_multiplier=0.0)
  assert plan.round_event() == dp_event.NonPrivateDpEvent()
  assert plan.guarantee(30).epsilon == math.inf
  assert plan.naive_epsilon() == math.inf
  assert plan.unamplified_epsilon() == math.inf
  assert plan.guarantee(30).to_json()['epsilon'] is None
  assert 'no guarantee' in plan.guarantee(30).to_json()['statement']
  assert plan_lib.ZERO_NOISE_WARNING in plan.explain()
  assert plan.extrapolate((10**6,))[0].epsilon == math.inf


def test_simulation_noise_answers_in_seconds():
  start = time.monotonic()
  plan = _plan(rounds=30, users_per_round=300, noise_multiplier=0.03)
  found = plan.guarantee(30)
  assert time.monotonic() - start < 4
  assert 1e4 < found.epsilon < 1e5
  assert any('widened' in note for note in found.assumptions)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'population': 1}, 'population must be at least 2'),
    ({'users_per_round': 3001}, r'users_per_round must be in \(0, population'),
    ({'delta': 1 / 3000}, 'delta must be in'),
    ({'delta': 0.5}, 'delta must be in'),
    ({'rounds': 0}, 'rounds must be >= 1'),
    (
      {'noise_multiplier': 1.0},
      'virtual_clients must be at least 11 .* got 8',
    ),
  ],
)
def test_illegal_settings_are_refused(settings, message):
  with pytest.raises(guarantee.PlanError, match=message):
    _plan(**settings)


def _values(**changes):
  values = {
    'sampler': plan_lib.PoissonSampler(1000, 10),
    'mechanism': mechanisms.FixedClipGaussian(1.0, 1.0),
    'virtual_clients': 4,
    'rounds': 5,
    'delta': 1e-5,
    'adjacency': guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  }
  return values | changes


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'adjacency': guarantee.Adjacency.REPLACE_ONE},
      'adjacency must be add-or-remove',
    ),
    (
      {'sampler': plan_lib.FixedSizeSampler(1000, 10)},
      'adjacency must be replace-one',
    ),
    (
      {'mechanism': mechanisms.TreeGaussian(1.0, 1.0)},
      'sampler and mechanism must belong together',
    ),
    (
      {
        'sampler': plan_lib.OncePerTreeSampler(1000, 10),
        'adjacency': guarantee.Adjacency.ZERO_OUT,
      },
      'sampler and mechanism must belong together',
    ),
    (
      {
        'sampler': plan_lib.OncePerTreeSampler(1000, 201),
        'mechanism': mechanisms.TreeGaussian(1.0, 1.0),
        'adjacency': guarantee.Adjacency.ZERO_OUT,
      },
      'rounds x users_per_round must be at most the population',
    ),
    (
      {'mechanism': mechanisms.AdaptiveClipGaussian(1.0, 0.1, 5)},
      'virtual_clients of plan and mechanism must be equal',
    ),
    ({'virtual_clients': 0}, 'virtual_clients must be >= 1'),
    ({'delta': math.nan}, 'delta must be in'),
  ],
)
def test_mismatches_are_refused(changes, message):
  plan_lib.PrivacyPlan(**_values())
  with pytest.raises(guarantee.PlanError, match=message):
    plan_lib.PrivacyPlan(**_values(**changes))


@pytest.mark.parametrize('users', [math.nan, math.inf, 0, -1])
def test_illegal_cohorts_are_refused(users):
  with pytest.raises(guarantee.PlanError, match='users_per_round must be in'):
    plan_lib.PoissonSampler(1000, users)


def test_fixed_size_cohorts_are_whole():
  with pytest.raises(guarantee.PlanError, match='must be whole'):
    plan_lib.FixedSizeSampler(1000, 10.5)


def test_json_gives_the_plan_back_and_the_digest_tells_plans_apart():
  plan = _plan(noise_multiplier=0.5)
  content = json.loads(json.dumps(plan.to_json(), allow_nan=False))
  assert plan_lib.PrivacyPlan.from_json(content) == plan
  assert plan_lib.PrivacyPlan.from_json(content).digest() == plan.digest()
  others = [
    dataclasses.replace(plan, rounds=31),
    dataclasses.replace(plan, shares_virtual_client=False),
    _plan(population=3001, noise_multiplier=0.5),
    _plan(noise_multiplier=0.51),
    _plan(noise_multiplier=0.5, clip_norm=0.4),
  ]
  assert len({plan.digest(), *(other.digest() for other in others)}) == 6


def test_explain_shows_the_split_and_a_clip_that_never_adapts():
  # Field reports: m 500, z 1 -> z_value 1.0002, sigma_b 25.
  lines = '\n'.join(_plan(virtual_clients=500, noise_multiplier=1.0).explain())
  assert 'on the value 1.0002, clipped count stddev 25' in lines
  assert 'never adapts' not in lines
  assert 'never adapts' in '\n'.join(_plan(clip_learning_rate=0.0).explain())


@pytest.mark.parametrize('clipping', ['adaptive', 'fixed'])
def test_users_that_share_nothing_are_as_many_as_virtual_clients(clipping):
  with pytest.raises(guarantee.PlanError) as error:
    _plan(shares=False, clipping=clipping, virtual_clients=8)
  assert str(error.value) == (
    'virtual_clients must equal users_per_round where virtual clients are not'
    ' shared (each sampled user is one), got 8 and 256; set virtual_clients ='
    ' 256, or share virtual clients.'
  )
  plan = _plan(shares=False, clipping=clipping, virtual_clients=256)
  assert plan.sensitivity == 1


@pytest.mark.parametrize(
  'kind',
  [
    plan_lib.FixedSizeSampler,
    plan_lib.OncePerTreeSampler,
    mechanisms.TreeGaussian,
  ],
)
def test_what_no_runtime_draws_says_so(kind):
  text = ' '.join(kind.__doc__.split()).lower()
  assert 'accounting only: no runtime draws it yet' in text
