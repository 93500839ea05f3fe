"""The round as a TFF process: its type, then its execution."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb import config
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import checkpoints
from tff_dpemb.training import client_work
from tff_dpemb.training import process

_TINY = 1e-9


def _run_config(**training):
  return config.from_mapping(
    {
      'name': 'test',
      'model': {'embedding_dim': 8},
      'training': {'head_steps': 3, 'backbone_batch_size': 4, **training},
    }
  )


def _build(
  pure,
  backbone,
  *,
  clip_norm=0.5,
  local_update=client_work.client_update,
  **training,
):
  run_config = _run_config(**training)
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  return process.build_process(
    pure,
    process.local_tuning_from_config(run_config, num_classes=0),
    aggregators.build_aggregator(
      independent.FixedClipGaussian(clip_norm, _TINY), denominator=3.0
    ),
    initial_weights=weights,
    server_learning_rate=run_config.training.server_learning_rate,
    server_momentum=run_config.training.server_momentum,
    local_update=local_update,
  )


def _client(rng, examples):
  return client_work.ClientData(
    images=rng.integers(0, 256, [examples, 8, 8, 1]).astype(np.uint8),
    labels=(np.arange(examples) % 3).astype(np.int32),
    seed=rng.integers(0, 1000, 2).astype(np.int32),
  )


def test_next_takes_clients_of_any_size(pure, backbone):
  iterative = _build(pure, backbone)
  clients = iterative.next.type_signature.parameter[1]
  assert clients.placement is tff.CLIENTS
  assert list(clients.member.images.shape) == [None, 8, 8, 1]
  assert clients.member.images.dtype == np.uint8


def _eager_round(pure, weights, clients, *, clip_norm, tuning, denominator):
  """The round in NumPy and eager TensorFlow, without TFF."""
  total = [np.zeros_like(weight) for weight in weights]
  for data in clients:
    run = tf.function(
      lambda *args: client_work.client_update(
        pure, tuning, args[:-3], client_work.ClientData(*args[-3:])
      ),
      autograph=False,
    )
    update, _ = run(*map(tf.constant, weights), *map(tf.constant, data))
    update = [x.numpy() for x in update]
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in update))
    scale = min(1.0, clip_norm / max(norm, 1e-30))
    total = [x + scale * y for x, y in zip(total, update, strict=True)]
  return [x / denominator for x in total]


def test_two_rounds_equal_the_eager_reference(tff_worker, pure, backbone):
  rng = np.random.default_rng(0)
  iterative = _build(pure, backbone, clip_norm=0.05)
  state = iterative.initialize()
  tuning = process.local_tuning_from_config(
    _run_config(head_steps=3), num_classes=0
  )
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  velocity = [np.zeros_like(weight) for weight in weights]
  for _ in range(2):
    clients = [_client(rng, examples) for examples in (9, 0, 5)]
    state, metrics = iterative.next(process.with_fresh_noise(state), clients)
    mean = _eager_round(
      pure, weights, clients, clip_norm=0.05, tuning=tuning, denominator=3.0
    )
    velocity = [0.9 * v + m for v, m in zip(velocity, mean, strict=True)]
    weights = [w - 0.5 * v for w, v in zip(weights, velocity, strict=True)]
    for ours, theirs in zip(state.weights, weights, strict=True):
      np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert metrics['local']['examples'] == 14
  assert state.round == 2


def test_a_poisoned_server_stays_finite(tff_worker, pure, backbone):
  """A learning rate that makes every local run diverge: a legal, empty sum."""
  rng = np.random.default_rng(0)
  iterative = _build(pure, backbone, backbone_learning_rate=1e30)
  state, metrics = iterative.next(
    process.with_fresh_noise(iterative.initialize()),
    [_client(rng, 9), _client(rng, 9)],
  )
  assert metrics['aggregation']['zeroed'] == 2
  for before, after in zip(
    backbone.trainable_variables, state.weights, strict=True
  ):
    np.testing.assert_allclose(after, before.numpy(), atol=1e-6)


def test_local_work_may_be_wrapped(tff_worker, pure, backbone):
  """An audit's canary: a client of one image sends ones, the others train."""

  def with_canary(pure, tuning, weights, data):
    update, metrics = client_work.client_update(pure, tuning, weights, data)
    is_canary = tf.equal(tf.shape(data.labels)[0], 1)
    ones = [tf.ones_like(tensor) for tensor in update]
    return [
      tf.where(is_canary, one, own)
      for one, own in zip(ones, update, strict=True)
    ], metrics

  iterative = _build(pure, backbone, clip_norm=0.5, local_update=with_canary)
  start = iterative.initialize()
  rng = np.random.default_rng(0)
  state, _ = iterative.next(
    process.with_fresh_noise(start), [_client(rng, 1), _client(rng, 0)]
  )
  size = sum(np.size(weight) for weight in start.weights)
  expected = 0.5 * (0.5 / np.sqrt(size)) / 3  # rate, clipped ones, mean of 3
  for before, after in zip(start.weights, state.weights, strict=True):
    np.testing.assert_allclose(before - after, expected, rtol=1e-2, atol=1e-7)


def test_a_kept_state_goes_on_as_the_state(
  tff_worker, pure, backbone, tmp_path
):
  rng = np.random.default_rng(0)
  iterative = _build(pure, backbone)
  start = iterative.initialize()
  data = [_client(rng, 6)]
  state, _ = iterative.next(process.with_fresh_noise(start), data)
  checkpoints.save(tmp_path, 1, state, keep=2)
  number, restored = checkpoints.load_latest(tmp_path, start)
  assert number == 1
  ours, _ = iterative.next(process.with_fresh_noise(restored), data)
  theirs, _ = iterative.next(process.with_fresh_noise(state), data)
  for x, y in zip(ours.weights, theirs.weights, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-6)
