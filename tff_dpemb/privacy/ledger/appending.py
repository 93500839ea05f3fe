"""Appending to the chain: one writer at a time, and never after a gap.

Each entry holds the digest of the one before, and the head record counts them.
The mirror hears of an entry before it is committed and once it is durable.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import mirror as ledger_mirror
from tff_dpemb.privacy.ledger import state
from tff_dpemb.privacy.ledger import store as ledger_store

_NOTHING_DRAWN = events.canonical_text(dp_event.NoOpDpEvent())


@dataclasses.dataclass
class Transaction:
  """One write: what is appended in it is durable once it has ended.

  Attributes:
    connection: That alone may write.
    head: (number of entries, digest of the last one), own ones included.
    mirror: Of the ledger, or None.
    clock: Returns the time in UTC.
  """

  connection: sa.Connection
  head: tuple[int, str]
  mirror: ledger_mirror.Mirror | None
  clock: Callable[[], datetime.datetime]

  def append(
    self,
    kind: str,
    *,
    population: str = '',
    release: str = '',
    run: str = '',
    round_number: int | None = None,
    attempt: int = 1,
    event: str = _NOTHING_DRAWN,
    adjacency: guarantee.Adjacency = guarantee.Adjacency.ADD_OR_REMOVE_ONE,
    plan_digest: str = '',
    config_digest: str = '',
    code_revision: str = '',
    details: Mapping[str, Any] | None = None,
  ) -> state.Entry:
    """Appends an entry; arguments as `state.Entry` has them, event as text."""
    try:
      details_text = documents.canonical_json(details or {}).decode()
    except documents.DocumentError as error:
      raise errors.LedgerError(
        f'details must be JSON values: {error}'
      ) from error
    count, previous = self.head
    fields: dict[str, Any] = {
      'kind': kind,
      'population': population,
      'release': release,
      'run': run,
      'round_number': round_number,
      'attempt': attempt,
      'event': event,
      'adjacency': adjacency.value,
      'plan_digest': plan_digest,
      'config_digest': config_digest,
      'code_revision': code_revision,
      'details': details_text,
      'sequence': count + 1,
      'event_digest': events.text_digest(event),
      'recorded_at': self.clock().isoformat(timespec='microseconds'),
      'previous_digest': previous,
    }
    fields['digest'] = ledger_store.entry_digest(fields)
    entry = state.entry_from_fields(fields)
    self.head = (count + 1, entry.digest)
    if self.mirror is not None:
      self.mirror.announce(*self.head)
    self.connection.execute(ledger_store.entries.insert().values(**fields))
    self.connection.execute(
      ledger_store.head.update().values(
        entry_count=entry.sequence, digest=entry.digest
      )
    )
    return entry


class Appender:
  """Opens transactions on a ledger that lacks no entry."""

  def __init__(
    self,
    store: ledger_store.Store,
    clock: Callable[[], datetime.datetime],
  ):
    self._store = store
    self._clock = clock
    self._is_counted = False

  @contextlib.contextmanager
  def transaction(self) -> Iterator[Transaction]:
    """As `Store.write`, and tells the mirror what was appended.

    Raises:
      LedgerDamagedError: Entries are missing, or the head record is another.
    """
    with self._store.write() as (connection, head):
      self._check_whole(connection, head)
      start = (head.entry_count, head.digest)
      mirror = self._store.mirror
      writing = Transaction(connection, start, mirror, self._clock)
      yield writing
    if mirror is not None and writing.head != start:
      mirror.acknowledge(*writing.head)

  def _check_whole(self, connection: sa.Connection, head: sa.Row) -> None:
    """Refuses a ledger that lacks entries.

    The last entry is looked at each time. That none is missing before it is
    seen once: to count them takes longer, the longer the ledger is.
    """
    table = ledger_store.entries
    last = connection.execute(
      sa.select(table.c.sequence, table.c.digest)
      .order_by(table.c.sequence.desc())
      .limit(1)
    ).one_or_none()
    found = (0, ledger_store.genesis_digest(head.ledger_id))
    if last is not None:
      found = (last.sequence, last.digest)
    if found != (head.entry_count, head.digest):
      raise errors.LedgerDamagedError(
        'the last entry and the head record must agree; the ledger was edited'
        ' or truncated: run `dpemb ledger verify` and restore it. Nothing was'
        ' charged.'
      )
    if self._is_counted:
      return
    count = connection.execute(
      sa.select(sa.func.count()).select_from(table)
    ).scalar_one()
    if count != head.entry_count:
      raise errors.LedgerDamagedError(
        f'the ledger must hold {head.entry_count} entries as its head record'
        f' says, got {count}; some were deleted or put in: run `dpemb ledger'
        ' verify` and restore it. Nothing was charged.'
      )
    self._is_counted = True
