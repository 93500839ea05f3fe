"""Rounds on two logical devices, against the C++ worker.

Logical devices must be set before TensorFlow starts, so one fresh process runs
every round (`_run_rounds`) and the tests read what it kept.
"""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb import config
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import client_work
from tff_dpemb.training import process
from tff_dpemb.training.execution import accelerator
from tff_dpemb.training.execution import device_functions
from tff_dpemb.training.execution import executors
from tff_dpemb.training.execution.workers import device
from tff_dpemb.training.execution.workers import process as worker_process

_ROUNDS = 3
_CLIENTS = 5
_DEVICES = ('CPU:0', 'CPU:1')
_MECHANISMS = {
  'fixed': independent.FixedClipGaussian(0.05, 0.5),
  'adaptive': independent.AdaptiveClipGaussian(
    0.05, 0.3, virtual_clients=_CLIENTS, clipped_count_stddev=0.5
  ),
  'tree': correlated_gaussian.CorrelatedGaussian(0.05, 0.5, correlated.Tree()),
}


def _build(mechanism):
  backbone = embedding_model.build_backbone(
    config.ModelConfig(embedding_dim=8), (8, 8, 1)
  )
  page = config.from_mapping(
    {
      'name': 'test',
      'model': {'embedding_dim': 8},
      'training': {'head_steps': 3, 'backbone_batch_size': 4},
    }
  )
  return process.build_process(
    embedding_model.lift(backbone),
    process.local_tuning_from_config(page, num_classes=0),
    aggregators.build_aggregator(
      mechanism, denominator=float(_CLIENTS), rounds=_ROUNDS
    ),
    initial_weights=[v.numpy() for v in backbone.trainable_variables],
    server_learning_rate=0.5,
    server_momentum=0.9,
  )


def _clients(seed, sizes=(9, 0, 5, 12, 4)):
  rng = np.random.default_rng(seed)
  return [
    client_work.ClientData(
      images=rng.integers(0, 256, [size, 8, 8, 1]).astype(np.uint8),
      labels=(np.arange(size) % 3).astype(np.int32),
      seed=rng.integers(0, 1000, 2).astype(np.int32),
    )
    for size in sizes
  ]


def _clients_by_device() -> dict[str, int]:
  """Returns where the clients of the last round ran."""
  return {
    placed.worker: placed.clients for placed in executors.last_round().placement
  }


def _named(prefix: str, value) -> dict[str, np.ndarray]:
  leaves = tff.structure.flatten(
    tff.structure.from_container(value, recursive=True)
  )
  return {f'{prefix}/{i}': np.asarray(leaf) for i, leaf in enumerate(leaves)}


def _run_rounds(folder: pathlib.Path, devices=_DEVICES) -> None:
  """Runs each mechanism on both executors, from the same states and seeds."""
  if devices == _DEVICES:
    tf.config.set_logical_device_configuration(
      tf.config.list_physical_devices('CPU')[0],
      [tf.config.LogicalDeviceConfiguration()] * 2,
    )
  kept, told = {}, {}
  for name, mechanism in _MECHANISMS.items():
    iterative = _build(mechanism)
    with executors.local():
      state = iterative.initialize()
      starts, worker = [], []
      for number in range(_ROUNDS):
        starts.append(process.with_fresh_noise(state))
        state, metrics = iterative.next(starts[-1], _clients(number))
        worker.append((state, metrics))
    with accelerator.open(devices=devices):
      ours = [
        iterative.next(start, _clients(number))
        for number, start in enumerate(starts)
      ]
      told[name] = _clients_by_device()
    for number in range(_ROUNDS):
      for who, results in (('worker', worker), ('ours', ours)):
        kept |= _named(f'{name}/{number}/{who}', results[number])
  # The last mechanism again: the devices are behind a port.
  served = device.serve(device_functions.choose(devices))
  with executors.workers([f'127.0.0.1:{served.port}'], concurrent_calls=4):
    remote = iterative.next(starts[-1], _clients(_ROUNDS - 1))
  served.server.stop(None)
  told['remote'] = {'name': name, 'calls': served.service.calls}
  kept |= _named('remote', remote)
  with accelerator.open(devices=devices, slots_per_device=1):
    fresh = iterative.initialize()
    told['fresh_round'] = int(fresh.round)
    told['types_differ'] = str(type(fresh)) != str(type(state))
    iterative.next(process.with_fresh_noise(fresh), _clients(0, sizes=[7]))
    told['one_client'] = _clients_by_device()
    iterative.next(process.with_fresh_noise(fresh), [])
    told['no_client'] = _clients_by_device()
    sizes = tuple(range(1, 18))
    iterative.next(process.with_fresh_noise(fresh), _clients(0, sizes=sizes))
    told['many_clients'] = _clients_by_device()
    bad = _clients(0)
    bad[3] = bad[3]._replace(images=bad[3].images[:2])
    try:
      iterative.next(process.with_fresh_noise(fresh), bad)
      told['bad_client'] = 'no error'
    except tf.errors.OpError as error:
      told['bad_client'] = type(error).__name__
  np.savez(folder / 'rounds.npz', **kept)
  (folder / 'told.json').write_text(json.dumps(told))


