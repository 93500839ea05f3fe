"""TFF's C++ worker as a process that the program owns.

Started through a launcher that asks the kernel to kill it with its parent, in
a process group of its own (so that Ctrl-C reaches the program alone), and
killed and awaited when its context ends. Imports no TensorFlow.
"""

import atexit
import contextlib
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

_START_TIMEOUT_SECONDS = 60.0
# PR_SET_PDEATHSIG survives execv; the parent may be gone before it is set.
_LAUNCHER = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != parent:
  os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ExecutorError(RuntimeError):
  """A worker that could not be started, or that ended during a round."""


class OwnedWorker:
  """One TFF C++ worker process, alive as long as this object's `with`.

  Must be started in the main thread: Linux sends the parent-death signal when
  the *thread* that started the child ends.
  """

  def __init__(
    self,
    *,
    concurrent_calls: int = -1,
    log_path: str | os.PathLike[str] = os.devnull,
  ):
    """Starts the worker.

    Args:
      concurrent_calls: Calls of one computation at a time; < 1: no limit.
      log_path: Where the worker's own messages are appended.

    Raises:
      ExecutorError: There is no worker binary, or this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
      raise ExecutorError('a worker must be started from the main thread.')
    binary = worker_binary()
    self._process: subprocess.Popen[bytes] | None = None
    self.port = _free_port()
    with open(log_path, 'ab') as log:
      self._process = subprocess.Popen(
        [
          sys.executable,
          '-I',
          '-S',
          '-c',
          _LAUNCHER,
          str(os.getpid()),
          str(binary),
          f'--port={self.port}',
          f'--max_concurrent_computation_calls={concurrent_calls}',
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
      )
    atexit.register(self.close)

  @property
  def pid(self) -> int:
    return self._process.pid if self._process else 0

  def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
    """Returns when `is_ready`; raises `ExecutorError` if the worker ends."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not is_ready():
      if self._process is None or self._process.poll() is not None:
        raise ExecutorError('the TFF worker ended while starting.')
      if time.monotonic() > deadline:
        raise ExecutorError(
          f'the TFF worker must answer within {_START_TIMEOUT_SECONDS} s.'
        )
      time.sleep(0.02)

  def is_alive(self) -> bool:
    return self._process is not None and self._process.poll() is None

  def close(self) -> None:
    """Kills the worker and its group and waits; safe to call twice."""
    process, self._process = self._process, None
    if process is None:
      return
    atexit.unregister(self.close)
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
      process.kill()
    process.wait()

  def __enter__(self) -> 'OwnedWorker':
    return self

  def __exit__(self, *unused) -> None:
    self.close()


def worker_binary() -> pathlib.Path:
  """Returns the path of TFF's C++ worker.

  Raises:
    ExecutorError: This installation has none, or it may not be executed.
  """
  spec = importlib.util.find_spec('tensorflow_federated')
  origin = spec.origin if spec is not None and spec.origin else ''
  path = pathlib.Path(origin).parent / 'data' / 'worker_binary'
  if not os.access(path, os.X_OK):
    raise ExecutorError(
      f'{str(path)!r} must be an executable file; install tensorflow-federated'
      ' 0.87.0 for Linux x86-64 (run `dpemb doctor`).'
    )
  return path


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]
