"""Canaries through the real rounds."""

import dataclasses

import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.privacy.audit import bounds
from tff_dpemb.privacy.audit import canaries as audit_canaries
from tff_dpemb.privacy.audit import gaussians
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.training import aggregators
from tff_dpemb.training import audit as training_audit
from tff_dpemb.training import client_work
from tff_dpemb.training import process

_CLIP = 0.5
_SHAPE = (8, 8, 1)
_RATE, _MOMENTUM = 0.05, 0.9


def _plan(noise, *, rounds=3, users=1000):
  return plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(1000, users),
    mechanism=independent.FixedClipGaussian(_CLIP, noise),
    virtual_clients=4,
    rounds=rounds,
    delta=1e-4,
  )


def _clients(number):
  """Two clients that really train."""
  rng = np.random.default_rng(number)
  return [
    client_work.ClientData(
      rng.integers(0, 256, [6, *_SHAPE]).astype(np.uint8),
      (np.arange(6) % 2).astype(np.int32),
      rng.integers(0, 1000, 2).astype(np.int32),
    )
    for _ in range(2)
  ]


def _observe(
  plan, pure, backbone, *, count, aggregator=None, others=None, rate=_RATE
):
  rng = np.random.default_rng(0)
  initial = [variable.numpy() for variable in backbone.trainable_variables]
  directions = audit_canaries.draw_directions(
    sum(weight.size for weight in initial), count, unseen=50, rng=rng
  )
  canaries = audit_canaries.draw_canaries(
    plan, count, kind=audit_canaries.tight_kind(plan), rng=rng
  )
  page = config.from_mapping({'name': 'test', 'training': {'head_steps': 2}})
  iterative = training_audit.build_process(
    plan,
    pure=pure,
    tuning=process.local_tuning_from_config(page, num_classes=0),
    initial_weights=initial,
    directions=directions,
    server_learning_rate=rate,
    server_momentum=_MOMENTUM,
    aggregator=aggregator,
  )
  observed = training_audit.observe(
    iterative,
    directions=directions,
    canaries=canaries,
    image_shape=_SHAPE,
    denominator=training_audit.denominator_of(plan),
    server_learning_rate=rate,
    server_momentum=_MOMENTUM,
    others=others or (lambda number: []),
  )
  return canaries, observed


def _judge(plan, canaries, observed):
  scores = audit_canaries.scores(plan, canaries, observed.products)
  return bounds.audit(
    scores[canaries.inside],
    scores[~canaries.inside],
    claim=bounds.claim_of_plan(plan),
    coins=True,
  )


def test_canaries_arrive_clipped_each_along_its_own_direction(
  tff_worker, pure, backbone
):
  """No noise to speak of: each round shows signal x C, although 10 C is sent.

  The sums are computed back through the server's momentum.
  """
  plan = _plan(1e-6, users=500)
  canaries, observed = _observe(plan, pure, backbone, count=40)
  assert 0 < canaries.takes_part.mean() < 1
  np.testing.assert_allclose(
    observed.products, _CLIP * canaries.signals, atol=2e-3
  )
  np.testing.assert_allclose(observed.unseen, 0.0, atol=2e-3)
  np.testing.assert_allclose(
    observed.norms,
    _CLIP * np.sqrt(np.abs(canaries.signals).sum(axis=1)),
    rtol=1e-3,
  )
  # Three rounds of momentum .9 move the model by 2.71, 1.9 and 1 sums.
  weights = _RATE / 4 * np.array([2.71, 1.9, 1.0])
  np.testing.assert_allclose(
    observed.final, weights @ (_CLIP * canaries.signals), atol=1e-5
  )


def test_other_clients_train_beside_them(tff_worker, pure, backbone):
  """Two clients of norm <= C each add at most 2 C to a sum's norm."""
  plan = _plan(1e-6, rounds=1)
  canaries, observed = _observe(plan, pure, backbone, count=20, others=_clients)
  gap = observed.products - _CLIP * canaries.signals
  size = np.linalg.norm(gap) + np.linalg.norm(observed.unseen)
  assert 1e-3 < size < 2 * _CLIP


