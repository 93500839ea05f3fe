"""The ledger: every noise draw and release, written before it is used.

An entry is durable before `charge` returns, so a crash may over-count and can
never under-count. Entries are chained by digests; `verify` finds edits,
deletions, reordering, replay and truncation. A population has one budget over
all runs and releases that touch it. What it refuses, and whether anything was
charged then: `errors`.
"""

import dataclasses
import datetime
import os
from collections.abc import Callable, Mapping
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import appending
from tff_dpemb.privacy.ledger import budget as ledger_budget
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import leases as leases_lib
from tff_dpemb.privacy.ledger import reading
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.ledger import store as ledger_store

_OPTIMISTIC_TRIES = 3


class Ledger(reading.Reader):
  """A ledger that may be charged; safe under several processes and threads.

  Open it after forking, not before.
  """

  def __init__(
    self,
    store: ledger_store.Store,
    clock: Callable[[], datetime.datetime],
  ):
    super().__init__(store)
    self._clock = clock
    self._appender = appending.Appender(store, clock)

  @classmethod
  def open(
    cls,
    url: str | os.PathLike[str],
    *,
    create: bool = True,
    mirror: str | os.PathLike[str] | None = None,
    clock: Callable[[], datetime.datetime] | None = None,
  ) -> 'Ledger':
    """Opens, or makes, the ledger at a SQLite path or a SQLAlchemy URL.

    Args:
      url: For example 'runs/ledger.sqlite' or
        'postgresql://dpemb@db.example/ledger?mirror=/shared/ledger.head'.
      create: Whether a missing ledger is made.
      mirror: File that repeats the head; default: the URL's, or for SQLite
        `<file>.head`, or none.
      clock: Returns the time in UTC; for tests.

    Raises:
      LedgerDamagedError: The head that was last acknowledged is not in it.
      LedgerUnavailableError: The server cannot be reached.
      LedgerError: It cannot be opened.
    """
    store = ledger_store.open_store(url, create=create, mirror=mirror)
    result = cls(store, clock or (lambda: datetime.datetime.now(datetime.UTC)))
    # First the mirror: others may append meanwhile.
    mirrored = store.mirror.acknowledged() if store.mirror else None
    if mirrored:
      count, digest = max(mirrored)
      found = result.digest_at(count)
      if found != digest:
        store.close()
        raise errors.LedgerDamagedError(
          f'the ledger must hold the entry {count} that was acknowledged; it'
          ' was truncated or replaced by an older copy: restore it.'
        )
    return result

  def __enter__(self) -> 'Ledger':
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connections."""
    self._store.close()

  def charge(
    self,
    *,
    population: str,
    release: str,
    run: str,
    event: dp_event.DpEvent,
    adjacency: guarantee.Adjacency = guarantee.Adjacency.ADD_OR_REMOVE_ONE,
    round_number: int | None = None,
    plan_digest: str = '',
    config_digest: str = '',
    code_revision: str = '',
    details: Mapping[str, Any] | None = None,
    lease: leases_lib.Lease | None = None,
  ) -> ledger_state.Entry:
    """Records a noise draw durably; only then may its noise be drawn.

    The same (run, release, round) charged again is a new attempt and is paid
    again.

    Args:
      population: Data set of users that pays.
      release: What the draw is for.
      run: Which run.
      event: What the draw reveals, for example `plan.round_event()`.
      adjacency: Relation that the event's sensitivities refer to.
      round_number: Round, where there are rounds.
      plan_digest: `plan.digest()`.
      config_digest: Digest of the run page.
      code_revision: Version of the code.
      details: Further facts to keep, JSON values; no user data. A
        'data_digest' among them binds that data set to the population
        (`check_data_set`).
      lease: If given, it must still be held; it is renewed.

    Raises:
      BudgetExceededError: It would exceed the budget; nothing was written.
      LeaseError: The lease was lost.
      LedgerDamagedError: Entries are missing.
      LedgerOutcomeUnknownError: The connection was lost during COMMIT: it may
        have been charged; no noise may be drawn for it.
      LedgerError: The adjacency differs from the population's other draws, the
        data set is charged to another population, or the database refused.
    """
    _check_names(population=population, release=release, run=run)
    text = events.canonical_text(event)
    events.flatten(event)  # Refuses parameters that are out of range.
    for tries in range(_OPTIMISTIC_TRIES + 1):
      entry = None
      with self._appender.transaction() as writing:
        connection = writing.connection
        state = ledger_state.read_state(connection, population)
        _check_adjacency(state, population, adjacency)
        if details and ledger_budget.DATA_DIGEST in details:
          data_digest = details[ledger_budget.DATA_DIGEST]
          self._data_sets.check(connection, population, data_digest)
        # Accounting may take seconds the first time: not under the lock,
        # unless others keep changing what it depends on.
        verdict = ledger_budget.verdict(
          state, text, compute=tries == _OPTIMISTIC_TRIES
        )
        if verdict in ('fits', 'warn'):
          if lease is not None:
            leases_lib.check_and_renew(connection, lease, self._clock())
          drawn = ledger_state.count_draws(
            connection, run, release, round_number
          )
          entry = writing.append(
            'draw',
            population=population,
            release=release,
            run=run,
            round_number=round_number,
            attempt=1 + drawn,
            event=text,
            adjacency=adjacency,
            plan_digest=plan_digest,
            config_digest=config_digest,
            code_revision=code_revision,
            details=details,
          )
      if entry is not None:
        if verdict == 'fits' or state.budget is None:
          return entry
        return dataclasses.replace(
          entry, warning=ledger_budget.warning(population, state.budget)
        )
      if state.budget is None:
        continue
      if verdict == 'exceeds':
        raise ledger_budget.refusal(population, state, event, state.budget)
      ledger_budget.learn(state, text, state.budget)  # Outside the lock.
    raise AssertionError('the last try computes under the lock')

  def record_release(
    self,
    *,
    population: str,
    release: str,
    run: str,
    digest: str,
    adjacency: guarantee.Adjacency = guarantee.Adjacency.ADD_OR_REMOVE_ONE,
    config_digest: str = '',
    code_revision: str = '',
    details: Mapping[str, Any] | None = None,
  ) -> ledger_state.Entry:
    """Records that an artefact left the private boundary; costs nothing."""
    _check_names(population=population, release=release, run=run)
    with self._appender.transaction() as writing:
      return writing.append(
        'release',
        population=population,
        release=release,
        run=run,
        adjacency=adjacency,
        config_digest=config_digest,
        code_revision=code_revision,
        details={**(details or {}), 'artifact_digest': digest},
      )

  def set_budget(
    self,
    population: str,
    budget: guarantee.Budget,
    *,
    replace: bool = False,
    approved_by: str = '',
  ) -> None:
    """Gives a population its budget; the same one again changes nothing.

    Raises:
      LedgerError: Another budget is set and `replace` is false.
    """
    _check_names(population=population)
    with self._appender.transaction() as writing:
      state = ledger_state.read_state(writing.connection, population)
      if state.budget == budget:
        return
      if state.budget is not None and not replace:
        command = ledger_budget.command(
          population, repr(budget.epsilon), budget.delta
        )
        raise errors.LedgerError(
          f'budget of population {population!r} is epsilon'
          f' {state.budget.epsilon!r} at delta {state.budget.delta!r}, got'
          f' epsilon {budget.epsilon!r} at delta {budget.delta!r}; change it'
          f' with `{command}`.'
        )
      _check_adjacency(state, population, budget.adjacency, budget=False)
      writing.append(
        'budget',
        population=population,
        adjacency=budget.adjacency,
        details={
          'epsilon': budget.epsilon,
          'delta': budget.delta,
          'approved_by': approved_by,
        },
      )

  # ---- leases ----

  def acquire_lease(
    self, run: str, slot: str = '', *, ttl_seconds: float = 600.0
  ) -> leases_lib.Lease:
    """Returns the only lease of (run, slot).

    One that has expired, or whose process on this machine is gone, is taken
    over.

    Raises:
      LeaseError: Another process holds it, or the slot is complete.
    """
    _check_names(run=run)
    with self._appender.transaction() as writing:
      lease = leases_lib.acquire(
        writing.connection,
        run,
        slot,
        ttl_seconds=ttl_seconds,
        now=self._clock(),
      )
      _append_lease(writing, lease, 'held')
    return lease

  def renew_lease(self, lease: leases_lib.Lease) -> None:
    """Extends a lease by its time to live; LeaseError if it was lost."""
    with self._store.write() as (connection, _):
      leases_lib.check_and_renew(connection, lease, self._clock())

  def release_lease(
    self, lease: leases_lib.Lease, *, complete: bool = False
  ) -> None:
    """Gives a lease back; `complete` bars the slot from ever running again."""
    with self._appender.transaction() as writing:
      status = leases_lib.release(writing.connection, lease, complete=complete)
      _append_lease(writing, lease, status)


def _append_lease(
  writing: appending.Transaction, lease: leases_lib.Lease, status: str
) -> None:
  writing.append(
    'lease',
    run=lease.run,
    attempt=lease.generation,
    details=leases_lib.details(lease, status),
  )


def _check_adjacency(
  state: ledger_state.State,
  population: str,
  adjacency: guarantee.Adjacency,
  *,
  budget: bool = True,
) -> None:
  known = state.adjacency
  if known is None and budget and state.budget is not None:
    known = state.budget.adjacency.value
  if known is not None and known != adjacency.value:
    raise errors.LedgerError(
      f'adjacency must be {known} as for the other draws of population'
      f' {population!r}, got {adjacency.value}; guarantees under different'
      ' relations do not add up.'
    )


def _check_names(**names: str) -> None:
  for name, value in names.items():
    longest = 64 if name == 'population' else 128
    if not isinstance(value, str) or not 0 < len(value) <= longest:
      raise errors.LedgerError(
        f'{name} must be a text of 1 to {longest} characters, got {value!r}.'
      )
