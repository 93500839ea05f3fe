"""One process at a time for a (run, slot), so that noise is drawn once.

A lease is held by a process, expires, and is fenced: each charge with a lease
checks that it is still the one held, in the transaction that writes the entry.
Each change of hands is an entry of the ledger, so that `verify` finds a lease
that was edited or deleted. Its expiry is not: who moves it only makes another
process wait, or take over from one that can then charge no more.
"""

import dataclasses
import datetime
import os
import secrets
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import store
from tff_dpemb.processes import liveness


@dataclasses.dataclass(frozen=True)
class Lease:
  """The right to run one slot of one run.

  Attributes:
    run: Which run.
    slot: Which scheduled start of it; empty for a run that is not scheduled.
    holder: The process, and a token that no other acquisition has.
    generation: Grows with each acquisition.
    ttl_seconds: How long it lasts without a renewal.
  """

  run: str
  slot: str
  holder: str
  generation: int
  ttl_seconds: float


def acquire(
  connection: sa.Connection,
  run: str,
  slot: str,
  *,
  ttl_seconds: float,
  now: datetime.datetime,
) -> Lease:
  """Returns the lease of (run, slot); call it in a write transaction.

  Raises:
    LeaseError: It is held by a process that may be alive, or is complete.
  """
  if not ttl_seconds > 0:
    raise errors.LeaseError(f'ttl_seconds must be > 0, got {ttl_seconds}.')
  table = store.leases
  row = connection.execute(
    sa.select(table).where(table.c.run == run, table.c.slot == slot)
  ).one_or_none()
  generation = 1
  if row is not None:
    if row.status == 'complete':
      raise errors.LeaseError(
        f'slot {slot!r} of run {run!r} must not be complete; it ran already.'
      )
    free = row.status == 'released' or row.expires_at <= now.timestamp()
    if not free and not _is_gone(row.holder):
      left = row.expires_at - now.timestamp()
      raise errors.LeaseError(
        f'slot {slot!r} of run {run!r} must be free; it is held by'
        f' {row.holder.rsplit(" ", 1)[0]!r} for another {left:.0f} s. Wait, or'
        ' stop that process.'
      )
    generation = row.generation + 1
  lease = Lease(run, slot, _new_holder(), generation, ttl_seconds)
  values = {
    'holder': lease.holder,
    'generation': generation,
    'status': 'held',
    'expires_at': now.timestamp() + ttl_seconds,
  }
  if row is None:
    connection.execute(table.insert().values(run=run, slot=slot, **values))
  else:
    connection.execute(
      table.update()
      .where(table.c.run == run, table.c.slot == slot)
      .values(**values)
    )
  return lease


def details(lease: Lease, status: str) -> dict[str, object]:
  """Returns what the ledger's chain keeps of a lease that changed hands."""
  return {
    'slot': lease.slot,
    'holder': lease.holder,
    'generation': lease.generation,
    'status': status,
  }


def problems(
  rows: Iterable[Mapping[str, object]],
  recorded: Iterable[tuple[str, Mapping[str, object]]],
) -> list[str]:
  """Returns where the table of leases and the ledger's chain disagree.

  Args:
    rows: The leases as they are.
    recorded: (run, details) of the lease entries, oldest first.
  """
  expected = {
    (run, str(item.get('slot'))): dict(item) for run, item in recorded
  }
  found = []
  for row in rows:
    key = (str(row['run']), str(row['slot']))
    kept = {
      name: row[name] for name in ('slot', 'holder', 'generation', 'status')
    }
    if expected.pop(key, None) != kept:
      found.append(
        f'the lease of slot {key[1]!r} of run {key[0]!r} must be as its last'
        ' entry says; it was edited, or put in.'
      )
  found += [
    f'the lease of slot {slot!r} of run {run!r} must be there; it was deleted.'
    for run, slot in expected
  ]
  return found


def check_and_renew(
  connection: sa.Connection, lease: Lease, now: datetime.datetime
) -> None:
  """Extends a lease; LeaseError if it is no longer the one held."""
  _update(
    connection, lease, {'expires_at': now.timestamp() + lease.ttl_seconds}
  )


def release(connection: sa.Connection, lease: Lease, *, complete: bool) -> str:
  """Ends a lease and returns its status; `complete` bars its slot for good."""
  status = 'complete' if complete else 'released'
  _update(connection, lease, {'status': status})
  return status


def _update(
  connection: sa.Connection, lease: Lease, values: dict[str, object]
) -> None:
  table = store.leases
  changed = connection.execute(
    table.update()
    .where(
      table.c.run == lease.run,
      table.c.slot == lease.slot,
      table.c.holder == lease.holder,
      table.c.generation == lease.generation,
      table.c.status == 'held',
    )
    .values(**values)
  ).rowcount
  if changed != 1:
    raise errors.LeaseError(
      f'the lease of slot {lease.slot!r} of run {lease.run!r} must be held; it'
      ' expired and another process took over, or it was released.'
    )


def _here() -> str:
  """Names this boot of this machine and this namespace of process ids."""
  return f'{liveness.machine()}/{liveness.boot()}'


def _new_holder() -> str:
  pid = os.getpid()
  token = secrets.token_hex(8)
  return f'{_here()} {pid} {liveness.start_time(pid)} {token}'


def _is_gone(holder: str) -> bool:
  """Whether the holder was a process of this machine that is no more."""
  here, pid, start, *_ = [*holder.rsplit(' ', 3), '', '', '']
  if here != _here() or '/unknown' in here or start == 'None':
    return False
  if not pid.isdecimal():  # Not written by us: wait for it to expire.
    return False
  return liveness.start_time(int(pid)) != start
