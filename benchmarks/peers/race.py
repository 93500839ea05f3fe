"""Runs engines in turn, one round each, and keeps the times."""

import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO

from benchmarks import runner
from benchmarks.peers import environments

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Engine:
  """A module of this folder, how to run it, and in which environment.

  Attributes:
    name: In the table.
    module: That calls `work.serve`.
    variant: Its `--variant`.
    environment: Of `environments`; empty for the project's own.
  """

  name: str
  module: str
  variant: str = ''
  environment: str = ''


@dataclasses.dataclass(frozen=True)
class Times:
  """Of one engine: seconds of each round, and how far each round moved."""

  seconds: tuple[float, ...]
  moved: tuple[float, ...]

  @property
  def median(self) -> float:
    return statistics.median(self.seconds)


class RaceError(runner.BenchmarkError):
  """An engine that could not be run; names it and the way without it."""


def run(
  engines: Sequence[Engine],
  work: str,
  *,
  rounds: int,
  warm_up: int = 1,
  without: Collection[str] = (),
) -> dict[str, Times]:
  """Returns times by name.

  Every engine is a process of its own for the whole race. They take turns, so
  that what else the machine does meets all of them.

  Args:
    engines: Which.
    work: Of `work.WORKS`.
    rounds: Rounds of each that are timed.
    warm_up: Rounds of each before them.
    without: Names of engines that are left out.

  Raises:
    RaceError: An engine could not be started, or ended.
  """
  results: dict[str, list[tuple[float, float]]] = {}
  with contextlib.ExitStack() as stack:
    running: dict[str, _Running] = {}
    for engine in engines:
      if engine.name in without:
        continue
      try:
        process = stack.enter_context(_start(engine, work))
        process.reply()
      except (environments.EnvironmentError, EOFError) as error:
        raise _cannot_run(engine.name, error) from error
      running[engine.name] = process
    for number in range(warm_up + rounds):
      for name, process in running.items():
        try:
          answer = process.ask()
        except (EOFError, OSError) as error:
          raise _cannot_run(name, error) from error
        if number >= warm_up:
          pair = (float(answer['seconds']), float(answer['moved']))
          results.setdefault(name, []).append(pair)
  return {
    name: Times(*(tuple(column) for column in zip(*pairs, strict=True)))
    for name, pairs in results.items()
  }


def _cannot_run(name: str, error: Exception) -> RaceError:
  return RaceError(
    f'{name!r} must run, or be left out by name (--without={name!r}): {error}'
  )


class _Running:
  """An engine's process: one line asks for a round, one line answers."""

  def __init__(
    self, name: str, process: subprocess.Popen[str], errors: IO[str]
  ):
    self._name = name
    self._process = process
    self._errors = errors

  def ask(self) -> Mapping[str, float]:
    """Returns what a round took; raises `EOFError` if the process ended."""
    _pipe(self._process.stdin).write('round\n')
    _pipe(self._process.stdin).flush()
    return self.reply()

  def reply(self) -> Mapping[str, float]:
    """Returns the next line of the process, as `ask` does."""
    line = _pipe(self._process.stdout).readline()
    if not line:
      self._errors.seek(0)
      said = self._errors.read().strip().splitlines() or ['']
      raise EOFError(f'{self._name}: its process ended: {said[-1][:300]}')
    return json.loads(line)


@contextlib.contextmanager
def _start(engine: Engine, work: str) -> Iterator[_Running]:
  if engine.environment:
    python = str(environments.python_of(engine.environment))
  else:
    python = sys.executable
  variables = {
    **os.environ,
    'PYTHONPATH': str(_ROOT),
    'FLWR_TELEMETRY_ENABLED': '0',
    'RAY_USAGE_STATS_ENABLED': '0',
  }
  module = f'benchmarks.peers.{engine.module}'
  with tempfile.TemporaryFile('w+') as errors:
    process = subprocess.Popen(
      [python, '-m', module, '--work', work, '--variant', engine.variant],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=errors,
      text=True,
      cwd=_ROOT,
      env=variables,
    )
    try:
      yield _Running(engine.name, process, errors)
    finally:
      # The end of its input is the end of an engine.
      with contextlib.suppress(OSError):
        _pipe(process.stdin).close()
      try:
        process.wait(timeout=60)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
      _pipe(process.stdout).close()


def _pipe(stream: IO[str] | None) -> IO[str]:
  """Returns a stream that Popen opened: each is asked for in `_start`."""
  if stream is None:
    raise EOFError('an engine must have pipes.')
  return stream
