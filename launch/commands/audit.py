"""The command `audit`: does what was released contradict what is claimed?"""

import importlib
from typing import Any

import click

from launch.commands import ledgers
from launch.commands import run
from launch.run import audits
from launch.run import directory
from tff_dpemb import config

_FEWEST_CANARIES = 64
# What each attack is told beside the confidence.
_OPTIONS = {
  'training': ('canaries', 'kind', 'rounds', 'clients'),
  'synthetic': ('repeats',),
  'membership': (),
}


class AuditCommandError(ValueError):
  """An audit that the page, or the run, does not allow."""


@click.command()
@run.run_options
@click.option(
  '--what',
  type=click.Choice([*_OPTIONS]),
  default='training',
  show_default=True,
  help='What is attacked.',
)
@click.option(
  '--canaries',
  type=int,
  default=400,
  show_default=True,
  help='Canary users of the training audit.',
)
@click.option(
  '--kind',
  type=click.Choice(['tight', 'add']),
  default='tight',
  show_default=True,
  help='Canaries as bad as the plan accounts for, or that only come or go.',
)
@click.option(
  '--rounds',
  type=click.IntRange(1),
  help='Audit so many rounds, against what they claim. Default: the page.',
)
@click.option(
  '--clients',
  type=click.IntRange(0),
  default=2,
  show_default=True,
  help='Virtual clients of public users that train in each round.',
)
@click.option(
  '--repeats',
  type=int,
  default=400,
  show_default=True,
  help='Releases of the synthetic audit.',
)
@click.option(
  '--confidence',
  type=float,
  default=0.95,
  show_default=True,
  help='Of the lower bound.',
)
def audit(
  page: str,
  runs: str,
  overrides: tuple[str, ...],
  what: str,
  confidence: float,
  **options: Any,
) -> None:
  """Attacks what a page would release; a lower bound on epsilon, and a verdict.

  training: canary users through the real rounds; other clients are public
  users. synthetic: a canary in or out of many small releases. Both cost no
  budget and write audit/audit.json, which a certificate can carry. membership:
  can one tell the trained users from held-out ones? Its figures are private
  and stay in restricted/.

  'consistent' means that the attack found nothing, not that the claim holds.
  Exit code 5 on VIOLATION.

  \b
  Example:
    dpemb audit launch/configs/quickstart.toml --what training
  """
  if not 0 < confidence < 1:
    raise AuditCommandError(f'confidence must be in (0, 1), got {confidence}.')
  for name in ('canaries', 'repeats'):
    if options[name] < _FEWEST_CANARIES:
      raise AuditCommandError(
        f'{name} must be >= {_FEWEST_CANARIES}: fewer can show nothing, got'
        f' {options[name]}.'
      )
  paths = directory.RunDirectory(
    config.load(page, overrides=overrides), runs=runs
  )
  with paths.lock():
    paths.record_config()
    # Not before a page that is refused: TensorFlow takes seconds.
    from launch.run import opened

    step = importlib.import_module(f'launch.steps.audit.{what}')
    given = {name: options[name] for name in _OPTIONS[what]}
    with opened.open_run(paths) as open_run:
      block = step.audit(open_run, confidence=confidence, **given)
    path = audits.audit_path(paths)
    if what == 'membership':  # Figures of private data.
      path = paths.make_restricted() / 'audit.json'
    audits.write(path, paths, what, block)
  click.echo(f'written to {path}')
  if block['verdict'] != 'consistent':
    raise click.exceptions.Exit(ledgers.GATE_FAILED)
