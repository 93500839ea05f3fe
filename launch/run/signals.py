"""How SIGTERM ends a command that works on a run."""

import concurrent.futures
import contextlib
import os
import select
import signal
import threading
import types
from collections.abc import Iterator

import click

from launch.run import directory

_STOPPED = (
  'stopped; the last finished round is kept: give the same command again to go'
  ' on.'
)
_GRACE_SECONDS = 5.0  # Docker waits for 10 between SIGTERM and SIGKILL.
_PACKAGES = ('tff_dpemb', 'serving', 'launch')
_WAITS = (threading.__file__, concurrent.futures.wait.__code__.co_filename)
# Where a thread is that waits for another; `Event.is_set` is not among them.
_BLOCKED = (
  threading.Condition.wait.__code__,
  threading.Thread.join.__code__,
  threading.Thread._wait_for_tstate_lock.__code__,  # type: ignore[attr-defined]
)


@contextlib.contextmanager
def sigterm_ends_cleanly(run: directory.RunDirectory) -> Iterator[None]:
  """SIGTERM ends the program with the code for a retry, within seconds.

  The last finished round is on disk; a round in flight is given up. Stages
  look between steps whether they shall stop, and a wait for workers is broken
  off. Python would raise in whatever runs at the moment, and a destructor or a
  callback of the garbage collector swallows that: so nothing is raised
  elsewhere. What does not come to such a place in `_GRACE_SECONDS` is ended
  as `kill -9` ends it, which every stage survives. So is what gets a second
  SIGTERM; the kernel ends the children.
  """

  def stop(number: int, frame: types.FrameType | None) -> None:
    del number
    if _is_wait_of_ours(frame):
      raise directory.Stopped

  # Python's own handlers wait for native code to return, this pipe does not.
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  watcher = threading.Thread(
    target=_watch_for_sigterm, args=(run, reader), daemon=True
  )
  handler = signal.signal(signal.SIGTERM, stop)
  wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  watcher.start()
  try:
    yield
  except directory.Stopped:
    click.echo(_STOPPED, err=True)
    raise
  finally:
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, handler)
    os.write(writer, b'\0')
    watcher.join()
    os.close(reader)
    os.close(writer)


def _watch_for_sigterm(run: directory.RunDirectory, reader: int) -> None:
  """Asks for the end at the first SIGTERM, brings it about at the second.

  Args:
    run: Whose `stop_requested` is set.
    reader: Gives the number of each signal, and 0 when the run has ended.
  """
  grace = None
  while select.select([reader], [], [], grace)[0]:
    number = os.read(reader, 1)[0]
    if number == 0:
      return
    if number == signal.SIGTERM:
      if run.stop_requested.is_set():
        break
      run.stop_requested.set()
      grace = _GRACE_SECONDS
  with contextlib.suppress(OSError):
    os.write(2, f'\n{_STOPPED}\n'.encode())  # A progress bar may be there.
  os._exit(directory.EXIT_RETRY)


def _is_wait_of_ours(frame: types.FrameType | None) -> bool:
  """Returns whether our own code waits there for threads, and nothing else."""
  if frame is None or frame.f_code not in _BLOCKED:
    return False
  while frame is not None and frame.f_code.co_filename in _WAITS:
    frame = frame.f_back
  name = frame.f_globals.get('__name__', '') if frame is not None else ''
  return name.partition('.')[0] in _PACKAGES
