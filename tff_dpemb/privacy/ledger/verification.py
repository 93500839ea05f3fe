"""What is wrong with a ledger: the chain, its mirror, its leases, a known head.

Found from inside: an entry that was edited, deleted, put in, reordered or
replayed; a head record that does not belong to the last entry; a lease that is
not as its last entry says. Who rewrites all entries and the head record from
some point on makes a chain that is whole: that is found by what lies elsewhere,
the mirror or a head that was noted (a certificate states one).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import leases
from tff_dpemb.privacy.ledger import state
from tff_dpemb.privacy.ledger import store as ledger_store


def problems(
  store: ledger_store.Store, *, head: tuple[int, str] | None = None
) -> list[str]:
  """Returns what is wrong, one sentence each; an empty list if nothing is.

  Args:
    store: The ledger's.
    head: (number of entries, digest of the last one) as noted earlier; the
      ledger must still hold it.
  """
  found = []
  mirrored: list[tuple[int, str]] | None = None
  mirror = store.mirror
  with store.read() as connection:
    # First the mirror: others may append meanwhile.
    try:
      mirrored = None if mirror is None else mirror.acknowledged()
    except errors.LedgerDamagedError as error:
      found.append(str(error))
    else:
      if mirrored is None and mirror is not None:
        found.append(
          f'{mirror.path.name!r} must be beside the ledger; it was removed, so'
          ' truncation cannot be ruled out.'
        )
    heads = connection.execute(sa.select(ledger_store.head)).all()
    table = ledger_store.entries
    rows = _rows(connection, sa.select(table).order_by(table.c.sequence))
    held = _rows(connection, sa.select(ledger_store.leases))
  if len(heads) != 1:
    return [*found, f'there must be one head record, got {len(heads)}.']
  found += _chain_problems(heads[0], rows, mirrored or [])
  if head is not None:
    found += _head_problems(head, rows)
  if not found:
    found += leases.problems(held, state.lease_entries(rows))
  if mirrored is not None and mirror is not None:
    # Read again: each of the rows was announced before it was committed.
    known = mirror.known()
    lost = [
      row['sequence']
      for row in rows
      if (row['sequence'], row['digest']) not in known
    ]
    if lost:
      found.append(
        f'{mirror.path.name!r} must name every entry; it lacks {len(lost)} of'
        f' {len(rows)}, the first is {lost[0]}: it was emptied or cut, so'
        ' truncation cannot be ruled out.'
      )
  return found


def _rows(
  connection: sa.Connection, query: sa.Select[Any]
) -> list[dict[str, Any]]:
  return [dict(row) for row in connection.execute(query).mappings()]


def _chain_problems(
  head: sa.Row,
  rows: Sequence[Mapping[str, Any]],
  mirrored: list[tuple[int, str]],
) -> list[str]:
  found = []
  previous = ledger_store.genesis_digest(head.ledger_id)
  digests = {0: previous}
  known: dict[str, dp_event.DpEvent] = {}
  for position, row in enumerate(rows, start=1):
    fields = dict(row)
    name = f'entry {fields["sequence"]}'
    if fields['sequence'] != position:
      found.append(
        f'entry {position} must follow entry {position - 1}, got {name}: one'
        ' was deleted, reordered or replayed.'
      )
      break
    if fields['previous_digest'] != previous:
      found.append(f'{name} must be chained to the one before it.')
    try:
      whole = fields['digest'] == ledger_store.entry_digest(fields)
      same_event = fields['event_digest'] == events.text_digest(fields['event'])
    except (AttributeError, TypeError, ValueError):  # SQLite: any type.
      whole = same_event = False
    if not whole:
      found.append(f'{name} must match its digest; it was edited.')
    if not same_event:
      found.append(f'{name} must match the digest of its event.')
    try:
      state.entry_from_fields(fields, known)
    except errors.LedgerDamagedError as error:
      found.append(str(error))
    previous = fields['digest']
    digests[position] = previous
  if not found and (head.entry_count, head.digest) != (len(rows), previous):
    found.append(
      f'the head record counts {head.entry_count} entries, got {len(rows)}'
      ' or another last one; the ledger was truncated.'
    )
  wrong = sorted(
    count for count, digest in mirrored if digests.get(count) != digest
  )
  if wrong:
    found.append(
      f'entry {wrong[0]} was acknowledged with another digest, or is gone; the'
      ' ledger was truncated, rewritten or replaced by an older copy.'
    )
  return found


def _head_problems(
  head: tuple[int, str], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
  count, digest = head
  if any(row['sequence'] == count and row['digest'] == digest for row in rows):
    return []
  return [
    f'entry {count} must have the noted digest {digest}; the ledger was'
    ' truncated, rewritten or replaced since.'
  ]
