"""No worker outlives its program, however the program ends."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import tensorflow_federated as tff

from tff_dpemb.training import executors
from tff_dpemb.training import worker_process

_PROGRAM = """
import signal, sys, time
from tff_dpemb.training import worker_process
with worker_process.OwnedWorker() as worker:
  print(worker.pid, flush=True)
  if sys.argv[1] == 'raise':
    raise KeyboardInterrupt
  time.sleep(120)
"""


def _wait_until_gone(pid, *, seconds=5.0):
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if not psutil.pid_exists(pid):
      return True
    if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
      return True
    time.sleep(0.05)
  return False


@pytest.mark.parametrize('way', ['raise', 'SIGINT', 'SIGTERM', 'SIGKILL'])
def test_the_worker_dies_with_its_program(way):
  program = subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, way],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )
  try:
    line = program.stdout.readline()
    worker = int(line)
    assert worker != program.pid
    if way != 'raise':
      assert psutil.pid_exists(worker)
      program.send_signal(getattr(signal, way))
    program.wait(timeout=20)
    assert program.returncode != 0
    assert _wait_until_gone(worker)
  finally:
    program.kill()
    program.wait()
    program.stdout.close()


def test_the_context_runs_computations_and_ends_its_worker(tff_worker):
  del tff_worker  # Contexts nest; the outer one stays usable afterwards.

  @tff.tensorflow.computation(np.int32)
  def double(x):
    return 2 * x

  with executors.local() as worker:
    pid = worker.pid
    assert os.getpgid(pid) == pid
    assert double(21) == 42
  assert _wait_until_gone(pid)
  assert double(4) == 8


def test_a_dead_worker_is_an_error_and_not_a_hang():
  @tff.tensorflow.computation(np.int32)
  def double(x):
    return 2 * x

  with executors.local() as worker:
    assert double(1) == 2
    os.kill(worker.pid, signal.SIGKILL)
    assert _wait_until_gone(worker.pid)
    with pytest.raises(
      worker_process.ExecutorError, match='ended during the run'
    ):
      double(2)
