"""Plans: published figures, and mismatches that are refused."""

import dataclasses
import json
import math

import pytest
from dp_accounting import dp_event

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import calibration
from tff_dpemb.privacy.planning import explanation
from tff_dpemb.privacy.planning import extrapolation
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.privacy.planning import settings as settings_lib


def _plan(population=3000, rounds=30, shares=True, **settings):
  settings = {'users_per_round': 256, 'virtual_clients': 8} | settings
  return settings_lib.plan_from_config(
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
  # Same source: tree, T 30, N 1e6, z 3.84: naive 3.02, honest 6.53, by the
  # event of a whole tree, all of whose nodes are released (RDP).
  delta = 1e6**-1.1

  def whole_tree(multiplier):
    event = dp_event.SingleEpochTreeAggregationDpEvent(
      noise_multiplier=multiplier, step_counts=30
    )
    return accountant.guarantee_of_event(
      event, delta=delta, adjacency=guarantee.Adjacency.ZERO_OUT
    ).epsilon

  assert whole_tree(3.84 / 2) == pytest.approx(6.53, abs=5e-3)
  assert whole_tree(3.84) == pytest.approx(3.02, abs=5e-3)
  # As many squares (5) and the exact accountant: never more.
  plan = _plan(
    10**6,
    users_per_round=32_768,
    virtual_clients=1024,
    clipping='fixed',
    noise_multiplier=3.84,
    sampler='min-separation',
    noise='tree',
  )
  assert plan.sampler == samplers.MinSeparationSampler(10**6, 30, 1)
  assert plan.event(30).noise_multiplier == pytest.approx(1.92 / 5**0.5)
  found = plan.guarantee(30).epsilon
  assert found == pytest.approx(6.15, abs=5e-3)
  assert plan.guarantee(30).cross_check == pytest.approx(whole_tree(1.92))
  assert plan.naive_epsilon() == pytest.approx(2.83, abs=5e-3)
  assert plan.unamplified_epsilon() == found
  with pytest.raises(guarantee.PlanError, match='charged once'):
    plan.round_event()


def test_golden_fixed_size_replace_one():
  # Same source: without replacement, 32,768 of 1e6, z 3.84, T 30: 1.09 (RDP).
  plan = plan_lib.PrivacyPlan(
    sampler=samplers.FixedSizeSampler(10**6, 32_768),
    mechanism=independent.FixedClipGaussian(1.0, 3.84),
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
  assert guarantee.epsilon_to_json(plan.guarantee(30).epsilon) is None
  assert 'no guarantee' in plan.guarantee(30).describe()
  assert explanation.ZERO_NOISE_WARNING in explanation.explain(plan)
  assert extrapolation.extrapolate(plan, (10**6,))[0].epsilon == math.inf


def test_simulation_noise_has_an_answer():
  plan = _plan(rounds=30, users_per_round=300, noise_multiplier=0.03)
  found = plan.guarantee(30)
  assert 1e4 < found.epsilon < 1e5
  assert any('widened' in note for note in found.assumptions)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'population': 1}, 'population must be at least 2'),
    ({'users_per_round': 3001}, r'users_per_round must be in \(0, population'),
    ({'delta': 1 / 3000}, 'delta must be in'),
    ({'delta': 0.5}, 'delta must be in'),
    ({'rounds': 0}, 'rounds must be whole and >= 1'),
    (
      {'noise_multiplier': 1.0},
      'virtual_clients must be at least 11 .* got 8',
    ),
  ],
)
def test_illegal_settings_are_refused(settings, message):
  with pytest.raises(guarantee.PlanError, match=message):
    _plan(**settings)


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


def _schedule(noise='tree', population=3000, rounds=24, **settings):
  settings = {
    'users_per_round': 500,
    'virtual_clients': 40,
    'sampler': 'min-separation',
    'noise': noise,
    'clipping': 'fixed',
    'noise_multiplier': 5.0,
  } | settings
  return _plan(population, rounds, **settings)


