"""An owned worker's process; the calls that it answers are in remote_test."""

import socket

import pytest

from tff_dpemb.processes import children
from tff_dpemb.training.execution.workers import process

_CPU = '/device:CPU:0'


class _Child:
  """A child process that is started in name only."""

  def __init__(self, command):
    self.command, self.pid, self.ended = command, 7, False

  def poll(self):
    return 0 if self.ended else None


@pytest.fixture(name='started')
def _started(monkeypatch):
  """Yields the children, in the order in which they were started."""
  started, seals = [], []

  def start(command, *, log_path, environment, seal):
    assert (log_path, environment) == ('log', {'A': 'b'})
    started.append(_Child(command))
    seals.append(seal)
    return started[-1]

  def stop(child):
    child.ended = True

  monkeypatch.setattr(children, 'start', start)
  monkeypatch.setattr(children, 'stop', stop)
  return started


def _owned(**options):
  return process.OwnedWorker(log_path='log', environment={'A': 'b'}, **options)


def test_sealed_it_is_behind_a_door(started, monkeypatch):
  monkeypatch.setattr(children, 'can_seal', lambda: True)
  with _owned(concurrent_calls=3) as worker:
    assert worker.is_sealed and worker.is_alive()
    assert worker.target.startswith('unix-abstract:dpemb-')
    first = worker.target
    worker.restart()
    assert worker.target != first  # Nobody takes it for the one before.
  one, other = started
  assert one.ended and other.ended
  assert (worker.pid, worker.is_alive()) == (0, False)
  assert one.command == [
    str(process.worker_binary()),
    f'--port={children.Seal().port}',
    '--max_concurrent_computation_calls=3',
  ]


def test_otherwise_it_has_a_free_port_of_loopback(started, monkeypatch):
  monkeypatch.setattr(children, 'can_seal', lambda: False)
  with _owned() as worker:
    host, _, port = worker.target.partition(':')
    assert not worker.is_sealed
    assert f'--port={port}' in started[0].command
    with socket.socket() as free:
      free.bind((host, int(port)))


def test_with_devices_it_is_our_own_program(started):
  with _owned(concurrent_calls=4, devices=['GPU:0', 'GPU:1']):
    pass
  (child,) = started
  assert child.command[1:4] == [
    '-P',
    '-m',
    'tff_dpemb.training.execution.workers.device',
  ]
  assert child.command[-3:] == ['--slots=4', '--device=GPU:0', '--device=GPU:1']


def test_one_that_ended_is_not_alive(started):
  with _owned() as worker:
    assert (worker.pid, worker.is_alive()) == (7, True)
    started[0].ended = True
    assert not worker.is_alive()


def test_without_a_binary_the_remedy_is_named(monkeypatch):
  monkeypatch.setattr(process.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(process.ExecutorError, match='install tensorflow-feder'):
    process.worker_binary()


def test_files_of_the_current_directory_are_no_modules(tmp_path, monkeypatch):
  (tmp_path / 'grpc.py').write_text('raise SystemExit("not this one")')
  monkeypatch.chdir(tmp_path)
  assert process.check_devices(['CPU:0']) == [_CPU]


def test_devices_are_tried_before_a_worker_starts():
  assert process.check_devices(['CPU:0']) == [_CPU]
  with pytest.raises(process.ExecutorError, match="got 'GPU:9'"):
    process.check_devices(['GPU:9'])
