"""Commands that work on a run: its stages one by one, or all of them."""

import concurrent.futures
import contextlib
import importlib
import os
import select
import signal
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import click

from launch.run import directory
from tff_dpemb import config

_STOPPED = (
  'stopped; the last finished round is kept: give the same command again to go'
  ' on.'
)
_GRACE_SECONDS = 5.0  # Docker waits for 10 between SIGTERM and SIGKILL.
_PACKAGES = ('tff_dpemb', 'serving', 'launch')
_WAITS = (threading.__file__, concurrent.futures.wait.__code__.co_filename)
# Where a thread is that waits for another; `Event.is_set` is not among them.
_BLOCKED = (
  threading.Condition.wait.__code__,
  threading.Thread.join.__code__,
  threading.Thread._wait_for_tstate_lock.__code__,  # type: ignore[attr-defined]
)


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
      default=directory.DEFAULT_RUNS,
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
) -> Iterator[directory.RunDirectory]:
  run_config = config.load(page, overrides=overrides)
  run = directory.RunDirectory(run_config, runs=runs)
  with _sigterm_ends_cleanly(run), run.lock():
    run.record_config()
    yield run


@contextlib.contextmanager
def _sigterm_ends_cleanly(run: directory.RunDirectory) -> Iterator[None]:
  """SIGTERM ends the program with the code for a retry, within seconds.

  The last finished round is on disk; a round in flight is given up. Stages
  look between steps whether they shall stop, and a wait for workers is broken
  off. Python would raise in whatever runs at the moment, and a destructor or a
  callback of the garbage collector swallows that: so nothing is raised
  elsewhere. What does not come to such a place in `_GRACE_SECONDS` is ended
  as `kill -9` ends it, which every stage survives. So is what gets a second
  SIGTERM; the kernel ends the children.
  """

  def stop(number: int, frame: types.FrameType | None) -> None:
    del number
    if _is_wait_of_ours(frame):
      raise directory.Stopped

  # Python's own handlers wait for native code to return, this pipe does not.
  reader, writer = os.pipe()
  os.set_blocking(writer, False)
  watcher = threading.Thread(
    target=_watch_for_sigterm, args=(run, reader), daemon=True
  )
  handler = signal.signal(signal.SIGTERM, stop)
  wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
  watcher.start()
  try:
    yield
  except directory.Stopped:
    click.echo(_STOPPED, err=True)
    raise
  finally:
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGTERM, handler)
    os.write(writer, b'\0')
    watcher.join()
    os.close(reader)
    os.close(writer)


def _watch_for_sigterm(run: directory.RunDirectory, reader: int) -> None:
  """Asks for the end at the first SIGTERM, brings it about at the second.

  Args:
    run: Whose `stop_requested` is set.
    reader: Gives the number of each signal, and 0 when the run has ended.
  """
  grace = None
  while select.select([reader], [], [], grace)[0]:
    number = os.read(reader, 1)[0]
    if number == 0:
      return
    if number == signal.SIGTERM:
      if run.stop_requested.is_set():
        break
      run.stop_requested.set()
      grace = _GRACE_SECONDS
  with contextlib.suppress(OSError):
    os.write(2, f'\n{_STOPPED}\n'.encode())  # A progress bar may be there.
  os._exit(directory.EXIT_RETRY)


def _is_wait_of_ours(frame: types.FrameType | None) -> bool:
  """Returns whether our own code waits there for threads, and nothing else."""
  if frame is None or frame.f_code not in _BLOCKED:
    return False
  while frame is not None and frame.f_code.co_filename in _WAITS:
    frame = frame.f_back
  name = frame.f_globals.get('__name__', '') if frame is not None else ''
  return name.partition('.')[0] in _PACKAGES


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
        getattr(importlib.import_module(f'launch.steps.{module}'), function)(
          run
        )
        run.stop_if_requested()

  return command


_EXAMPLE = '\b\nExample:\n  dpemb {} launch/configs/quickstart.toml\n'


pretrain = stage_command(
  'pretrain',
  ('training:data', 'stages:pretrain'),
  'Pretrain the backbone on the public store.\n\n'
  + _EXAMPLE.format('pretrain'),
)
train = stage_command(
  'train',
  (
    'training:data',
    'training:check_population',
    'training:check_plan',
    'training:pretrain',
    'training:train',
  ),
  'Run or resume DP-FedEmb rounds on the private store.\n\nEvery round is'
  ' charged to the ledger before it runs. A killed run resumes at its last'
  ' finished round when the same command is given again.\n\n'
  + _EXAMPLE.format('train'),
)
evaluate = stage_command(
  'evaluate',
  ('training:evaluate',),
  'Measure recall@FAR and retrieval on the held-out test identities.\n\n'
  + _EXAMPLE.format('evaluate'),
)
export = stage_command(
  'export',
  ('publishing:export',),
  'Write the trained model as SavedModel and TFLite, with its certificate.\n\n'
  + _EXAMPLE.format('export'),
)
report = stage_command(
  'report',
  ('report:report',),
  'Write report.json and report.html of a finished run.\n\n'
  + _EXAMPLE.format('report'),
)
quickstart = stage_command(
  'quickstart',
  (
    'training:data',
    'training:check_population',
    'training:check_plan',
    'training:pretrain',
    'training:train',
    'training:evaluate',
    'publishing:export',
    'publishing:serve_check',
    'publishing:synthesize',
    'report:report',
  ),
  'Run every stage of a page: data, pretraining, private training,'
  ' evaluation, export, serving, synthetic embeddings, report.\n\nFinished'
  ' stages are kept; give the same command again after an interruption.\n\n'
  + _EXAMPLE.format('quickstart'),
)