_ADAPTIVE = {'clipping': 'adaptive', 'restart_every': 8}
_EVERY_PLAN = [
  {'noise_multiplier': 0.5},
  {'noise_multiplier': 0.5, 'clipping': 'fixed'},
  {'noise_multiplier': 0.5, 'sampler': 'fixed-size'},
  {'noise_multiplier': 0.5, 'sampler': 'min-separation'},
  *(
    {
      'noise_multiplier': 0.5,
      'sampler': 'min-separation',
      'noise': noise,
      **clipping,
    }
    for noise in ('tree', 'banded', 'blt')
    for clipping in ({'clipping': 'fixed'}, _ADAPTIVE)
  ),
  {
    'noise_multiplier': 0.5,
    'sampler': 'min-separation',
    'adjacency': 'zero-out-one-user',
  },
]


@pytest.mark.parametrize('settings', _EVERY_PLAN)
def test_every_plan_survives_json(settings):
  plan = _plan(virtual_clients=40, **settings)
  content = json.loads(json.dumps(plan.to_json(), allow_nan=False))
  found = plan_lib.PrivacyPlan.from_json(content)
  assert found == plan
  assert found.digest() == plan.digest()
  assert found.event(plan.rounds, 2) == plan.event(plan.rounds, 2)


@pytest.mark.parametrize('settings', _EVERY_PLAN)
def test_charges_of_a_run_are_its_event(settings):
  plan = _plan(virtual_clients=40, rounds=24, **settings)
  charged = [plan.charge_event(number, 1) for number in range(24)]
  charged += [plan.charge_event(0, 2), plan.charge_event(23, 2)]
  charged.append(plan.charge_event(23, 3))
  found = events.flatten(dp_event.ComposedDpEvent(charged))
  stated = events.flatten(plan.event(24, replays=3))
  assert [count for _, count in found] == [count for _, count in stated]
  for (one, _), (other, _) in zip(found, stated, strict=True):
    assert one == other


@pytest.mark.parametrize('noise', ['independent', 'tree', 'banded', 'blt'])
def test_a_schedule_is_charged_at_its_start(noise):
  plan = _schedule(noise)
  assert plan.is_charged_at_start
  assert plan.charge_event(0, 1) == plan.event(24)
  assert plan.charge_event(5, 1) == dp_event.NoOpDpEvent()
  assert plan.charge_event(5, 2) == plan.replay_event()
  assert plan.charge_event(0, 3) == plan.replay_event()
  assert not _plan().is_charged_at_start
  fewer = plan.guarantee(12).epsilon
  assert 0 < fewer <= plan.guarantee(24).epsilon
  assert plan.guarantee(24).epsilon < plan.guarantee(24, replays=1).epsilon
  assert plan.guarantee(0).epsilon == 0
  with pytest.raises(guarantee.PlanError, match='at most the 24 planned'):
    plan.event(25)
  with pytest.raises(guarantee.PlanError, match='charged once'):
    plan.round_event()


def test_independent_noise_on_a_schedule_is_not_amplified():
  # 3000 users, 500 a round: every 6 rounds; 24 rounds are four of one user.
  plan = _schedule('independent')
  assert plan.sampler == samplers.MinSeparationSampler(3000, 6, 4)
  assert plan.users_per_round == 500
  alone = dp_event.GaussianDpEvent(2.5)
  assert plan.event(24) == dp_event.SelfComposedDpEvent(alone, 4)
  assert plan.event(19) == dp_event.SelfComposedDpEvent(alone, 4)
  assert plan.event(18) == dp_event.SelfComposedDpEvent(alone, 3)
  assert plan.replay_event() == alone
  assert plan.unamplified_epsilon() == plan.guarantee(24).epsilon
  adaptive = _schedule('independent', clipping='adaptive', virtual_clients=60)
  assert adaptive.event(24) == plan.event(24)


