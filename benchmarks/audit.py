"""The audit stays below a correct epsilon and catches broken mechanisms."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from benchmarks import runner

# Whole participation, so that the plan's curve is a Gaussian's: epsilon 1.9.
_POPULATION = 10_000
_ROUNDS = 5
_NOISE_MULTIPLIER = 8.5
_CLIP = 0.5
_VIRTUAL_CLIENTS = 64
_CANARIES = 1000
_UNSEEN = 1000
_OTHERS = 8
_REPEATS = 20
_IMAGE_SHAPE = (8, 8, 1)
_LEARNING_RATE, _MOMENTUM = 0.05, 0.9  # of the server

# What is broken, each in the running system; the plan claims what it claimed.
_BROKEN = ('noise off', 'noise halved', 'clip removed', 'user counted twice')


def measure() -> list[runner.Measure]:
  """Audits the real aggregator 20 times, then four broken ones."""
  from tff_dpemb.privacy.audit import bounds as audit
  from tff_dpemb.training.execution import executors

  claim = audit.claim_of_plan(_plan())
  measures = [
    runner.at_most('claimed epsilon', claim.epsilon, target=2.1),
    runner.noted('delta', claim.delta),
    runner.noted('canaries of a run', _CANARIES),
  ]
  with executors.local():
    sound = _build('')
    correct = [_audit(sound, seed) for seed in range(_REPEATS)]
    broken = {name: _audit(_build(name), _REPEATS) for name in _BROKEN}
  below = sum(a.lower_bound <= claim.epsilon for a in correct)
  bounds = [a.lower_bound for a in correct]
  measures += [
    runner.at_least(
      'repeats of 20 whose 95 % bound is at most the claim', below, target=19
    ),
    runner.noted('bound of a correct run, median', np.median(bounds)),
    runner.noted('bound of a correct run, highest', max(bounds)),
    runner.noted(
      'bound for any (epsilon, delta) mechanism, highest',
      max(a.epsilon_delta_bound for a in correct),
    ),
    runner.noted(
      'one-run bound (2305.08846), highest',
      max(a.one_run_bound or 0.0 for a in correct),
    ),
    runner.noted(
      'estimate of a correct run, median',
      np.median([a.estimate for a in correct]),
    ),
  ]
  for name, found in broken.items():
    measures += [
      runner.at_least(
        f'{name}: bound / claim',
        found.lower_bound / claim.epsilon,
        target=1.0,
      ),
      runner.noted(
        f'{name}: bound for any (epsilon, delta) mechanism',
        found.epsilon_delta_bound,
      ),
      runner.noted(
        f'{name}: one-run bound (2305.08846)', found.one_run_bound or 0.0
      ),
    ]
  return measures


def _plan():
  from tff_dpemb.privacy.mechanisms import independent
  from tff_dpemb.privacy.mechanisms import samplers
  from tff_dpemb.privacy.planning import plan as plan_lib

  return plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(_POPULATION, _POPULATION),
    mechanism=independent.FixedClipGaussian(_CLIP, _NOISE_MULTIPLIER),
    virtual_clients=_VIRTUAL_CLIENTS,
    rounds=_ROUNDS,
    delta=plan_lib.default_delta(_POPULATION),
  )


def _build(broken: str):
  """Returns (process, directions): the real process, or a broken one."""
  from tff_dpemb.privacy.audit import canaries as audit_canaries
  from tff_dpemb.training import audit as training_audit

  plan = _plan()
  pure, initial = _backbone()
  directions = audit_canaries.draw_directions(
    sum(weight.size for weight in initial),
    _CANARIES,
    unseen=_UNSEEN,
    rng=np.random.default_rng(0),
  )
  iterative = training_audit.build_process(
    plan,
    pure=pure,
    tuning=_tuning(),
    initial_weights=initial,
    directions=directions,
    aggregator=_aggregator(plan, broken),
    local_update=_local_update,
    server_learning_rate=_LEARNING_RATE,
    server_momentum=_MOMENTUM,
  )
  if broken == 'user counted twice':
    iterative = _Twice(iterative)
  return iterative, directions


def _audit(built, seed: int):
  """Returns the audit of one run, with canaries of its own."""
  from tff_dpemb.privacy.audit import bounds as audit
  from tff_dpemb.privacy.audit import canaries as audit_canaries
  from tff_dpemb.training import audit as training_audit

  plan = _plan()
  iterative, directions = built
  rng = np.random.default_rng(seed)  # Of canaries; the noise has no seed.
  rows = rng.permutation(directions.block)[: _CANARIES + _UNSEEN]
  directions = dataclasses.replace(
    directions, rows=rows[:_CANARIES], unseen=rows[_CANARIES:]
  )
  canaries = audit_canaries.draw_canaries(
    plan, _CANARIES, kind=audit_canaries.tight_kind(plan), rng=rng
  )
  observed = training_audit.observe(
    iterative,
    directions=directions,
    canaries=canaries,
    image_shape=_IMAGE_SHAPE,
    denominator=training_audit.denominator_of(plan),
    others=lambda number: _others(seed, number),
    server_learning_rate=_LEARNING_RATE,
    server_momentum=_MOMENTUM,
  )
  scores = audit_canaries.scores(plan, canaries, observed.products)
  return audit.audit(
    scores[canaries.inside],
    scores[~canaries.inside],
    claim=audit.claim_of_plan(plan),
    coins=True,
  )


def _aggregator(plan, broken: str):
  """Returns the real aggregator, of the plan or of a broken mechanism."""
  from tff_dpemb.training import aggregators
  from tff_dpemb.training import audit as training_audit

  mechanism = plan.mechanism
  match broken:
    case 'noise off':
      mechanism = dataclasses.replace(mechanism, noise_multiplier=0.0)
    case 'noise halved':
      mechanism = dataclasses.replace(
        mechanism, noise_multiplier=mechanism.noise_multiplier / 2
      )
    case 'clip removed':  # As much noise, and a clip that is out of reach.
      mechanism = dataclasses.replace(
        mechanism,
        clip_norm=1e6 * mechanism.clip_norm,
        noise_multiplier=mechanism.noise_multiplier / 1e6,
      )
  return aggregators.build_aggregator(
    mechanism,
    denominator=training_audit.denominator_of(plan),
    rounds=plan.rounds,
  )


class _Twice:
  """A program that puts every user into two slots of a round."""

  def __init__(self, iterative):
    self._iterative = iterative
    self.initialize = iterative.initialize

  def next(self, state, data: Sequence):
    return self._iterative.next(state, [*data, *data])


def _backbone():
  """Returns a real, small backbone and its first weights: 10^4 numbers."""
  from tff_dpemb import config
  from tff_dpemb.models import embedding_model

  backbone = embedding_model.build_backbone(
    config.ModelConfig(embedding_dim=16), _IMAGE_SHAPE
  )
  return embedding_model.lift(backbone), [
    variable.numpy() for variable in backbone.trainable_variables
  ]


def _tuning():
  from tff_dpemb import config
  from tff_dpemb.training import process

  page = config.from_mapping({'name': 'audit'})
  return process.local_tuning_from_config(page, num_classes=0)


def _local_update(pure, tuning, weights, data):
  """A step of weight decay and of chance: light, and of every size."""
  import tensorflow as tf

  del pure, tuning
  update = [
    0.01 * weight
    + 0.003 * tf.random.stateless_normal(tf.shape(weight), data.seed + i)
    for i, weight in enumerate(weights)
  ]
  zero = tf.constant(0.0)
  return update, {'loss_sum': zero, 'correct': zero, 'examples': zero}


def _others(seed: int, number: int):
  from tff_dpemb.training import client_work

  return [
    client_work.ClientData(
      np.zeros([1, *_IMAGE_SHAPE], np.uint8),
      np.zeros([1], np.int32),
      np.array([seed * 1000 + number, client], np.int32),
    )
    for client in range(_OTHERS)
  ]
