"""What a step shows while it works: a title, its time, a bar."""

import contextlib
import time
from collections.abc import Iterator

import click
import tqdm


@contextlib.contextmanager
def stage(title: str) -> Iterator[None]:
  """Prints the title of a stage, and at its end how long it took."""
  start = time.monotonic()
  click.echo(f'== {title}')
  yield
  click.echo(f'   done in {time.monotonic() - start:.1f} s')


def bar(total: int, title: str, unit: str) -> tqdm.tqdm:
  """Returns a progress bar, to be used as a context."""
  return tqdm.tqdm(
    total=total, desc=title, unit=unit, dynamic_ncols=True, mininterval=0.5
  )