def test_fixed_size_halves_the_noise_even_where_nobody_shares():
  for shares, clients in ((True, 40), (False, 256)):
    plan = _plan(
      shares=shares,
      virtual_clients=clients,
      sampler='fixed-size',
      noise_multiplier=2.0,
    )
    assert plan.adjacency is guarantee.Adjacency.REPLACE_ONE
    assert plan.round_event() == dp_event.SampledWithoutReplacementDpEvent(
      3000, 256, dp_event.GaussianDpEvent(1.0)
    )
  assert plan.guarantee(30).epsilon < plan.unamplified_epsilon()


@pytest.mark.parametrize('settings', _EVERY_PLAN)
def test_calibrated_noise_is_the_least(settings):
  plan = _plan(
    population=10**5,
    users_per_round=5000,
    rounds=24,
    **settings | {'virtual_clients': 600},
  )
  found = calibration.calibrate(plan, 3.0)
  assert dataclasses.replace(found, mechanism=plan.mechanism) == plan
  assert found.guarantee(24).epsilon <= 3.0
  noise = found.mechanism.noise_multiplier
  less = dataclasses.replace(
    found.mechanism, noise_multiplier=noise * (1 - 5e-3)
  )
  assert dataclasses.replace(found, mechanism=less).guarantee(24).epsilon > 3.0


@pytest.mark.parametrize('noise', ['independent', 'tree'])
def test_calibrate_starts_from_no_noise_too(noise):
  plans = [
    _schedule(noise, noise_multiplier=z, virtual_clients=400, **_SLOWLY[noise])
    for z in (0.0, 1.0)
  ]
  one, other = (calibration.calibrate(plan, 8.0) for plan in plans)
  assert one == other


_SLOWLY = {'independent': {'clipping': 'adaptive'}, 'tree': _ADAPTIVE}


@pytest.mark.parametrize(
  ('plan', 'epsilon', 'match'),
  [
    (_plan(virtual_clients=8), 1.0, 'virtual_clients must be at least'),
    (_schedule(**_ADAPTIVE), 0.5, 'the clipped counts may cost more'),
    (_schedule(), math.inf, 'epsilon must be finite and > 0'),
    (_schedule(), 0.0, 'epsilon must be finite and > 0'),
  ],
)
def test_calibrate_refuses(plan, epsilon, match):
  with pytest.raises(guarantee.PrivacyError, match=match):
    calibration.calibrate(plan, epsilon)


def test_a_legal_cohort_that_calibrate_names_is_legal():
  with pytest.raises(guarantee.PlanError) as error:
    calibration.calibrate(_plan(virtual_clients=8), 1.0)
  least = int(str(error.value).split('at least ')[1].split()[0])
  assert calibration.calibrate(_plan(virtual_clients=least), 1.0)


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'sampler': 'all'}, "sampler must be 'poisson', 'fixed-size' or"),
    ({'population': '3000'}, 'population must be a whole number'),
    ({'population': math.inf}, 'population must be a whole number'),
    ({'users_per_round': 501.0}, 'users_per_round must be population / min'),
    ({'min_separation': 6.0}, 'min_separation must be whole'),
    ({'adjacency': 'none'}, 'adjacency must be one of add-or-remove'),
    ({'adjacency': 3}, 'adjacency must be one of add-or-remove'),
    ({'shares_virtual_client': 1}, 'shares_virtual_client must be true or'),
    ({'delta': None}, 'delta must be in'),
    ({'rounds': '24'}, 'rounds must be whole'),
  ],
)
def test_json_that_breaks_a_rule_is_refused(changes, match):
  content = _schedule().to_json()
  with pytest.raises(guarantee.PlanError, match=match):
    plan_lib.PrivacyPlan.from_json(content | changes)
  for name in content:
    less = {key: value for key, value in content.items() if key != name}
    with pytest.raises(guarantee.PlanError, match=f"must have '{name}'"):
      plan_lib.PrivacyPlan.from_json(less)
