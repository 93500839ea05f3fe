"""Commands of a shell, run as a user would: code, seconds, lines of output."""

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

_SECONDS = 3000  # more than any command here may take


@dataclasses.dataclass(frozen=True)
class Ran:
  """A command that has ended.

  Attributes:
    words: What was given.
    code: Exit code; -9 if it took too long.
    seconds: How long it took.
    lines: (seconds since its start, line) of stdout and stderr together.
  """

  words: tuple[str, ...]
  code: int
  seconds: float
  lines: tuple[tuple[float, str], ...]

  @property
  def text(self) -> str:
    """All that it printed."""
    return '\n'.join(line for _, line in self.lines)

  def first(self, pattern: str) -> float | None:
    """Returns when a line that holds a pattern came, or None."""
    for seconds, line in self.lines:
      if re.search(pattern, line):
        return seconds
    return None


def run(words: Sequence[str], folder: pathlib.Path, **variables: str) -> Ran:
  """Runs a command to its end; a carriage return ends a line, too."""
  start = time.monotonic()
  lines = []
  with subprocess.Popen(
    list(words),
    cwd=folder,
    env={**os.environ, **variables},
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    errors='replace',
    bufsize=1,
  ) as process:
    timer = threading.Timer(_SECONDS, process.kill)
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
      now = time.monotonic() - start
      lines += [(now, part) for part in line.rstrip('\n').split('\r')]
    code = process.wait()
    timer.cancel()
  return Ran(tuple(words), code, time.monotonic() - start, tuple(lines))


@contextlib.contextmanager
def serving(words: Sequence[str], folder: pathlib.Path) -> Iterator[str]:
  """Runs a server while the body runs; yields the address that it prints.

  Raises:
    RuntimeError: It ended before it was ready.
  """
  with subprocess.Popen(
    list(words),
    cwd=folder,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  ) as process:
    try:
      assert process.stdout is not None
      said = ''
      for line in process.stdout:
        said += line
        if found := re.match(r'ready on (\S+):(?= )', line):
          yield found[1]
          break
      else:
        raise RuntimeError(f'{" ".join(words)} must serve, got: {said}')
      process.terminate()
      process.wait(timeout=60)
    finally:
      process.kill()
