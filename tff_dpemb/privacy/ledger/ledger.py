"""The ledger: every noise draw and release, written before it is used.

    LedgerError
      LedgerDamagedError          edited, truncated or replaced
      LedgerUnavailableError      not reached, or busy
        LedgerOutcomeUnknownError lost during COMMIT: it may be charged
      BudgetExceededError         a draw that does not fit; it must not run
      LeaseError                  another process runs this (run, slot)

An entry is durable before `charge` returns, so a crash may over-count and can
never under-count. Entries are chained by digests; `verify` finds edits,
deletions, reordering, replay and truncation. A population has one budget over
all runs and releases that touch it.
"""

import contextlib
import dataclasses
import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import budget as ledger_budget
from tff_dpemb.privacy.ledger import data_sets as ledger_data_sets
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import leases as leases_lib
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.ledger import store as ledger_store
from tff_dpemb.privacy.ledger import verification

LedgerError = errors.LedgerError
LedgerDamagedError = errors.LedgerDamagedError
LedgerUnavailableError = errors.LedgerUnavailableError
LedgerOutcomeUnknownError = errors.LedgerOutcomeUnknownError
BudgetExceededError = ledger_budget.BudgetExceededError
LeaseError = leases_lib.LeaseError
Lease = leases_lib.Lease
Entry = ledger_state.Entry

_OPTIMISTIC_TRIES = 3


