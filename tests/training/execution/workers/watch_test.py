import os
import signal
import threading

import pytest

from tff_dpemb.training.execution.workers import process as worker_process
from tff_dpemb.training.execution.workers import remote
from tff_dpemb.training.execution.workers import watch


class _Worker:
  """Answers probes as `answers` says, then for ever as its last one."""

  def __init__(self, *answers):
    self._answers, self.probes = list(answers), 0
    self.was_asked = threading.Event()
    self.was_abandoned = threading.Event()

  def probe(self, *, deadline_seconds):
    assert deadline_seconds == 0.01
    self.probes += 1
    if self.probes == len(self._answers):
      self.was_asked.set()
    return self._answers[min(self.probes, len(self._answers)) - 1]

  def abandon(self):
    self.was_abandoned.set()


def test_a_worker_is_given_up_after_misses_in_a_row():
  worker = _Worker(False, True, False, False)
  with watch.Watch(worker, seconds=0.01, misses=2):
    assert worker.was_abandoned.wait(10)
  assert worker.probes == 4


def test_one_that_answers_is_kept():
  worker = _Worker(False, True, False, True)
  with watch.Watch(worker, seconds=0.01, misses=2):
    assert worker.was_asked.wait(10)
  assert not worker.was_abandoned.is_set()


def test_a_share_that_ended_is_not_given_up_later():
  worker = _Worker(False)
  with watch.Watch(worker, seconds=0.01, misses=10**9):
    assert worker.was_asked.wait(10)
  assert not worker.was_abandoned.is_set()


def test_a_silent_worker_is_given_up():
  """Stopped, it keeps its connection open and never answers."""
  with worker_process.OwnedWorker() as process:
    worker = remote.RemoteWorker(process.target, name='w')
    worker.connect(deadline_seconds=60, may_come=process.is_alive)
    worker.check()
    os.kill(process.pid, signal.SIGSTOP)
    with (
      watch.Watch(worker, seconds=0.2, misses=2),
      pytest.raises(remote.WorkerLost),
    ):
      worker.check()
    worker.abandon()
