"""The command `audit`: does what was released contradict what is claimed?"""

import click

from launch.commands import problems
from launch.run import audits
from launch.run import directory
from tff_dpemb import config

_FEWEST_CANARIES = 64


class AuditCommandError(ValueError):
  """An audit that the page, or the run, does not allow."""


@click.command()
@click.argument('page', type=click.Path(), metavar='PAGE.toml')
@click.option(
  '--runs',
  default=directory.DEFAULT_RUNS,
  show_default=True,
  help='Directory of runs.',
)
@click.option(
  '--set',
  'overrides',
  multiple=True,
  metavar='SECTION.KEY=VALUE',
  help='Override a key of the page; may be given often.',
)
@click.option(
  '--what',
  type=click.Choice(['training', 'synthetic', 'membership']),
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
  canaries: int,
  kind: str,
  rounds: int | None,
  clients: int,
  repeats: int,
  confidence: float,
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
  for name, value in (('canaries', canaries), ('repeats', repeats)):
    if value < _FEWEST_CANARIES:
      raise AuditCommandError(
        f'{name} must be >= {_FEWEST_CANARIES}: fewer can show nothing, got'
        f' {value}.'
      )
  paths = directory.RunDirectory(
    config.load(page, overrides=overrides), runs=runs
  )
  with paths.lock():
    paths.record_config()
    path = audits.audit_path(paths)
    # Not before a page that is refused: TensorFlow takes seconds.
    from launch.run import opened

    with opened.open_run(paths) as run:
      match what:
        case 'training':
          from launch.steps.audit import training

          block = training.audit(
            run,
            count=canaries,
            kind=kind,
            rounds=rounds,
            clients=clients,
            confidence=confidence,
          )
        case 'synthetic':
          from launch.steps.audit import synthetic

          block = synthetic.audit(run, repeats=repeats, confidence=confidence)
        case _:
          from launch.steps.audit import membership

          block = membership.audit(run, confidence=confidence)
          path = paths.make_restricted() / 'audit.json'
    audits.write(path, paths, what, block)
  click.echo(f'written to {path}')
  if block['verdict'] != 'consistent':
    raise click.exceptions.Exit(problems.GATE_FAILED)
