"""One holder at a time, and none left by a process that was killed."""

import subprocess
import sys
import threading

import pytest

from tff_dpemb.artifacts import locks
from tff_dpemb.artifacts import storage

_HOLD = """
import sys
from tff_dpemb.artifacts import locks
with locks.hold(sys.argv[1], wait=False):
  print('held', flush=True)
  sys.stdin.read()
"""


def test_the_directory_is_made_and_the_lock_can_be_taken_again(tmp_path):
  path = tmp_path / 'new' / '.lock'
  for _ in range(2):
    with locks.hold(path, wait=False):
      assert path.exists()


def test_a_second_holder_is_refused_or_waits_its_turn(tmp_path):
  path = tmp_path / '.lock'
  order = []

  def wait():
    with locks.hold(path, wait=True):
      order.append('second')

  waiter = threading.Thread(target=wait)
  with locks.hold(path, wait=False):
    with pytest.raises(locks.HeldError, match='must have one holder'):
      with locks.hold(path, wait=False):
        pass
    waiter.start()
    waiter.join(0.2)
    order.append('first')
  waiter.join(60)
  assert order == ['first', 'second']


def test_an_error_of_the_body_frees_it_and_passes(tmp_path):
  with pytest.raises(storage.ArtifactError, match='of the body'):
    with locks.hold(tmp_path / '.lock', wait=False):
      raise storage.ArtifactError('of the body')
  with locks.hold(tmp_path / '.lock', wait=False):
    pass


def test_the_kernel_frees_the_lock_of_a_killed_process(tmp_path):
  path = tmp_path / '.lock'
  with subprocess.Popen(
    [sys.executable, '-c', _HOLD, str(path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as holder:
    assert holder.stdout.readline() == 'held\n'
    with pytest.raises(locks.HeldError):
      with locks.hold(path, wait=False):
        pass
    holder.kill()
    holder.wait(60)
  with locks.hold(path, wait=False):
    pass


def test_a_place_that_cannot_be_written_is_an_os_error(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(OSError, match='file'):
    with locks.hold(tmp_path / 'file' / '.lock', wait=False):
      pass
