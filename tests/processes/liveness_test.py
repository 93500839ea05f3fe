import os
import pathlib
import socket
import subprocess
import sys

import psutil
import pytest

from tff_dpemb.processes import liveness


@pytest.fixture(name='ended')
def _ended():
  """Yields a process that ended and that nobody has waited for."""
  process = subprocess.Popen([sys.executable, '-c', ''])
  os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
  yield process
  process.wait()


def test_machine_and_boot_are_those_of_the_kernel():
  assert liveness.machine() == (
    f'{socket.gethostname()}/{os.readlink("/proc/self/ns/pid")}'
  )
  boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text()
  assert liveness.boot() == boot.strip()


def test_without_proc_both_are_unknown(monkeypatch):
  def refuse(*unused):
    raise FileNotFoundError

  monkeypatch.setattr(os, 'readlink', refuse)
  monkeypatch.setattr(pathlib.Path, 'read_text', refuse)
  assert liveness.machine() == f'{socket.gethostname()}/unknown'
  assert liveness.boot() == 'unknown'
  assert liveness.start_time(os.getpid()) is None


def test_who_is_alive(ended):
  assert liveness.is_alive(os.getpid())
  assert liveness.is_alive(1)  # Perhaps another user's.
  assert liveness.is_alive(ended.pid)  # Its id is not free yet.
  ended.wait()
  assert not liveness.is_alive(ended.pid)
  assert not liveness.is_alive(2**80)  # No id of a process.


def test_another_users_process_is_alive(monkeypatch):
  def refuse(*unused):
    raise PermissionError

  monkeypatch.setattr(os, 'kill', refuse)
  assert liveness.is_alive(12345)


def test_start_time_tells_a_process_from_the_next_of_its_id(ended):
  ticks = int(liveness.start_time(os.getpid()) or 0)
  since_boot = psutil.Process().create_time() - psutil.boot_time()
  assert ticks / os.sysconf('SC_CLK_TCK') == pytest.approx(since_boot, abs=1.5)
  assert liveness.start_time(ended.pid) is None  # A zombie.
  ended.wait()
  assert liveness.start_time(ended.pid) is None
