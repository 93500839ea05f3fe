"""The wire to one real worker."""

import os
import signal
import socket

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import messages
from tff_dpemb.training.execution.workers import process as worker_process
from tff_dpemb.training.execution.workers import remote


@tff.tensorflow.computation(np.float32, np.float32, np.float32)
def _finish(state, clients, total):
  return state + 1.0, total / clients


@tff.federated_computation(
  tff.FederatedType(np.float32, tff.SERVER),
  tff.FederatedType(tff.TensorType(np.float32, [None]), tff.CLIENTS),
)
def _mean_of_sums(state, data):
  """The mean over clients of state * (sum of the client's values)."""
  total = tff.federated_sum(
    tff.federated_map(
      tff.tensorflow.computation(
        lambda x, y: x * tf.reduce_sum(y),
        (np.float32, tff.TensorType(np.float32, [None])),
      ),
      (tff.federated_broadcast(state), data),
    )
  )
  count = tff.federated_sum(tff.federated_value(1.0, tff.CLIENTS))
  result = tff.federated_map(_finish, (state, count, total))
  return result[0], result[1]


@pytest.fixture(scope='module')
def form():
  form = round_form.RoundForm(_mean_of_sums)
  yield form
  form.close()


@pytest.fixture
def process():
  with worker_process.OwnedWorker() as process:
    yield process


@pytest.fixture
def worker(process):
  worker = remote.RemoteWorker(process.target, name='w')
  worker.connect(deadline_seconds=60, may_come=process.is_alive)
  yield worker
  worker.abandon()


def _share(worker, form, clients, *, slots=2):
  broadcast = messages.encode(form.broadcast(np.float32(3.0)))
  return worker.run_share(form, broadcast, clients, slots=slots)


_CLIENTS = [
  [np.array(values, np.float32)] for values in ([1, 2], [], [4], [5, 6, 7])
]


@pytest.mark.parametrize('slots', [1, 2, 9])
def test_a_share_is_summed_in_the_worker(worker, form, slots):
  worker.check()
  for clients, total in ((_CLIENTS, 75.0), (_CLIENTS[:1], 9.0)):
    partial, times = _share(worker, form, clients, slots=slots)
    _, mean = form.update(np.float32(3.0), partial)
    assert mean == total / len(clients)
    assert min(times.ship, times.train, times.collect) >= 0


def test_nobody_at_an_address_is_an_error_in_time():
  with socket.socket() as taken:
    taken.bind(('127.0.0.1', 0))
    port = taken.getsockname()[1]  # Bound, and nobody listens.
    worker = remote.RemoteWorker(f'127.0.0.1:{port}')
    with pytest.raises(
      remote.WorkerLost,
      match=f'worker 127.0.0.1:{port} must answer within 0.3 s.*dpemb worker',
    ):
      worker.connect(deadline_seconds=0.3)
    worker.abandon()


def test_a_worker_that_ends_is_lost(worker, process, form):
  _share(worker, form, _CLIENTS)
  assert worker.probe()
  os.kill(process.pid, signal.SIGKILL)
  with pytest.raises(remote.WorkerLost, match='worker w does not answer'):
    _share(worker, form, _CLIENTS)
  assert not worker.probe(deadline_seconds=0.5)


def test_a_worker_that_was_started_again_is_not_the_same(worker, process, form):
  _share(worker, form, _CLIENTS)
  target = process.target
  process.restart()
  assert process.target != target or not process.is_sealed
  with pytest.raises(remote.WorkerLost):
    _share(worker, form, _CLIENTS)


def test_a_fault_of_a_computation_is_no_loss(worker, form):
  wrong = [[np.zeros([2, 2], np.int32)]]  # Of another type than the round's.
  with pytest.raises(worker_process.ExecutorError) as caught:
    _share(worker, form, wrong)
  assert not isinstance(caught.value, remote.WorkerLost)
  assert 'worker w could not compute' in str(caught.value)
  partial, _ = _share(worker, form, _CLIENTS)
  assert form.update(np.float32(3.0), partial)[1] == 75.0 / 4


def test_what_answers_otherwise_is_refused(worker, monkeypatch):
  known, expected = remote._handshake()
  monkeypatch.setattr(
    remote, '_handshake', lambda: (known, [expected[0] + 1, expected[1]])
  )
  with pytest.raises(
    remote.WorkerRefused, match='must compute as this machine does'
  ):
    worker.check()
