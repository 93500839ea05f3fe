"""Children die with their program, however it ends."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tff_dpemb.processes import children as processes

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROGRAM = """
import signal, sys, time
from tff_dpemb.processes import children as processes
# A suite that runs in the background of a shell hands SIGINT on as ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


_SEALED = pytest.mark.skipif(
  not processes.can_seal(),
  reason='this kernel or container forbids network namespaces',
)
_ECHO = """
import os, socket, sys
listener = socket.socket()
listener.bind(('0.0.0.0', int(sys.argv[1])))
listener.listen()
while True:
  connection, _ = listener.accept()
  names = ' '.join(name for _, name in socket.if_nameindex())
  text = f"{os.environ['GREETING']} {names} {len(connection.recv(1 << 16))}"
  connection.sendall(text.encode())
  connection.close()
"""


def _start_echo(seal):
  return processes.start(
    [sys.executable, '-c', _ECHO, str(seal.port)],
    environment={'GREETING': 'hello'},
    seal=seal,
  )


def _ask(seal, *, seconds=20.0):
  """Returns what the echo says at the door, which may not be there at once."""
  deadline = time.monotonic() + seconds
  while True:
    with socket.socket(socket.AF_UNIX) as client:
      try:
        client.connect('\0' + seal.socket_name)
      except ConnectionRefusedError:
        if time.monotonic() > deadline:
          raise
        time.sleep(0.01)
        continue
      client.sendall(b'12345')
      return client.makefile().read()


@_SEALED
def test_a_sealed_child_is_reached_by_its_door_alone():
  seals = [processes.Seal(port=10000), processes.Seal(port=10000)]
  children = [_start_echo(seal) for seal in seals]  # The same port twice.
  try:
    # Its network has a loopback device only; and a variable reached it.
    assert [_ask(seal) for seal in seals] == ['hello lo 5'] * 2
    with pytest.raises(ConnectionRefusedError):
      socket.create_connection(('127.0.0.1', 10000))
    (door,) = psutil.Process(children[0].pid).children()
  finally:
    for child in children:
      processes.stop(child)
  assert _wait_until_gone(door.pid)
  with pytest.raises(ConnectionRefusedError):
    _ask(seals[0], seconds=0.0)


@_SEALED
def test_a_door_dies_with_its_child():
  seal = processes.Seal()
  child = _start_echo(seal)
  try:
    _ask(seal)
    (door,) = psutil.Process(child.pid).children()
    os.kill(child.pid, signal.SIGKILL)  # Not its group.
    assert _wait_until_gone(door.pid)
  finally:
    processes.stop(child)


@_SEALED
def test_a_door_carries_much_both_ways():
  """More than the buffers of sockets and pipes hold."""
  script = (
    'import socket, sys, time\n'
    'listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))\n'
    'connection, _ = listener.accept()\n'
    'with connection.makefile("rwb") as stream:\n'
    '  stream.write(stream.read(32 << 20)[::-1])\n'
    'connection.close()\n'
    'time.sleep(60)\n'  # With the child the door would go.
  )
  seal = processes.Seal()
  data = bytes(range(256)) * (1 << 17)
  child = processes.start(
    [sys.executable, '-c', script, str(seal.port)], seal=seal
  )
  try:
    deadline = time.monotonic() + 20.0
    client = socket.socket(socket.AF_UNIX)
    while client.connect_ex('\0' + seal.socket_name):
      assert time.monotonic() < deadline
      time.sleep(0.01)
    with client, client.makefile('rwb') as stream:
      stream.write(data)
      stream.flush()
      assert stream.read() == data[::-1]
  finally:
    processes.stop(child)
