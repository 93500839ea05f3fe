"""Children die with their program, however it ends."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tff_dpemb import processes

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PROGRAM = """
import sys, time
from tff_dpemb import processes
child = processes.start([sys.executable, '-c', 'import time; time.sleep(120)'])
print(child.pid, flush=True)
if sys.argv[1] != 'exit':
  time.sleep(120)
"""


def _is_gone(pid):
  try:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True


def _wait_until_gone(pid, *, seconds=10.0):
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if _is_gone(pid):
      return True
    time.sleep(0.02)
  return False


@pytest.mark.parametrize('way', ['exit', 'SIGINT', 'SIGTERM', 'SIGKILL'])
def test_a_child_dies_with_its_program(way):
  with subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, way],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  ) as program:
    child = int(program.stdout.readline())
    if way != 'exit':
      assert not _is_gone(child)
      program.send_signal(getattr(signal, way))
    program.wait(timeout=20)
  assert _wait_until_gone(child)


def test_stop_ends_the_whole_group_and_may_be_called_twice():
  script = (
    'import subprocess, sys, time;'
    ' child = subprocess.Popen(["sleep", "120"]);'
    ' print(child.pid, flush=True); time.sleep(120)'
  )
  reader, writer = os.pipe()
  process = processes.start(
    [sys.executable, '-c', script], log_path=f'/proc/self/fd/{writer}'
  )
  with open(reader, encoding='utf-8') as lines:
    grandchild = int(lines.readline())
  os.close(writer)
  processes.stop(process)
  processes.stop(process)
  assert process.returncode == -signal.SIGKILL
  assert _wait_until_gone(grandchild)


def test_stop_gives_a_child_time_to_end_by_itself():
  process = processes.start(
    [sys.executable, '-c', 'import time; time.sleep(9)']
  )
  processes.stop(process, grace_seconds=20)
  assert process.returncode == -signal.SIGTERM


def test_a_child_is_refused_outside_the_main_thread():
  caught = []

  def start():
    try:
      processes.start([sys.executable, '-c', ''])
    except processes.ProcessError as error:
      caught.append(str(error))

  thread = threading.Thread(target=start)
  thread.start()
  thread.join()
  assert caught == ['a child process must be started from the main thread.']
