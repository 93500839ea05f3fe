"""TFF's C++ worker as a process that the program owns; no TensorFlow here."""

import atexit
import importlib.util
import os
import pathlib
import socket
import subprocess
import time
from collections.abc import Callable

from tff_dpemb import processes

_START_TIMEOUT_SECONDS = 60.0


class ExecutorError(RuntimeError):
  """A worker that could not be started, or that ended during a round."""


class OwnedWorker:
  """One TFF C++ worker process, alive as long as this object's `with`."""

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
      ExecutorError: There is no worker binary.
      processes.ProcessError: This is not the main thread.
    """
    self.port = _free_port()
    self._process: subprocess.Popen[bytes] | None = processes.start(
      [
        str(worker_binary()),
        f'--port={self.port}',
        f'--max_concurrent_computation_calls={concurrent_calls}',
      ],
      log_path=log_path,
    )
    atexit.register(self.close)

  @property
  def pid(self) -> int:
    """Returns the worker's process id, 0 after `close`."""
    return self._process.pid if self._process else 0

  def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
    """Returns when `is_ready`; raises `ExecutorError` if the worker ends."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not is_ready():
      if not self.is_alive():
        raise ExecutorError('the TFF worker ended while starting.')
      if time.monotonic() > deadline:
        raise ExecutorError(
          f'the TFF worker must answer within {_START_TIMEOUT_SECONDS} s.'
        )
      time.sleep(0.02)

  def is_alive(self) -> bool:
    """Returns whether the worker runs."""
    return self._process is not None and self._process.poll() is None

  def close(self) -> None:
    """Kills the worker and its group and waits; safe to call twice."""
    process, self._process = self._process, None
    if process is not None:
      atexit.unregister(self.close)
      processes.stop(process)

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
