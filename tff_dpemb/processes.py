"""Child processes that never outlive their program, however it ends.

A child is started through a launcher that asks the kernel to kill it when its
parent dies, also by SIGKILL; it runs in a process group of its own, so that
Ctrl-C in a terminal reaches the program alone, which then stops its children.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

# PR_SET_PDEATHSIG survives execv; the parent may be gone before it is set.
_LAUNCHER = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != parent:
  os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class ProcessError(RuntimeError):
  """A child process that may not be started here."""


def start(
  command: Sequence[str], *, log_path: str | os.PathLike[str] = os.devnull
) -> subprocess.Popen[bytes]:
  """Starts a child that is killed when this program ends in any way.

  Args:
    command: The program's absolute path and its arguments.
    log_path: Where its stdout and stderr are appended.

  Raises:
    ProcessError: This is not the main thread. Linux sends the parent-death
      signal when the *thread* that started the child ends.
  """
  if threading.current_thread() is not threading.main_thread():
    raise ProcessError('a child process must be started from the main thread.')
  with open(log_path, 'ab') as log:
    return subprocess.Popen(
      [
        *(sys.executable, '-I', '-S', '-c', _LAUNCHER, str(os.getpid())),
        *command,
      ],
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=log,
      start_new_session=True,
    )


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