class Ledger:
  """A ledger; safe under several processes and threads.

  Open it after forking, not before.
  """

  def __init__(
    self,
    store: ledger_store.Store,
    clock: Callable[[], datetime.datetime],
  ):
    self._store = store
    self._clock = clock
    self._data_sets = ledger_data_sets.DataSets()
    self._is_counted = False

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
    mirrored = store.read_mirror()  # First: others may append meanwhile.
    if mirrored:
      count, digest = max(mirrored)
      found = result.digest_at(count)
      if found != digest:
        store.close()
        raise LedgerDamagedError(
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

  # ---- writing ----

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
  ) -> Entry:
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
      fields = None
      with self._write() as (connection, row):
        state = ledger_state.read_state(connection, population)
        self._check_adjacency(state, population, adjacency)
        self._data_sets.check_details(connection, population, details)
        # Accounting may take seconds the first time: not under the lock,
        # unless others keep changing what it depends on.
        verdict = ledger_budget.verdict(
          state, text, compute=tries == _OPTIMISTIC_TRIES
        )
        if verdict in ('fits', 'warn'):
          if lease is not None:
            leases_lib.check_and_renew(connection, lease, self._clock())
          fields = self._append(
            connection,
            row,
            kind='draw',
            population=population,
            release=release,
            run=run,
            round_number=round_number,
            attempt=1
            + ledger_state.count_draws(connection, run, release, round_number),
            event=text,
            adjacency=adjacency.value,
            plan_digest=plan_digest,
            config_digest=config_digest,
            code_revision=code_revision,
            details=details,
          )
      if fields is not None:
        self._store.append_mirror(fields['sequence'], fields['digest'])
        entry = ledger_state.entry_from_fields(fields)
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
  ) -> Entry:
    """Records that an artefact left the private boundary; costs nothing."""
    _check_names(population=population, release=release, run=run)
    with self._write() as (connection, row):
      fields = self._append(
        connection,
        row,
        kind='release',
        population=population,
        release=release,
        run=run,
        round_number=None,
        attempt=1,
        event=events.canonical_text(dp_event.NoOpDpEvent()),
        adjacency=adjacency.value,
        plan_digest='',
        config_digest=config_digest,
        code_revision=code_revision,
        details={**(details or {}), 'artifact_digest': digest},
      )
    self._store.append_mirror(fields['sequence'], fields['digest'])
    return ledger_state.entry_from_fields(fields)

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
    with self._write() as (connection, row):
      state = ledger_state.read_state(connection, population)
      if state.budget == budget:
        return
      if state.budget is not None and not replace:
        command = ledger_budget.command(
          population, repr(budget.epsilon), budget.delta
        )
        raise LedgerError(
          f'budget of population {population!r} is epsilon'
          f' {state.budget.epsilon!r} at delta {state.budget.delta!r}, got'
          f' epsilon {budget.epsilon!r} at delta {budget.delta!r}; change it'
          f' with `{command}`.'
        )
      self._check_adjacency(state, population, budget.adjacency, budget=False)
      fields = self._append(
        connection,
        row,
        kind='budget',
        population=population,
        release='',
        run='',
        round_number=None,
        attempt=1,
        event=events.canonical_text(dp_event.NoOpDpEvent()),
        adjacency=budget.adjacency.value,
        plan_digest='',
        config_digest='',
        code_revision='',
        details={
          'epsilon': budget.epsilon,
          'delta': budget.delta,
          'approved_by': approved_by,
        },
      )
    self._store.append_mirror(fields['sequence'], fields['digest'])

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
    with self._write() as (connection, row):
      lease = leases_lib.acquire(
        connection, run, slot, ttl_seconds=ttl_seconds, now=self._clock()
      )
      fields = self._append_lease(connection, row, lease, 'held')
    self._store.append_mirror(fields['sequence'], fields['digest'])
    return lease

  def renew_lease(self, lease: leases_lib.Lease) -> None:
    """Extends a lease by its time to live; LeaseError if it was lost."""
    with self._store.write() as (connection, _):
      leases_lib.check_and_renew(connection, lease, self._clock())

  def release_lease(
    self, lease: leases_lib.Lease, *, complete: bool = False
  ) -> None:
    """Gives a lease back; `complete` bars the slot from ever running again."""
    with self._write() as (connection, row):
      status = leases_lib.release(connection, lease, complete=complete)
      fields = self._append_lease(connection, row, lease, status)
    self._store.append_mirror(fields['sequence'], fields['digest'])

  # ---- reading ----

  def entries(
    self,
    *,
    population: str | None = None,
    run: str | None = None,
    release: str | None = None,
    kind: str | None = None,
  ) -> list[Entry]:
    """Returns the entries that match, oldest first."""
    wanted = {
      'population': population,
      'run': run,
      'release': release,
      'kind': kind,
    }
    query = sa.select(ledger_store.entries).order_by(
      ledger_store.entries.c.sequence
    )
    for name, value in wanted.items():
      if value is not None:
        query = query.where(ledger_store.entries.c[name] == value)
    with self._store.read() as connection:
      rows = connection.execute(query).mappings().all()
    known: dict[str, dp_event.DpEvent] = {}
    return [ledger_state.entry_from_fields(dict(row), known) for row in rows]

  def populations(self) -> list[str]:
    """Returns the names of all populations, sorted."""
    table = ledger_store.entries
    query = (
      sa.select(table.c.population, sa.func.min(table.c.sequence))
      .where(table.c.kind != 'lease')
      .group_by(table.c.population)
    )
    with self._store.read() as connection:
      rows = connection.execute(query).all()
    return [name for name, _ in ledger_state.texts_of_rows(rows, 'population')]

  def data_sets(self, population: str) -> list[str]:
    """Returns the digests of the data a population's draws named, sorted."""
    with self._store.read() as connection:
      return self._data_sets.of_population(connection, population)

  def check_data_set(self, population: str, data_digest: str) -> None:
    """Refuses data that another population pays for; `charge` does it too.

    Args:
      population: Who is to pay.
      data_digest: Of the data set, as in `details` of the draws.

    Raises:
      LedgerError: A draw on the same data is recorded under another
        population; it is named.
    """
    with self._store.read() as connection:
      self._data_sets.check(connection, population, data_digest)

  def releases(self, population: str, *, until: int | None = None) -> list[str]:
    """Returns the names of a population's releases that drew noise, sorted.

    Args:
      population: Which one.
      until: The last entry that counts; default: all.
    """
    return self._distinct('release', population, until)

  def head(self) -> tuple[int, str]:
    """Returns (number of entries, digest of the last one)."""
    with self._store.read() as connection:
      row = ledger_store.only_head(
        connection.execute(sa.select(ledger_store.head)).all()
      )
    return row.entry_count, row.digest

  def digest_at(self, count: int) -> str | None:
    """Returns the digest of entry `count`, or None if there is none."""
    query = sa.select(ledger_store.entries.c.digest).where(
      ledger_store.entries.c.sequence == count
    )
    with self._store.read() as connection:
      return connection.execute(query).scalar_one_or_none()

  def budget(self, population: str) -> guarantee.Budget | None:
    """Returns the population's budget, or None if none is enforced."""
    with self._store.read() as connection:
      return ledger_state.read_state(connection, population).budget

  def draw_counts(
    self,
    *,
    population: str | None = None,
    run: str | None = None,
    release: str | None = None,
    until: int | None = None,
  ) -> events.Counts:
    """Returns the drawn events with how often each was drawn.

    Args:
      population: Only of this one.
      run: Only of this one.
      release: Only of this one.
      until: The last entry that counts; default: all.
    """
    table = ledger_store.entries
    query = (
      sa.select(table.c.event, sa.func.min(table.c.sequence), sa.func.count())
      .where(table.c.kind == 'draw')
      .group_by(table.c.event)
    )
    for column, value in (
      (table.c.population, population),
      (table.c.run, run),
      (table.c.release, release),
    ):
      if value is not None:
        query = query.where(column == value)
    if until is not None:
      query = query.where(table.c.sequence <= until)
    with self._store.read() as connection:
      rows = connection.execute(query).all()
    counts = {first: count for _, first, count in rows}
    texts = [(text, first) for text, first, _ in rows]
    return tuple(
      (ledger_state.event_of_text(text, first), counts[first])
      for text, first in ledger_state.texts_of_rows(texts, 'event')
    )

  def count_draws(
    self, *, run: str, release: str, round_number: int | None
  ) -> int:
    """Returns how often a round was charged: the attempts that it has had."""
    with self._store.read() as connection:
      return ledger_state.count_draws(connection, run, release, round_number)

  def runs(self, population: str, *, until: int | None = None) -> list[str]:
    """Returns the names of the runs that drew noise, as `releases` does."""
    return self._distinct('run', population, until)

  def composed_event(self, population: str) -> dp_event.DpEvent:
    """Returns all that a population has paid for as one event."""
    return events.compose(self.draw_counts(population=population))

  def spent(
    self,
    population: str,
    delta: float | None = None,
    *,
    until: int | None = None,
  ) -> guarantee.Guarantee:
    """Returns the guarantee of everything drawn so far from a population.

    Training rounds and synthetic releases together. A draw without noise, or
    draws that no accountant can compose, leave no guarantee (epsilon
    infinite), and the warning says why.

    Args:
      population: Which one.
      delta: Default: the budget's delta.
      until: The last entry that counts; default: all.

    Raises:
      LedgerError: delta is not given and there is no budget.
    """
    with self._store.read() as connection:
      state = ledger_state.read_state(connection, population, until=until)
    if delta is None:
      if state.budget is None:
        raise LedgerError(
          f'delta must be given: population {population!r} has no budget.'
        )
      delta = state.budget.delta
    return ledger_state.guarantee_of_state(state, delta)

  def headroom(
    self, population: str, event: dp_event.DpEvent, *, limit: int = 1000
  ) -> int:
    """Returns how many more such draws fit the budget, at most `limit`."""
    with self._store.read() as connection:
      state = ledger_state.read_state(connection, population)
    if state.budget is None:
      return limit
    return accountant.max_count(
      ledger_state.counts_of_state(state),
      event,
      epsilon=state.budget.epsilon,
      delta=state.budget.delta,
      adjacency=state.budget.adjacency,
      limit=limit,
    )

  def verify(self, *, head: tuple[int, str] | None = None) -> list[str]:
    """Returns what is wrong with the ledger; an empty list if nothing is.

    Args:
      head: (number of entries, digest of the last one) that was noted
        elsewhere (`head()`, a certificate): without a mirror, only it shows
        that the end was cut off or rewritten.
    """
    return verification.problems(self._store, head=head)

  # ---- inside ----

  def _distinct(
    self, column: str, population: str, until: int | None
  ) -> list[str]:
    table = ledger_store.entries
    query = (
      sa.select(table.c[column], sa.func.min(table.c.sequence))
      .where(table.c.population == population, table.c.kind == 'draw')
      .group_by(table.c[column])
    )
    if until is not None:
      query = query.where(table.c.sequence <= until)
    with self._store.read() as connection:
      rows = connection.execute(query).all()
    return [name for name, _ in ledger_state.texts_of_rows(rows, column)]

  @contextlib.contextmanager
  def _write(self) -> Iterator[tuple[sa.Connection, sa.Row]]:
    """As `Store.write`, of a ledger that lacks no entry.

    The last entry is looked at each time. That none is missing before it is
    seen once: to count them takes longer, the longer the ledger is.

    Raises:
      LedgerDamagedError: Entries are missing, or the head record is another.
    """
    table = ledger_store.entries
    with self._store.write() as (connection, row):
      last = connection.execute(
        sa.select(table.c.sequence, table.c.digest)
        .order_by(table.c.sequence.desc())
        .limit(1)
      ).one_or_none()
      found = (0, ledger_store.genesis_digest(row.ledger_id))
      if last is not None:
        found = (last.sequence, last.digest)
      if found != (row.entry_count, row.digest):
        raise LedgerDamagedError(
          'the last entry and the head record must agree; the ledger was edited'
          ' or truncated: run `dpemb ledger verify` and restore it. Nothing was'
          ' charged.'
        )
      if not self._is_counted:
        count = connection.execute(
          sa.select(sa.func.count()).select_from(table)
        ).scalar_one()
        if count != row.entry_count:
          raise LedgerDamagedError(
            f'the ledger must hold {row.entry_count} entries as its head record'
            f' says, got {count}; some were deleted or put in: run `dpemb'
            ' ledger verify` and restore it. Nothing was charged.'
          )
        self._is_counted = True
      yield connection, row

  def _append_lease(
    self,
    connection: sa.Connection,
    row: sa.Row,
    lease: leases_lib.Lease,
    status: str,
  ) -> dict[str, Any]:
    return self._append(
      connection,
      row,
      kind='lease',
      population='',
      release='',
      run=lease.run,
      round_number=None,
      attempt=lease.generation,
      event=events.canonical_text(dp_event.NoOpDpEvent()),
      adjacency=guarantee.Adjacency.ADD_OR_REMOVE_ONE.value,
      plan_digest='',
      config_digest='',
      code_revision='',
      details=leases_lib.details(lease, status),
    )

  def _append(
    self, connection: sa.Connection, row: sa.Row, **fields: Any
  ) -> dict[str, Any]:
    try:
      details = documents.canonical_json(fields['details'] or {}).decode()
    except documents.DocumentError as error:
      raise LedgerError(f'details must be JSON values: {error}') from error
    fields = {
      **fields,
      'details': details,
      'sequence': row.entry_count + 1,
      'event_digest': events.text_digest(fields['event']),
      'recorded_at': self._clock().isoformat(timespec='microseconds'),
      'previous_digest': row.digest,
    }
    fields['digest'] = ledger_store.entry_digest(fields)
    self._store.announce(fields['sequence'], fields['digest'])
    connection.execute(ledger_store.entries.insert().values(**fields))
    connection.execute(
      ledger_store.head.update().values(
        entry_count=fields['sequence'], digest=fields['digest']
      )
    )
    return fields

  def _check_adjacency(
    self,
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
      raise LedgerError(
        f'adjacency must be {known} as for the other draws of population'
        f' {population!r}, got {adjacency.value}; guarantees under different'
        ' relations do not add up.'
      )


def _check_names(**names: str) -> None:
  for name, value in names.items():
    longest = 64 if name == 'population' else 128
    if not isinstance(value, str) or not 0 < len(value) <= longest:
      raise LedgerError(
        f'{name} must be a text of 1 to {longest} characters, got {value!r}.'
      )
