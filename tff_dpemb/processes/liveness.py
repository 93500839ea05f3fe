"""Whether the process that a name on disk or in a table speaks of still lives.

An id of a process means something on one machine and in one namespace of ids
only, and is given to another process later. So a name holds `machine()` too,
and where a mistake would cost something `boot()` and `start_time()` besides.
"""

import os
import pathlib
import socket


def machine() -> str:
  """Returns the name of this machine and its namespace of process ids.

  It is 'host/unknown' where the namespace cannot be told.
  """
  return f'{socket.gethostname()}/{_namespace()}'


def boot() -> str:
  """Returns the id of this machine's boot, or 'unknown'."""
  try:
    return pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
  except OSError:
    return 'unknown'


def is_alive(pid: int) -> bool:
  """Returns whether there is a process of that id here, whoever owns it."""
  try:
    os.kill(pid, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except PermissionError:
    return True
  return True


def start_time(pid: int) -> str | None:
  """Returns when a process started (in ticks since boot), as `/proc` says.

  None: there is no such process, or it ended and its parent has yet to hear.
  """
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return None
  fields = stat.rpartition(')')[2].split()
  # Field 3 is the state, field 22 the start; a zombie does nothing any more.
  return None if fields[0] == 'Z' else fields[19]


def _namespace() -> str:
  try:
    return os.readlink('/proc/self/ns/pid')
  except OSError:
    return 'unknown'
