"""Child processes that never outlive their program, however it ends.

A child is started through `launcher`, which asks the kernel to kill it
when its parent dies, also by SIGKILL; it runs in a process group of its own, so
that Ctrl-C in a terminal reaches the program alone, which then stops its
children. A *sealed* child has a network of its own besides.
"""

import contextlib
import dataclasses
import functools
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from tff_dpemb.processes import launcher

_LAUNCHER = pathlib.Path(launcher.__file__).resolve()


class ProcessError(RuntimeError):
  """A child process that may not be started here."""


@dataclasses.dataclass(frozen=True)
class Seal:
  """A network for one child alone, and the one door to it.

  Attributes:
    port: Where the child listens, in its own network: any port is free there.
    socket_name: The abstract Unix socket that leads to it.
  """

  port: int = 10000
  socket_name: str = dataclasses.field(
    default_factory=lambda: f'dpemb-{secrets.token_hex(16)}'
  )


def start(
  command: Sequence[str],
  *,
  log_path: str | os.PathLike[str] = os.devnull,
  environment: Mapping[str, str] | None = None,
  seal: Seal | None = None,
) -> subprocess.Popen[bytes]:
  """Starts a child that is killed when this program ends in any way.

  Args:
    command: The program's absolute path and its arguments.
    log_path: Where its stdout and stderr are appended.
    environment: Variables that it gets besides this program's own.
    seal: A network of its own; see `can_seal`.

  Raises:
    ProcessError: This is not the main thread. Linux sends the parent-death
      signal when the *thread* that started the child ends.
  """
  if threading.current_thread() is not threading.main_thread():
    raise ProcessError('a child process must be started from the main thread.')
  door = (seal.socket_name, str(seal.port)) if seal else ('', '0')
  with open(log_path, 'ab') as log:
    return subprocess.Popen(
      [
        *(sys.executable, '-I', '-S', str(_LAUNCHER), str(os.getpid())),
        *door,
        *command,
      ],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      env={**os.environ, **environment} if environment else None,
      start_new_session=True,
    )


@functools.cache
def can_seal() -> bool:
  """Returns whether this kernel and container allow sealed children.

  They need an unprivileged user namespace; Docker's default profile and some
  hardened kernels forbid it.
  """
  program = (
    f'import sys; sys.path.insert(0, {str(_LAUNCHER.parent)!r});'
    ' import launcher; launcher.enter_own_network()'
  )
  process = subprocess.run(
    [sys.executable, '-I', '-S', '-c', program],
    stdin=subprocess.DEVNULL,
    capture_output=True,
    check=False,
  )
  return process.returncode == 0


def stop(process: subprocess.Popen[bytes], *, grace_seconds: float = 0) -> None:
  """Ends a child and its group, and waits for it; safe to call twice.

  Args:
    process: What `start` returned.
    grace_seconds: Time between SIGTERM and SIGKILL; 0: SIGKILL at once.
  """
  if process.poll() is None and grace_seconds > 0:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
      process.wait(timeout=grace_seconds)
  if process.poll() is None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
      process.kill()
  process.wait()
