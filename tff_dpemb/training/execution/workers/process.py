"""A TFF worker as a process that the program owns; no TensorFlow here.

The C++ worker listens without encryption or authentication, runs any graph that
it is sent, and cannot be told to listen on loopback only. So it runs sealed, in
a network of its own, where this user's processes alone reach it. Where the
kernel forbids that, its port is open on all interfaces, and `is_sealed` says
so.
"""

import atexit
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tff_dpemb.processes import children

# -P: Python files of the current directory are not modules of the program.
_DEVICE_WORKER = (
  *(sys.executable, '-P', '-m'),
  'tff_dpemb.training.execution.workers.device',
)
_CHECK_SECONDS = 300.0


class ExecutorError(RuntimeError):
  """A worker that could not be started, or that ended during a round."""


class OwnedWorker:
  """One worker process, alive as long as this object's `with`.

  TFF's C++ worker, or with devices `device`.
  """

  def __init__(
    self,
    *,
    concurrent_calls: int = -1,
    log_path: str | os.PathLike[str] = os.devnull,
    environment: Mapping[str, str] | None = None,
    devices: Sequence[str] = (),
  ):
    """Starts the worker.

    Args:
      concurrent_calls: Calls of one computation at a time; < 1: no limit.
      log_path: Where the worker's own messages are appended.
      environment: Variables that it gets besides this program's own.
      devices: Such as 'GPU:0', or 'all': `device` instead of TFF's C++
        worker.

    Raises:
      ExecutorError: There is no worker binary.
      children.ProcessError: This is not the main thread.
    """
    self._devices = devices
    self._concurrent_calls = concurrent_calls
    self._log_path = log_path
    self._environment = environment
    self.is_sealed = children.can_seal()
    self._process: subprocess.Popen[bytes] | None = None
    atexit.register(self.close)
    self.restart()

  @property
  def pid(self) -> int:
    """Returns the worker's process id, 0 after `close`."""
    return self._process.pid if self._process else 0

  def restart(self) -> None:
    """Starts the worker again, at another address; ends it if it runs."""
    self._end()
    seal = children.Seal() if self.is_sealed else None
    port = seal.port if seal else _free_port()
    # The address that gRPC connects to.
    self.target = (
      f'unix-abstract:{seal.socket_name}' if seal else f'127.0.0.1:{port}'
    )
    self._process = children.start(
      self._command(port),
      log_path=self._log_path,
      environment=self._environment,
      seal=seal,
    )

  def _command(self, port: int) -> list[str]:
    if self._devices:
      command = [*_DEVICE_WORKER, f'--port={port}']
      if self._concurrent_calls > 0:
        command.append(f'--slots={self._concurrent_calls}')
      return command + [f'--device={device}' for device in self._devices]
    return [
      str(worker_binary()),
      f'--port={port}',
      f'--max_concurrent_computation_calls={self._concurrent_calls}',
    ]

  def is_alive(self) -> bool:
    """Returns whether the worker runs."""
    return self._process is not None and self._process.poll() is None

  def close(self) -> None:
    """Kills the worker and its group and waits; safe to call twice."""
    atexit.unregister(self.close)
    self._end()

  def _end(self) -> None:
    process, self._process = self._process, None
    if process is not None:
      children.stop(process)

  def __enter__(self) -> 'OwnedWorker':
    return self

  def __exit__(self, *unused) -> None:
    self.close()


def check_devices(devices: Sequence[str]) -> list[str]:
  """Returns the full names of devices that compute, tried in a process.

  Raises:
    ExecutorError: TensorFlow lists no such device, or it does not compute.
  """
  try:
    tried = subprocess.run(
      [*_DEVICE_WORKER, '--check', *(f'--device={name}' for name in devices)],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      check=False,
      timeout=_CHECK_SECONDS,
    )
  except subprocess.TimeoutExpired as error:
    raise ExecutorError(
      f'devices must answer within {_CHECK_SECONDS:g} s, {list(devices)} do not;'
      ' look at the driver.'
    ) from error
  if tried.returncode:
    lines = tried.stderr.strip().splitlines() or ['it ended without a word.']
    raise ExecutorError(lines[-1])
  return tried.stdout.split()


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
