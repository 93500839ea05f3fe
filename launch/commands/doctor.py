"""`dpemb doctor`: is this machine and its environment right, and if not, why."""

import dataclasses
import json
from typing import Any

import click

from launch.doctor import checks
from launch.doctor import findings


@click.command()
@click.option('--deep', is_flag=True, help='Import the frameworks too (slow).')
@click.option(
  '--executor',
  type=click.Choice(['local', 'workers', 'accelerator']),
  help='Run a small round there; print who did what, and the speed.',
)
@click.option(
  '--workers',
  multiple=True,
  metavar='HOST:PORT',
  help='A worker of --executor workers; once for each. Default: two here.',
)
@click.option(
  '--device',
  'devices',
  multiple=True,
  metavar='DEVICE',
  help='A device of --executor accelerator, as GPU:0 or CPU:0; once for each.'
  ' Default: every GPU.',
)
@click.option('--tls-authority', default='', help='PEM: who both sides trust.')
@click.option('--tls-certificate', default='', help='PEM: of this side.')
@click.option('--tls-key', default='', help='PEM: its private key.')
@click.option(
  '--insecure-network', is_flag=True, help='As runtime.insecure_network.'
)
@click.option('--json', 'as_json', is_flag=True, help='Print JSON.')
@click.pass_context
def doctor(
  context: click.Context,
  deep: bool,
  executor: str | None,
  workers: tuple[str, ...],
  devices: tuple[str, ...],
  as_json: bool,
  **network: Any,
) -> None:
  """Checks Python, platform, packages, worker, disk, memory, orphans.

  Prints the command that repairs each fault; exit code 2 if there is one.

  Example: dpemb doctor --executor workers --workers localhost:8470
  """
  if workers and executor != 'workers':
    raise click.UsageError('--workers needs --executor workers.')
  if devices and executor != 'accelerator':
    raise click.UsageError('--device needs --executor accelerator.')
  found = checks.examine(deep=deep)
  if executor is not None:
    from launch.doctor import executor_check

    runtime = executor_check.runtime_from_options(
      executor, workers, devices=devices, **network
    )
    found += executor_check.examine(runtime)
  if as_json:
    click.echo(json.dumps([dataclasses.asdict(f) for f in found], indent=2))
  else:
    click.echo(findings.render(found))
  if any(finding.status == findings.FAULT for finding in found):
    context.exit(2)
