"""Every way of ending a program with workers: what survives it."""

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile

import psutil

from benchmarks import runner

_REPEATS = 5
_WAYS = (
  'return',
  'exception',
  'sys.exit',
  'os._exit',
  'SIGINT',
  'SIGTERM',
  'SIGKILL',
  'worker killed',
  'closed twice',
)
_MARK = 'DPEMB_BENCHMARK_MARK'
_GONE_SECONDS = 5.0
# Two workers each, as `executors.workers(processes=2)` starts them; TensorFlow
# has no part in how they end.
_PROGRAM = """
import contextlib, os, signal, sys, time
from tff_dpemb.training.execution.workers import process as worker_process

way = sys.argv[1]
if way == 'SIGTERM':
  signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
with contextlib.ExitStack() as stack:
  workers = [
    stack.enter_context(worker_process.OwnedWorker()) for _ in range(2)
  ]
  time.sleep(float(sys.argv[2]))
  print('ready', flush=True)
  if way == 'exception':
    raise RuntimeError
  if way == 'sys.exit':
    sys.exit(3)
  if way == 'os._exit':
    os._exit(3)
  if way.startswith('SIG'):
    time.sleep(60)
  if way == 'worker killed':
    os.kill(workers[0].pid, signal.SIGKILL)
    while workers[0].is_alive():
      time.sleep(0.01)
    workers[0].restart()
  if way == 'closed twice':
    workers[0].close()
    workers[0].close()
"""


def measure() -> list[runner.Measure]:
  """Ends programs and `dpemb worker` in every way; counts what is left."""
  measures, seen = [], 0
  for way in _WAYS:
    survivors, processes = 0, 0
    for repeat in range(_REPEATS):
      # At once, so that workers are killed while they start, and later.
      command = [sys.executable, '-c', _PROGRAM, way, str(0.1 * repeat)]
      left, started = _end(command, way)
      survivors += left
      processes += started
    seen += processes
    measures.append(
      runner.equal_to(
        f'survivors of {_REPEATS} programs: {way}', survivors, target=0
      )
    )
  command = [sys.executable, '-m', 'launch.cli', 'worker']
  for way in ('SIGINT', 'SIGTERM', 'SIGKILL'):
    survivors = 0
    for _ in range(_REPEATS):
      left, started = _end([*command, '--listen', '127.0.0.1:0'], way)
      survivors += left
      seen += started
    measures.append(
      runner.equal_to(
        f'survivors of {_REPEATS} `dpemb worker`: {way}', survivors, target=0
      )
    )
  return [*measures, runner.at_least('processes seen alive', seen, target=100)]


def _end(command: list[str], way: str) -> tuple[int, int]:
  """Returns how many things survive a program, and how many processes it had.

  Counted are processes that inherited a mark, the sockets that they listened
  on, and files in the folder that was theirs for temporary files.
  """
  mark = secrets.token_hex(8)
  with tempfile.TemporaryDirectory() as folder:
    with subprocess.Popen(
      command,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      env={**os.environ, _MARK: mark, 'TMPDIR': folder},
      text=True,
    ) as program:
      assert program.stdout is not None
      if 'ready' not in program.stdout.readline():
        raise RuntimeError(f'{command} did not start.')
      marked = _marked(mark)
      names = _listening(marked)
      if way.startswith('SIG'):
        program.send_signal(getattr(signal, way))
      program.wait(timeout=60)
    _, alive = psutil.wait_procs(marked, timeout=_GONE_SECONDS)
    alive = [process for process in alive if not _is_zombie(process)]
    left = len({*alive, *_marked(mark)}) + len(names & _all_listening())
    left += len(list(pathlib.Path(folder).iterdir()))
  for process in _marked(mark):
    process.kill()
  return left, len(marked)


def _marked(mark: str) -> list[psutil.Process]:
  """Returns the processes whose environment holds the mark."""
  found = []
  for process in psutil.process_iter():
    with contextlib.suppress(psutil.Error, OSError):
      text = pathlib.Path(f'/proc/{process.pid}/environ').read_bytes()
      if f'{_MARK}={mark}'.encode() in text and not _is_zombie(process):
        found.append(process)
  return found


def _listening(processes: list[psutil.Process]) -> set[str]:
  """Returns the sockets here that these processes hold."""
  inodes = set()
  for process in processes:
    with contextlib.suppress(OSError):
      for file in pathlib.Path(f'/proc/{process.pid}/fd').iterdir():
        with contextlib.suppress(OSError):
          inodes.add(os.readlink(file))
  return {
    name for name, inode in _sockets().items() if f'socket:[{inode}]' in inodes
  }


def _all_listening() -> set[str]:
  return set(_sockets())


def _sockets() -> dict[str, str]:
  """Returns listening sockets by name: Unix ones, and TCP ports."""
  found = {}
  for line in pathlib.Path('/proc/net/unix').read_text().splitlines()[1:]:
    fields = line.split()
    if len(fields) > 7 and fields[3] == '00010000':  # It accepts connections.
      found[fields[7]] = fields[6]
  for file in ('tcp', 'tcp6'):
    lines = pathlib.Path(f'/proc/net/{file}').read_text().splitlines()[1:]
    for fields in map(str.split, lines):
      if fields[3] == '0A':
        found[f'{file} {fields[1]}'] = fields[9]
  return found


def _is_zombie(process: psutil.Process) -> bool:
  try:
    return process.status() == psutil.STATUS_ZOMBIE
  except psutil.NoSuchProcess:
    return True