@pytest.fixture(scope='module')
def rounds(tmp_path_factory):
  """What `_run_rounds` kept: arrays by name, and what it was told."""
  folder = tmp_path_factory.mktemp('accelerator')
  subprocess.run([sys.executable, __file__, str(folder)], check=True)
  with np.load(folder / 'rounds.npz') as arrays:
    return dict(arrays), json.loads((folder / 'told.json').read_text())


@pytest.mark.parametrize('name', _MECHANISMS)
def test_each_round_equals_the_worker_from_the_same_seeds(rounds, name):
  arrays, _ = rounds
  compared = 0
  for number in range(_ROUNDS):
    prefix = f'{name}/{number}/worker/'
    for key in [key for key in arrays if key.startswith(prefix)]:
      ours = arrays[key.replace('/worker/', '/ours/')]
      assert ours.dtype == arrays[key].dtype
      if arrays[key].dtype.kind in 'fiu':
        np.testing.assert_allclose(ours, arrays[key], rtol=2e-4, atol=2e-6)
      else:
        np.testing.assert_array_equal(ours, arrays[key])
      compared += 1
  assert compared >= _ROUNDS * 15  # 6 weights, 6 momenta, noise state, metrics


def test_devices_behind_a_port_give_the_same_round(rounds):
  arrays, told = rounds
  prefix = f'{told["remote"]["name"]}/{_ROUNDS - 1}/worker/'
  expected = [key for key in arrays if key.startswith(prefix)]
  assert len(expected) >= 15
  for key in expected:
    ours = arrays[key.replace(prefix, 'remote/')]
    if ours.dtype.kind not in 'fiu':
      continue
    np.testing.assert_allclose(ours, arrays[key], rtol=2e-4, atol=2e-6)
  calls = told['remote']['calls']
  assert set(calls) == {'/device:CPU:0', '/device:CPU:1'}
  assert min(calls.values()) >= 2


@pytest.mark.parametrize('name', _MECHANISMS)
def test_noise_is_a_part_of_what_was_compared(rounds, name):
  """Weights moved by more than the clipped sum alone could move them."""
  arrays, _ = rounds
  first = [arrays[f'{name}/0/worker/{i}'] for i in range(6)]
  later = [arrays[f'{name}/1/worker/{i}'] for i in range(6)]
  moved = np.sqrt(
    sum(np.sum((x - y) ** 2) for x, y in zip(first, later, strict=True))
  )
  assert np.isfinite(moved)
  assert moved > 0.5 * 1.9 * 0.06


@pytest.mark.parametrize('name', _MECHANISMS)
def test_both_devices_trained_clients(rounds, name):
  _, told = rounds
  assert set(told[name]) == {'/device:CPU:0', '/device:CPU:1'}
  assert min(told[name].values()) >= 1
  assert sum(told[name].values()) == _CLIENTS


def test_cohorts_of_any_size(rounds):
  _, told = rounds
  assert told['fresh_round'] == 0
  assert not told['types_differ']
  assert told['one_client'] == {'/device:CPU:0': 1, '/device:CPU:1': 0}
  assert sum(told['no_client'].values()) == 0
  assert sum(told['many_clients'].values()) == 17


def test_a_client_that_fails_fails_the_round(rounds):
  _, told = rounds
  assert told['bad_client'] == 'InvalidArgumentError'


@pytest.mark.parametrize(
  'arguments, message',
  [
    ({'devices': ['GPU:9']}, "devices must be among .*, got 'GPU:9'"),
    ({'devices': ['CPU:0', '/device:CPU:0']}, 'one or more different ones'),
    ({'devices': []}, 'one or more different ones'),
    ({'devices': ['CPU:0'], 'slots_per_device': 0}, 'must be >= 1, got 0'),
  ],
)
def test_devices_that_are_not_there_are_refused(arguments, message):
  with (
    pytest.raises(worker_process.ExecutorError, match=message),
    accelerator.open(**arguments),
  ):
    pass


def test_without_an_accelerator_a_device_must_be_named():
  if tf.config.list_logical_devices('GPU'):
    pytest.skip('this machine has a GPU')
  with (
    pytest.raises(worker_process.ExecutorError, match='must list a GPU'),
    accelerator.open(),
  ):
    pass


def test_plain_computations_run_and_variables_do_not_leak():
  @tff.tensorflow.computation(np.int32)
  def count_up(x):
    total = tf.Variable(1)
    with tf.control_dependencies([total.assign_add(x)]):
      return total.read_value()

  with accelerator.open(devices=['CPU:0']) as used:
    assert used == ('/device:CPU:0',)
    assert [count_up(2), count_up(2)] == [3, 3]
    assert executors.last_round() is None


def test_what_is_no_process_is_refused_by_name():
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def add(values):
    return tff.federated_sum(values)

  with (
    accelerator.open(devices=['CPU:0']),
    pytest.raises(worker_process.ExecutorError, match='of a process alone'),
  ):
    add([1, 2])


if __name__ == '__main__':
  _run_rounds(pathlib.Path(sys.argv[1]), tuple(sys.argv[2:]) or _DEVICES)
