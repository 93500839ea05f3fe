"""A worker with devices, behind a real port, as the coordinator uses it."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.training.execution import executors
from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import device
from tff_dpemb.training.execution.workers import messages
from tff_dpemb.training.execution.workers import process
from tff_dpemb.training.execution.workers import remote

_CPU = '/device:CPU:0'


@tff.tensorflow.computation(np.float32, np.float32)
def _finish(state, total):
  return state + 1.0, total


@tff.tensorflow.computation(np.float32, tff.TensorType(np.float32, [None]))
def _scaled_sum(scale, values):
  with tf.control_dependencies([tf.debugging.assert_non_negative(values)]):
    return scale * tf.reduce_sum(values)


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS),
)
def _sum_of_sums(state, data):
  sums = tff.federated_map(_scaled_sum, (tff.federated_broadcast(state), data))
  result = tff.federated_map(_finish, (state, tff.federated_sum(sums)))
  return result[0], result[1]


@pytest.fixture(scope='module')
def form():
  form = round_form.RoundForm(_sum_of_sums)
  yield form
  form.close()


@pytest.fixture(scope='module')
def served():
  served = device.serve([_CPU])
  yield served
  served.server.stop(None)


@pytest.fixture
def worker(served):
  worker = remote.RemoteWorker(f'127.0.0.1:{served.port}', name='w')
  worker.connect(deadline_seconds=10)
  yield worker
  worker.close()


def _share(worker, form, clients, *, slots=2):
  broadcast = messages.encode(form.broadcast(np.float32(3.0)))
  data = [[np.array(values, np.float32)] for values in clients]
  return worker.run_share(form, broadcast, data, slots=slots)[0]


@pytest.mark.parametrize('slots', [1, 2, 9])
def test_a_share_is_summed(worker, form, slots):
  worker.check()
  for clients, total in (
    (([1, 2], [], [4], [5, 6, 7]), 75.0),
    (([1, 2],), 9.0),
    ([[1]] * 40, 120.0),
  ):
    partial = _share(worker, form, clients, slots=slots)
    state, metric = form.update(np.float32(3.0), partial)
    assert (state, metric) == (4.0, total)


def test_a_fault_of_a_computation_is_told_and_is_no_loss(worker, form):
  with pytest.raises(
    process.ExecutorError,
    match=r'could not compute: .*InvalidArgumentError at Assert',
  ) as raised:
    _share(worker, form, ([1], [-12345], [2]))
  assert '12345' not in str(raised.value)
  assert worker.probe()
  _, metric = form.update(np.float32(3.0), _share(worker, form, ([1], [2])))
  assert metric == 9.0


def test_a_share_leaves_no_values_behind(served, worker, form):
  _share(worker, form, ([1], [2], [3]))
  (connection,) = served.service._connections.values()
  assert len(connection._values) == 3  # The round's computations.
  worker.close()
  assert not served.service._connections


def test_who_was_forgotten_is_lost(served, worker, form):
  served.service._connections.clear()
  assert not worker.probe()
  with pytest.raises(remote.WorkerLost):
    _share(worker, form, ([1],))


def test_an_executor_runs_rounds_and_plain_computations(served):
  @tff.tensorflow.computation(np.int32)
  def double(x):
    return 2 * x

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  with executors.workers([f'127.0.0.1:{served.port}']) as context:
    state, metric = _sum_of_sums(
      np.float32(3.0), [np.array([1, 2], np.float32), np.ones([3], np.float32)]
    )
    assert (state, metric) == (4.0, 18.0)
    assert context.last_round.placement[0].clients == 2
    assert double(21) == 42
    with pytest.raises(process.ExecutorError, match='parts of rounds'):
      total([1, 2])


def test_what_needs_a_whole_worker_finds_it(served):
  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  with executors.workers([f'127.0.0.1:{served.port}'], processes=1) as context:
    context._pool._workers.reverse()  # The one with devices is first.
    assert total([1, 2]) == 3


def test_connections_of_the_lost_do_not_stay(served, form):
  address = f'127.0.0.1:{served.port}'
  for _ in range(5):
    worker = remote.RemoteWorker(address)
    worker.connect(deadline_seconds=10)
    _share(worker, form, ([1],))
    worker.abandon()
  assert len(served.service._connections) <= 2


def test_a_worker_that_was_started_again_knows_nobody():
  first = device.serve([_CPU])
  worker = remote.RemoteWorker(f'127.0.0.1:{first.port}')
  worker.connect(deadline_seconds=10)
  first.server.stop(None).wait()
  second = device.serve([_CPU], port=first.port)
  other = remote.RemoteWorker(f'127.0.0.1:{first.port}')
  other.connect(deadline_seconds=10)
  assert other.probe()
  assert not worker.probe()
  other.close()
  worker.abandon()
  second.server.stop(None)


def test_a_taken_port_is_refused(served):
  with pytest.raises(process.ExecutorError, match='must be free'):
    device.serve([_CPU], port=served.port)


def test_the_program_says_why_it_ends():
  ended = subprocess.run(
    [
      sys.executable,
      '-m',
      'tff_dpemb.training.execution.workers.device',
      '--device=X',
    ],
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 2
  assert "got 'X'" in ended.stderr
