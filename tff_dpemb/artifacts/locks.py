"""Locks of files: one process at a time, however its holder ends.

The lock is the kernel's (flock), so that a killed process leaves none behind;
the file itself stays and means nothing.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from tff_dpemb.artifacts import storage


class HeldError(storage.ArtifactError):
  """A lock that another process holds."""


@contextlib.contextmanager
def hold(path: str | os.PathLike[str], *, wait: bool) -> Iterator[None]:
  """Holds the lock at `path` for this process; its directory is made.

  Args:
    path: The lock's file; made where it is missing.
    wait: Whether to wait for another holder instead of raising.

  Raises:
    HeldError: Another process holds it, and `wait` is false.
    OSError: The file cannot be made.
  """
  os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
  handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
  try:
    try:
      fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
      raise HeldError(
        f'{os.fspath(path)!r} must have one holder at a time; another process'
        ' has it.'
      ) from error
    yield
  finally:
    os.close(handle)
