"""What a step shows while it works: a title, its time, how far it is.

A terminal gets a bar. A log gets a plain line now and then: a bar there is
kilobytes of carriage returns.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Self

import click
import tqdm

_LINE_SECONDS = 30.0


@contextlib.contextmanager
def stage(title: str) -> Iterator[None]:
  """Prints the title of a stage, and at its end how long it took."""
  start = time.monotonic()
  click.echo(f'== {title}')
  yield
  click.echo(f'   done in {time.monotonic() - start:.1f} s')


class Lines:
  """Stands for a bar where there is no terminal: a line every 30 seconds."""

  def __init__(
    self,
    total: int,
    title: str,
    unit: str,
    *,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.n = 0
    self._total, self._title, self._unit = total, title, unit
    self._clock = clock
    self._start = self._last = clock()
    self._said = ''

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *unused: object) -> None:
    """Ends; a bar that is full has nothing more to say."""

  def update(self, count: int) -> None:
    """Adds to what is done; prints a line if the last one is long ago."""
    self.n += count
    now = self._clock()
    if now - self._last >= _LINE_SECONDS or (count and self.n == self._total):
      self._last = now
      said = f', {self._said}' if self._said else ''
      click.echo(
        f'   {self._title}: {self.n} of {self._total} {self._unit}s,'
        f' {now - self._start:.0f} s{said}',
        err=True,
      )

  def set_postfix(self, **values: object) -> None:
    """Sets the values that the next line shows."""
    self._said = ', '.join(f'{name} {value}' for name, value in values.items())


def bar(total: int, title: str, unit: str) -> 'tqdm.tqdm | Lines':
  """Returns a progress bar or what stands for it, to be used as a context."""
  if not _is_terminal():
    return Lines(total, title, unit)
  return tqdm.tqdm(
    total=total, desc=title, unit=unit, dynamic_ncols=True, mininterval=0.5
  )


def _is_terminal() -> bool:
  """Returns whether stderr can go back to the start of its line."""
  return sys.stderr.isatty() and os.environ.get('TERM', '') != 'dumb'
