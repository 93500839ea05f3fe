"""A worker that comes back, over connections and processes that are fakes."""

import contextlib

import pytest

from tff_dpemb.training.execution.workers import member
from tff_dpemb.training.execution.workers import remote
from tff_dpemb.training.execution.workers import watch


class _Connection:
  """Notes what is done with it; `fails` says which steps raise."""

  fails: tuple[str, ...] = ()

  def __init__(self, target, *, name, credentials):
    self.target, self.name, self.credentials = target, name, credentials
    self.steps = []

  def _step(self, name):
    self.steps.append(name)
    if name in self.fails:
      raise remote.WorkerLost(f'{name} of {self.target}')

  def connect(self, *, deadline_seconds, may_come):
    assert deadline_seconds == 3.0
    self.may_come = may_come
    self._step('connect')

  def check(self):
    self._step('check')

  def close(self):
    self._step('close')

  def abandon(self):
    self._step('abandon')


class _Process:
  def __init__(self):
    self.target, self.alive, self.steps = 'unix:1', True, []

  def is_alive(self):
    return self.alive

  def restart(self):
    self.target = 'unix:2'
    self.steps.append('restart')

  def close(self):
    self.steps.append('close')


@pytest.fixture(name='made')
def _made(monkeypatch):
  """Yields the connections that were made, in order."""
  made = []

  class Connection(_Connection):
    def __init__(self, *args, **options):
      super().__init__(*args, **options)
      made.append(self)

  monkeypatch.setattr(remote, 'RemoteWorker', Connection)
  return made


class TestOfAnotherMachine:
  @pytest.fixture
  def worker(self):
    return member.Member(name='w', target='w:1', credentials='tls')

  def test_is_checked_and_connected_once(self, worker, made):
    assert not worker.is_connected
    connection = worker.connect(deadline_seconds=3.0)
    assert worker.is_connected
    assert worker.connect(deadline_seconds=3.0) is connection
    assert (connection.target, connection.name) == ('w:1', 'w')
    assert connection.credentials == 'tls'
    assert made == [connection]
    assert connection.steps == ['connect', 'check']
    assert isinstance(worker.watch(connection), watch.Watch)

  @pytest.mark.parametrize('step', ['connect', 'check'])
  def test_what_fails_is_abandoned(self, worker, made, monkeypatch, step):
    monkeypatch.setattr(_Connection, 'fails', (step,))
    with pytest.raises(remote.WorkerLost, match=f'{step} of w:1'):
      worker.connect(deadline_seconds=3.0)
    assert made[0].steps[-2:] == [step, 'abandon']
    assert not worker.is_connected

  def test_after_a_loss_there_is_a_new_connection(self, worker, made):
    first = worker.connect(deadline_seconds=3.0)
    assert first.may_come()
    worker.lose()
    assert not first.may_come()  # One that still waits gives up.
    assert first.steps[-1] == 'abandon'
    assert worker.connect(deadline_seconds=3.0) is made[1]

  def test_close_says_goodbye(self, worker, made):
    worker.connect(deadline_seconds=3.0)
    worker.close()
    worker.close()
    assert made[0].steps == ['connect', 'check', 'close', 'abandon']


class TestOfOurOwn:
  def test_its_process_is_started_again(self, made):
    process = _Process()
    worker = member.Member(name='local', process=process)
    first = worker.connect(deadline_seconds=3.0)
    assert first.steps == ['connect']  # It is known: no check.
    assert isinstance(worker.watch(first), contextlib.nullcontext)
    worker.lose()
    assert process.steps == ['restart']
    assert worker.connect(deadline_seconds=3.0).target == 'unix:2'
    process.alive = False
    assert not made[1].may_come()
    worker.close()
    # Nobody is left to say goodbye to.
    assert made[1].steps == ['connect', 'abandon']
    assert process.steps == ['restart', 'close']


def test_none_is_left_if_one_cannot_start():
  processes = []

  def start():
    if len(processes) == 2:
      raise OSError('no more')
    processes.append(_Process())
    return processes[-1]

  with pytest.raises(OSError, match='no more'):
    member.start(3, start)
  assert [process.steps for process in processes] == [['close'], ['close']]
  assert [worker.name for worker in member.start(1, _Process)] == ['local']
  names = [worker.name for worker in member.start(2, _Process)]
  assert names == ['local-0', 'local-1']
