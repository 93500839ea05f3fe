"""Commands that work on a run: its stages one by one, or all of them."""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from launch import run_directory
from tff_dpemb import config


def _run_options(function: Callable[..., Any]) -> Callable[..., Any]:
  for option in (
    click.option(
      '--set',
      'overrides',
      multiple=True,
      metavar='SECTION.KEY=VALUE',
      help='Override a key of the page; may be given often.',
    ),
    click.option(
      '--runs',
      default=run_directory.DEFAULT_RUNS,
      show_default=True,
      help='Directory of runs and of their common ledger.',
    ),
    click.argument('page', type=click.Path(), metavar='PAGE.toml'),
  ):
    function = option(function)
  return function


@contextlib.contextmanager
def _open_run(
  page: str, runs: str, overrides: tuple[str, ...]
) -> Iterator[run_directory.RunDirectory]:
  run_config = config.load(page, overrides=overrides)
  run = run_directory.RunDirectory(run_config, runs=runs)
  with _sigterm_ends_cleanly(run), run.lock():
    run.record_config()
    yield run


@contextlib.contextmanager
def _sigterm_ends_cleanly(run: run_directory.RunDirectory) -> Iterator[None]:
  """SIGTERM unwinds the program as Ctrl-C does, with the code for a retry.

  The last finished round is on disk; a round in flight is given up. Python
  raises in whatever runs at the moment, and a destructor would swallow that:
  so the request is noted too, and stages look at it between steps. A second
  SIGTERM ends the program at once, and the kernel its children.
  """

  def stop(number, frame):
    del number, frame
    if run.stop_requested.is_set():
      os._exit(run_directory.EXIT_RETRY)
    run.stop_requested.set()
    sys.exit(run_directory.EXIT_RETRY)

  before = signal.signal(signal.SIGTERM, stop)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def stage_command(
  name: str, stages: tuple[str, ...], text: str
) -> click.Command:
  """Returns a command that runs `stages` ('module:function' of launch)."""

  @click.command(name=name, help=text)
  @_run_options
  def command(page, runs, overrides):
    with _open_run(page, runs, overrides) as run:
      for stage in stages:
        module, _, function = stage.partition(':')
        # Imported when needed: TensorFlow takes seconds.
        getattr(importlib.import_module(f'launch.{module}'), function)(run)
        run.stop_if_requested()

  return command


_EXAMPLE = '\b\nExample:\n  dpemb {} launch/configs/quickstart.toml\n'


pretrain = stage_command(
  'pretrain',
  ('stages:data', 'stages:pretrain'),
  'Pretrain the backbone on the public store.\n\n'
  + _EXAMPLE.format('pretrain'),
)
train = stage_command(
  'train',
  ('stages:data', 'stages:pretrain', 'stages:train'),
  'Run or resume DP-FedEmb rounds on the private store.\n\nEvery round is'
  ' charged to the ledger before it runs. A killed run resumes at its last'
  ' finished round when the same command is given again.\n\n'
  + _EXAMPLE.format('train'),
)
evaluate = stage_command(
  'evaluate',
  ('stages:evaluate',),
  'Measure recall@FAR and retrieval on the held-out test identities.\n\n'
  + _EXAMPLE.format('evaluate'),
)
export = stage_command(
  'export',
  ('publish_stages:export',),
  'Write the trained model as SavedModel and TFLite, with its certificate.\n\n'
  + _EXAMPLE.format('export'),
)
report = stage_command(
  'report',
  ('report_stage:report',),
  'Write report.json and report.html of a finished run.\n\n'
  + _EXAMPLE.format('report'),
)
quickstart = stage_command(
  'quickstart',
  (
    'stages:data',
    'stages:pretrain',
    'stages:train',
    'stages:evaluate',
    'publish_stages:export',
    'publish_stages:serve_check',
    'publish_stages:synthesize',
    'report_stage:report',
  ),
  'Run every stage of a page: data, pretraining, private training,'
  ' evaluation, export, serving, synthetic embeddings, report.\n\nFinished'
  ' stages are kept; give the same command again after an interruption.\n\n'
  + _EXAMPLE.format('quickstart'),
)