def test_half_the_noise_is_found_and_the_whole_is_not(
  tff_worker, pure, backbone
):
  """600 canaries, mu 1: power above 99 %, false alarms below 5 %."""
  plan = _plan(2 * 3**0.5)
  assert bounds.claim_of_plan(plan).mu == pytest.approx(1.0)
  sound = _judge(plan, *_observe(plan, pure, backbone, count=600))
  assert sound.verdict == bounds.CONSISTENT
  half = dataclasses.replace(plan.mechanism, noise_multiplier=3**0.5)
  broken = _observe(
    plan,
    pure,
    backbone,
    count=600,
    aggregator=aggregators.build_aggregator(half, denominator=4.0),
  )
  found = _judge(plan, *broken)
  assert found.verdict == bounds.VIOLATION
  assert found.lower_bound > found.claim.epsilon


def test_a_missing_clip_is_found(tff_worker, pure, backbone):
  plan = _plan(2 * 3**0.5)
  unclipped = independent.FixedClipGaussian(
    1e4 * _CLIP, plan.mechanism.noise_multiplier / 1e4
  )
  broken = _observe(
    plan,
    pure,
    backbone,
    count=200,
    aggregator=aggregators.build_aggregator(unclipped, denominator=4.0),
  )
  assert _judge(plan, *broken).verdict == bounds.VIOLATION


def test_correlated_noise_is_made_independent_first(tff_worker, pure, backbone):
  """A tree, two participations of each user: as strong as what is claimed.

  The standardised gap of 600 scores is mu within 5 deviations of 2 / sqrt(600).
  """
  mechanism = correlated_gaussian.CorrelatedGaussian(
    _CLIP, 4.0, correlated.Tree()
  )
  plan = plan_lib.PrivacyPlan(
    sampler=samplers.MinSeparationSampler(1000, 2, 2),
    mechanism=mechanism,
    virtual_clients=500,
    rounds=4,
    delta=1e-4,
  )
  canaries, observed = _observe(plan, pure, backbone, count=600)
  scores = audit_canaries.scores(plan, canaries, observed.products)
  inside, outside = scores[canaries.inside], scores[~canaries.inside]
  mu = bounds.claim_of_plan(plan).mu
  pooled = np.sqrt((inside.var() + outside.var()) / 2)
  gap = (inside.mean() - outside.mean()) / pooled
  assert 0.6 * mu < gap < mu + 5 * 2 / np.sqrt(600)
  assert _judge(plan, canaries, observed).verdict == bounds.CONSISTENT


def test_an_adaptive_clip_stays_where_it_starts():
  mechanism = independent.AdaptiveClipGaussian(1.0, 0.5, virtual_clients=20)
  frozen = training_audit.audited_mechanism(mechanism)
  assert frozen.learning_rate == 0
  assert frozen.value_noise_multiplier == mechanism.value_noise_multiplier
  fixed = independent.FixedClipGaussian(1.0, 0.5)
  assert training_audit.audited_mechanism(fixed) is fixed


def test_a_model_that_is_no_longer_finite_is_named(tff_worker, pure, backbone):
  with pytest.raises(bounds.AuditError, match='must stay finite.*round 0'):
    _observe(_plan(1.0, rounds=1), pure, backbone, count=10, rate=1e39)


@pytest.mark.parametrize('kind', ['flip', 'add'])
def test_estimates_tell_canaries_from_those_that_were_not_in(kind):
  inside = np.array([True, True, False, False])
  final = np.array([0.9, 0.7, 0.1, -0.1])
  canaries = audit_canaries.Canaries(
    kind, inside, np.ones([1, 4], bool), np.ones([1, 4], int)
  )
  observed = training_audit.Observed(
    products=np.stack([final, 0.5 * final]) * 4,
    unseen=np.array([[0.4, -0.4], [0.0, 0.0]]) * 4,
    norms=np.array([4.0, 8.0]),
    final=2 * final,
    final_unseen=2 * np.array([0.3, -0.3]),
    final_norm=2.0,
  )
  found = training_audit.estimates(canaries, observed, 1e-3)
  last = found['final model, cosine']
  spread = 0.1 * 2**0.5
  assert last['in'] == pytest.approx((0.8, spread))
  assert last['out'] == pytest.approx((0.0, spread))
  assert last['unseen'] == pytest.approx((0.0, 3 * spread))
  null = last['unseen'] if kind == 'add' else last['out']
  assert last['epsilon'] == pytest.approx(
    gaussians.epsilon_of_gaussians(last['in'], null, delta=1e-3)
  )
  largest = found['all iterates, largest cosine']
  assert largest['in'] == pytest.approx((0.8, spread))
  # The negative one is larger, nearer zero, in the round of the larger norm.
  assert largest['out'][0] == pytest.approx((0.1 - 0.025) / 2)
