"""What the commands on ledgers and certificates share."""

import contextlib
from collections.abc import Sequence
from typing import Any

import click

GATE_FAILED = 5


def open_ledger(
  url: str | None, *, create: bool = False
) -> contextlib.AbstractContextManager[Any]:
  """Returns the ledger at a URL; None where none is asked for."""
  if url is None:
    return contextlib.nullcontext()
  # Its libraries take seconds to import.
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  return ledger_lib.Ledger.open(url, create=create)


def fail_on(problems: Sequence[str]) -> None:
  """Prints each problem; ends the command with code 5 if there is one."""
  for problem in problems:
    click.echo(f'problem: {problem}', err=True)
  if problems:
    raise click.exceptions.Exit(GATE_FAILED)
