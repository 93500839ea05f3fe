"""How clients are shared, and what becomes of those of a lost worker.

Workers here are fakes that fail on cue; real ones are in executors_test.
"""

import contextlib
import itertools

import numpy as np
import pytest

from tff_dpemb.training.execution.workers import pool as worker_pool
from tff_dpemb.training.execution.workers import process as worker_process
from tff_dpemb.training.execution.workers import remote

_TIMES = remote.ShareTimes(1.0, 2.0, 3.0)


class _Connection:
  """Sums the clients' only number; is lost in the runs named in `fails`."""

  def __init__(self, log, name, fails=(), error=remote.WorkerLost):
    self._log, self._name, self._fails = log, name, fails
    self._error = error
    self._runs = itertools.count()

  def run_share(self, form, broadcast, clients, *, slots):
    assert form == 'form' and isinstance(broadcast, bytes) and slots == 3
    values = [int(data[0][0]) for data in clients]
    self._log.append((self._name, values))
    if next(self._runs) in self._fails:
      raise self._error(f'worker {self._name} does not answer: gone.')
    return [np.array([sum(values)])], _TIMES


class _Process:
  """An owned process that can be started `restarts` times more."""

  def __init__(self, restarts):
    self._restarts, self.alive = restarts, True

  def is_alive(self):
    return self.alive


class _Worker:
  """Has the interface of `member.Member`."""

  def __init__(self, name, connection, *, process=None, rejoins=False):
    self.name, self.process, self.is_connected = name, process, True
    self._connection, self._rejoins = connection, rejoins
    self.closed = False

  def connect(self, *, deadline_seconds):
    if not self.is_connected:
      if not self._rejoins and self.process is None:
        raise remote.WorkerLost(f'worker {self.name} must answer')
      self.is_connected = True
    return self._connection

  def watch(self, connection):
    del connection
    return contextlib.nullcontext()

  def lose(self):
    self.is_connected = False

  def close(self):
    self.closed = True


def _clients(count):
  """Client i holds one number, 2 ** i, so that a sum names its clients."""
  return [[np.full([i + 1], 2**i)] for i in range(count)]


def _total(shared):
  return sum(int(partial[0][0]) for partial in shared.partials)


def _sum(workers, count):
  pool = worker_pool.WorkerPool(workers, slots=3)
  try:
    return pool.sum_of('form', [np.zeros([2], np.float32)], _clients(count))
  finally:
    pool.close()


def test_all_workers_take_part():
  log = []
  workers = [_Worker(n, _Connection(log, n)) for n in 'abc']
  shared = _sum(workers, 7)
  assert _total(shared) == 2**7 - 1
  assert [place.worker for place in shared.placement] == ['a', 'b', 'c']
  assert sum(place.clients for place in shared.placement) == 7
  assert sum(place.examples for place in shared.placement) == 28
  assert (shared.losses, shared.times) == (0, _TIMES)
  assert all(worker.closed for worker in workers)


def test_a_round_without_clients_asks_nobody():
  shared = _sum([_Worker('a', _Connection([], 'a'))], 0)
  assert (shared.partials, shared.placement) == ([], [])


def test_a_lost_workers_clients_go_to_the_others_once():
  log = []
  workers = [
    _Worker('a', _Connection(log, 'a', fails=(0,))),
    _Worker('b', _Connection(log, 'b')),
    _Worker('c', _Connection(log, 'c')),
  ]
  shared = _sum(workers, 9)
  assert _total(shared) == 2**9 - 1
  assert shared.losses == 1
  assert [place.worker for place in shared.placement] == ['b', 'c']
  (lost,) = [values for name, values in log if name == 'a']
  redone = [v for name, values in log if name != 'a' for v in values]
  assert sorted(redone) == [2**i for i in range(9)]
  assert lost


def test_an_owned_worker_comes_back_in_the_same_round():
  log = []
  worker = _Worker(
    'a', _Connection(log, 'a', fails=(0, 1)), process=_Process(2)
  )
  shared = _sum([worker], 4)
  assert _total(shared) == 15
  assert shared.losses == 2


def test_a_remote_worker_may_come_back_in_the_next_round():
  log = []
  workers = [
    _Worker('a', _Connection(log, 'a', fails=(0,)), rejoins=True),
    _Worker('b', _Connection(log, 'b')),
  ]
  pool = worker_pool.WorkerPool(workers, slots=3)
  first = pool.sum_of('form', [np.zeros([1])], _clients(6))
  second = pool.sum_of('form', [np.zeros([1])], _clients(6))
  pool.close()
  assert _total(first) == _total(second) == 63
  assert [place.worker for place in first.placement] == ['b']
  assert [place.worker for place in second.placement] == ['a', 'b']


def test_without_workers_the_round_ends_and_can_be_resumed():
  log = []
  workers = [_Worker(n, _Connection(log, n, fails=(0, 1))) for n in 'ab']
  with pytest.raises(
    worker_pool.NoWorkersError, match='none of a, b does; start one again'
  ) as caught:
    _sum(workers, 4)
  assert caught.value.exit_code == 75


def test_clients_that_end_every_worker_end_the_round():
  log = []
  worker = _Worker(
    'a', _Connection(log, 'a', fails=range(99)), process=_Process(99)
  )
  with pytest.raises(
    worker_pool.NoWorkersError, match='the same 2 clients lost 4 workers'
  ):
    _sum([worker], 2)
  assert len(log) == 4


def test_a_fault_of_the_computation_is_not_tried_again():
  log = []
  error = worker_process.ExecutorError
  workers = [
    _Worker(n, _Connection(log, n, fails=(0,), error=error)) for n in 'ab'
  ]
  with pytest.raises(error, match='does not answer'):
    _sum(workers, 4)
  tried = [value for _, values in log for value in values]
  assert len(tried) == len(set(tried)) > 0


@pytest.mark.parametrize(
  'error', [remote.WorkerLost, worker_pool.NoWorkersError]
)
def test_a_run_that_lost_its_workers_may_be_given_again(error):
  """Its state is saved: the code of `dpemb` for the same command again."""
  assert error('gone.').exit_code == 75
