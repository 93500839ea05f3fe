"""The opened run: the stores, the plan and the ledger of one command.

Each is opened once, where it is first needed: `pretrain` needs no ledger, and
`report` works where a store is gone.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

import click

from launch.run import directory
from launch.run import stamps
from tff_dpemb import config
from tff_dpemb.data import user_store
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.privacy.planning import settings as settings_lib


@dataclasses.dataclass(frozen=True)
class OpenRun:
  """A run as one command works on it; `open_run` makes and closes it."""

  paths: directory.RunDirectory
  _closing: contextlib.ExitStack

  @property
  def config(self) -> config.RunConfig:
    """The page of the run."""
    return self.paths.config

  @functools.cached_property
  def public(self) -> user_store.UserStore:
    """The public store.

    Raises:
      StageError: The data set has none; names the command that makes one.
    """
    path = self.paths.store('public')
    if self.paths.data.is_dir() and not path.exists():
      raise stamps.StageError(
        f'the data set {str(self.paths.data)!r} must have a public store, for'
        ' pretraining, synthetic sets and audits; make the data set again with'
        ' `dpemb data folder --public DIR`, or train without one with'
        ' pretraining.enabled = false.'
      )
    return user_store.UserStore.open(path)

  @functools.cached_property
  def private(self) -> user_store.UserStore:
    """The users whom training protects."""
    return user_store.UserStore.open(self.paths.store('private'))

  @functools.cached_property
  def validation(self) -> user_store.UserStore:
    """Held-out users to choose on."""
    return user_store.UserStore.open(self.paths.store('validation'))

  @functools.cached_property
  def test(self) -> user_store.UserStore:
    """Held-out users that nothing is chosen on."""
    return user_store.UserStore.open(self.paths.store('test'))

  @functools.cached_property
  def plan(self) -> plan_lib.PrivacyPlan:
    """The one plan of the run, for the users of its private store.

    Raises:
      PlanError: As of `plan_from_config`.
    """
    return settings_lib.plan_from_config(
      self.config.privacy,
      population=self.private.num_users,
      rounds=self.config.training.rounds,
      shares_virtual_client=self.config.privacy.share_virtual_clients,
    )

  @functools.cached_property
  def unverified_ledger(self) -> ledger_lib.Ledger:
    """The ledger as it is: enough to ask what a charge would refuse."""
    self.paths.runs.mkdir(parents=True, exist_ok=True)
    return self._closing.enter_context(
      ledger_lib.Ledger.open(self.paths.ledger_url)
    )

  @functools.cached_property
  def ledger(self) -> ledger_lib.Ledger:
    """The ledger, its whole chain verified at first use.

    A population without a budget gets the page's. One that is there already
    holds, whatever the page says: it is changed by `dpemb ledger budget
    --replace`, which records who allowed it.

    Raises:
      LedgerDamagedError: It is not as it was written: nothing may be charged.
      StageError: The budget's delta says nothing for so many users.
    """
    against_ledger.refuse_damaged(self.unverified_ledger)
    _hold_budget(self, self.unverified_ledger)
    return self.unverified_ledger

  def draws_of(self, release: str) -> int:
    """Returns how often noise was drawn for a release, replays included."""
    counts = self.ledger.draw_counts(
      population=self.config.privacy.population,
      run=self.config.name,
      release=release,
    )
    return sum(count for _, count in counts)

  @property
  def model_release(self) -> str:
    """The name that the trained model's noise is charged under."""
    return f'{self.config.name}/model'

  def read_done(self, stage: pathlib.Path, command: str) -> dict[str, Any]:
    """Returns the stamp of a finished stage.

    Raises:
      StageError: The stage is not done; names the command that does it.
    """
    found = stamps.read_any(stage)
    if found is None:
      raise stamps.StageError(
        f'run {self.config.name!r} must have finished `dpemb {command}`; give'
        ' that command first.'
      )
    return found


@contextlib.contextmanager
def open_run(paths: directory.RunDirectory) -> Iterator[OpenRun]:
  """Yields the opened run; closes at the end what was opened of it."""
  with contextlib.ExitStack() as closing:
    yield OpenRun(paths, closing)


def _hold_budget(run: OpenRun, ledger: ledger_lib.Ledger) -> None:
  settings = run.config.privacy
  asked, held = settings.budget_epsilon, ledger.budget(settings.population)
  if held is None:
    if asked is not None:
      budget = guarantee.Budget(asked, run.plan.delta, run.plan.adjacency)
      ledger.set_budget(settings.population, budget)
    return
  if held.delta >= 1 / run.plan.population:
    raise stamps.StageError(
      f'the budget of population {settings.population!r} must have a delta'
      f' below 1 / {run.plan.population} users, at which it could give one user'
      f' away, got {held.delta:g}; set it with `dpemb ledger budget --replace`.'
    )
  if asked is not None and held.epsilon != asked:
    click.echo(
      f'note: the budget of population {settings.population!r} is epsilon'
      f" {held.epsilon:g}, not the page's {asked:g}; it is changed by"
      ' `dpemb ledger budget --replace`.',
      err=True,
    )
