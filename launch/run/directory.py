"""The directory of one run: where each stage finds and leaves its artefacts."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator

from tff_dpemb import config
from tff_dpemb.artifacts import locks
from tff_dpemb.artifacts import storage

DEFAULT_RUNS = 'runs'
EXIT_RETRY = 75  # stopped with its state saved: give the same command again
_LEDGER = 'ledger.sqlite'
_BEFORE_THE_START = {'.lock', 'config.json', 'data', 'stages'}
# May differ between calls: they change nothing that was trained.
_FREE_KEYS = (
  'privacy.budget_epsilon',
  'privacy.extrapolate_to',
  'data.show_images',
)


class RunError(RuntimeError):
  """A run directory that another process uses, or that is not this run's."""


class Stopped(SystemExit):
  """SIGTERM asked for the end, and the program is where it can end."""

  def __init__(self):
    super().__init__(EXIT_RETRY)


class RunDirectory:
  """Paths of one run under `<runs>/<name>/`."""

  def __init__(self, run_config: config.RunConfig, *, runs: str | os.PathLike):
    if run_config.name.startswith(_LEDGER):
      raise RunError(
        f'name must not start with {_LEDGER!r}, the ledger beside the runs, got'
        f' {run_config.name!r}.'
      )
    self.stop_requested = threading.Event()  # set by SIGTERM
    self.runs = pathlib.Path(runs)
    self.root = self.runs / run_config.name
    self.config = run_config
    directory = run_config.data.directory
    self.data = pathlib.Path(directory) if directory else self.root / 'data'
    self.pretrained = self.root / 'pretrained'
    self.training = self.root / 'training'
    self.restricted = self.root / 'restricted'
    self.evaluation = self.root / 'evaluation'
    self.export = self.root / 'export'
    self.index = self.root / 'index'
    self.serving = self.root / 'serving'
    self.synthetic = self.root / run_config.synthesis.release
    self.synthetic_stage = self.root / 'stages' / run_config.synthesis.release
    self.report_json = self.root / 'report.json'
    self.report_html = self.root / 'report.html'

  def store(self, name: str) -> pathlib.Path:
    """Returns the path of a user store: public, private, validation, test."""
    return self.data / name

  @property
  def ledger_url(self) -> str:
    """Returns the ledger's URL or path: one for all runs of this directory."""
    configured = self.config.privacy.ledger
    return configured or str((self.runs / _LEDGER).absolute())

  def config_digest(self, *sections: str) -> str:
    """Returns the digest of sections, without what changes no result."""
    privacy = self.config.privacy.model_copy(
      update={'budget_epsilon': None, 'extrapolate_to': ()}
    )
    page = self.config.model_copy(update={'privacy': privacy})
    return page.digest(*sections)

  def stop_if_requested(self) -> None:
    """Raises Stopped, between steps, if SIGTERM asked for the end."""
    if self.stop_requested.is_set():
      raise Stopped

  def make_restricted(self) -> pathlib.Path:
    """Returns the folder of what must not leave, for the owner's eyes only."""
    self.restricted.mkdir(parents=True, exist_ok=True)
    self.restricted.chmod(0o700)
    return self.restricted

  @contextlib.contextmanager
  def lock(self) -> Iterator[None]:
    """Holds the run for this process; the kernel frees it however we end.

    Raises:
      RunError: Another process works on this run.
    """
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(locks.hold(self.root / '.lock', wait=False))
      except locks.HeldError as error:
        raise RunError(
          f'run {self.config.name!r} must have one process at a time; another'
          ' one works on it. Wait for it, or set another name.'
        ) from error
      except OSError as error:
        raise storage.ArtifactError(
          f'{str(self.root)!r} must be a writable directory'
          f' ({error.strerror}); choose another with --runs.'
        ) from error
      yield

  def record_config(self) -> None:
    """Writes `config.json`, or checks that the run was started with this page.

    Stages that only read may differ between calls (evaluation, serving). The
    page of a run that has made nothing but its data may change: a correction
    of what was refused at the start.

    Raises:
      RunError: The run was started with another page.
    """
    path = self.root / 'config.json'
    fixed = ('data', 'model', 'pretraining', 'privacy', 'training')
    page = self.config.model_dump(mode='json')
    started = {item.name for item in self.root.iterdir()} - _BEFORE_THE_START
    if path.exists() and started:
      old = storage.read_json(path)
      changed = [
        f'{section}.{key}'
        for section in fixed
        for key, value in page[section].items()
        if old.get(section, {}).get(key) != value
        and f'{section}.{key}' not in _FREE_KEYS
      ]
      if changed:
        raise RunError(
          f'run {self.config.name!r} was started with other values of'
          f' {", ".join(changed)}; set another name.'
        )
      return
    storage.atomic_write_json(path, page)
