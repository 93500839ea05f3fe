"""Commands that work on a run: its stages one by one, or all of them."""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from launch import environment
from launch import faults
from launch.run import directory
from launch.run import finished
from launch.run import signals
from tff_dpemb import config


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
  """Adds the page, its overrides and the directory of runs to a command."""
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
      default=directory.DEFAULT_RUNS,
      show_default=True,
      help='Directory of runs and of their common ledger.',
    ),
    click.argument('page', type=click.Path(), metavar='PAGE.toml'),
  ):
    function = option(function)
  return function


@contextlib.contextmanager
def open_run(page: str, runs: str, overrides: tuple[str, ...]) -> Iterator[Any]:
  """Yields the `OpenRun` of a page, which no other process works on."""
  with _open_paths(page, runs, overrides) as paths, _open_all(paths) as run:
    yield run


@contextlib.contextmanager
def _open_paths(
  page: str, runs: str, overrides: tuple[str, ...]
) -> Iterator[directory.RunDirectory]:
  run_config = config.load(page, overrides=overrides)
  environment.check_tensorflow_fits()
  paths = directory.RunDirectory(run_config, runs=runs)
  with signals.sigterm_ends_cleanly(paths), paths.lock(), _faults_kept(paths):
    paths.record_config()
    yield paths


@contextlib.contextmanager
def _open_all(paths: directory.RunDirectory) -> Iterator[Any]:
  # Not before a page that is refused: the accounting takes seconds.
  from launch.run import opened

  with opened.open_run(paths) as run:
    yield run


@contextlib.contextmanager
def _faults_kept(paths: directory.RunDirectory) -> Iterator[None]:
  """Keeps the traceback of a fault beside what else must not leave the run."""
  try:
    yield
  except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
    raise
  except Exception as error:
    if faults.interrupted.is_set() or faults.line_of(error) is not None:
      raise
    raise faults.kept(error, paths.make_restricted()) from error


_CHECKED_DATA = ('data', 'data:check_population', 'data:check_plan')
_ALWAYS = ('report',)  # It tells what other runs have spent, too.


def stage_command(
  name: str, stages: tuple[str, ...], text: str
) -> click.Command:
  """Returns a command that runs steps: 'module' or 'module:function'.

  A step that is known to be finished is not imported, and a check before steps
  that all are finished has nothing to protect.
  """

  @click.command(
    name=name,
    help=f'{text}\n\n\b\nExample:\n'
    f'  dpemb {name} launch/configs/quickstart.toml\n',
  )
  @run_options
  def command(page, runs, overrides):
    with _open_paths(page, runs, overrides) as paths:
      asked = _possible(paths, stages)
      known = {
        stage: finished.said(paths, stage)
        for stage in asked
        if ':' not in stage and stage not in _ALWAYS
      }
      if None not in known.values():
        for stage, lines in known.items():
          _echo(stage, lines, known=True)
        if not set(asked) & set(_ALWAYS):
          return
        todo = [stage for stage in asked if stage in _ALWAYS]
      else:
        todo = asked
      with _open_all(paths) as run:
        for stage in todo:
          _run_step(run, stage, known.get(stage))

  return command


def _possible(
  paths: directory.RunDirectory, stages: Sequence[str]
) -> list[str]:
  """Returns the steps without those that own data have nothing for.

  A step that was asked for by name stays, and says itself what it lacks.
  """
  lacks = paths.data.is_dir() and not paths.store('public').exists()
  if not lacks or not paths.config.data.directory or len(stages) == 1:
    return list(stages)
  if 'synthesize' in stages:
    click.echo(
      'note: no synthetic set is made: the data set has no public store.',
      err=True,
    )
  return [stage for stage in stages if stage != 'synthesize']


def _run_step(run: Any, stage: str, lines: list[str] | None) -> None:
  """Runs a step, unless it is known what it made; says what it made."""
  if lines is not None:
    _echo(stage, lines, known=True)
    return
  from launch.run import outcome

  module, _, function = stage.partition(':')
  # Imported when needed: TensorFlow takes seconds.
  step = importlib.import_module(f'launch.steps.{module}')
  getattr(step, function or module)(run)
  made = outcome.of(stage, run)
  if made:
    _echo(stage, made, known=False)
    finished.note(run.paths, stage, made)
  run.paths.stop_if_requested()


def _echo(stage: str, lines: Sequence[str] | None, *, known: bool) -> None:
  name = stage.replace('_', '-')
  for number, line in enumerate(lines or ()):
    head = (
      f'{name}{" (finished before)" if known else ""}: ' if not number else '  '
    )
    click.echo(f'{head}{line}')


pretrain = stage_command(
  'pretrain', ('data', 'pretrain'), 'Pretrain the backbone on the public store.'
)
train = stage_command(
  'train',
  (*_CHECKED_DATA, 'pretrain', 'train'),
  'Run or resume DP-FedEmb rounds on the private store.\n\nEvery round is'
  ' charged to the ledger before it runs. A killed run resumes at its last'
  ' finished round when the same command is given again.',
)
evaluate = stage_command(
  'evaluate',
  ('evaluate',),
  'Measure recall@FAR and retrieval on the held-out test identities.',
)
export = stage_command(
  'export',
  ('export',),
  'Write the trained model as SavedModel and TFLite, with its certificate.',
)
serve_check = stage_command(
  'serve-check',
  ('serve_check',),
  'Look the test images up in a server of the export.\n\nIndexes them, starts'
  ' `dpemb serve` on a free port, asks it by image and by embedding, and'
  ' compares its answers with exact search.',
)
synthesize = stage_command(
  'synthesize',
  ('synthesize',),
  'Publish labelled synthetic embeddings of the private users.\n\nEmbeds the'
  ' private images with the exported model, fits a Gaussian mixture for each'
  ' declared class by private clustering, samples from it. Charged to the'
  ' ledger before noise is drawn; an interrupted release resumes.',
)
report = stage_command(
  'report', ('report',), 'Write report.json and report.html of a finished run.'
)
quickstart = stage_command(
  'quickstart',
  (
    *_CHECKED_DATA,
    'pretrain',
    'train',
    'evaluate',
    'export',
    'serve_check',
    'synthesize',
    'report',
  ),
  'Run every stage of a page: data, pretraining, private training,'
  ' evaluation, export, serving, synthetic embeddings, report.\n\nFinished'
  ' stages are kept; give the same command again after an interruption.',
)
