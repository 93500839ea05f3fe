"""Problems that a verification found: printed, and an exit code of their own."""

from collections.abc import Sequence

import click

GATE_FAILED = 5


def fail_on(problems: Sequence[str]) -> None:
  """Prints each problem; ends the command with code 5 if there is one."""
  for problem in problems:
    click.echo(f'problem: {problem}', err=True)
  if problems:
    raise click.exceptions.Exit(GATE_FAILED)
