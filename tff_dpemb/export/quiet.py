"""Keeps what native code prints off the terminal, and shows it on failure."""

import contextlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

_LOCK = threading.RLock()  # Two threads would restore each other's descriptor.


@contextlib.contextmanager
def native_logs() -> Iterator[None]:
  """Holds back stderr at the level of file descriptors while the body runs.

  TensorFlow's converter and TFLite's interpreter log from C++, past Python's
  `logging`. What they wrote is printed only when the body raises. The
  descriptor belongs to the whole process: other threads are silenced too, so
  keep the body short.
  """
  with _LOCK:
    yield from _held_back()


def _held_back() -> Iterator[None]:
  sys.stderr.flush()
  saved = os.dup(2)
  loggers = [logging.getLogger(name) for name in ('tensorflow', 'absl')]
  levels = [logger.level for logger in loggers]
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    for logger in loggers:
      logger.setLevel(logging.ERROR)
    failed = True
    try:
      yield
      failed = False
    finally:
      for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
      sys.stderr.flush()
      os.dup2(saved, 2)
      os.close(saved)
      if failed:
        held.seek(0)
        sys.stderr.write(held.read().decode(errors='replace'))
