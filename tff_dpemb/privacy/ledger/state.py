"""What the rows of a ledger say: entries, state of a population, the chain."""

import dataclasses
import json
import math
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import store

# SQLite keeps a value of any type in any column.
_KINDS = {
  column.name: (column.type.python_type, column.nullable)
  for column in store.entries.columns
}


@dataclasses.dataclass(frozen=True)
class Entry:
  """One line of the ledger.

  Attributes:
    sequence: 1 for the first entry, without gaps.
    kind: 'draw' (noise was drawn), 'release' (an artefact left the private
      boundary; costs nothing more), 'budget', or 'lease' (a run's slot changed
      hands).
    population: Data set of users that pays; empty for a lease.
    release: What the draw belongs to, for example 'quickstart/model'.
    run: Which run.
    round_number: Round, or None for a draw without rounds.
    attempt: 1, or more if the same draw was made again.
    event: The `dp_accounting` event.
    adjacency: Relation that its sensitivities refer to.
    plan_digest: Of the plan, or empty.
    config_digest: Of the run page, or empty.
    code_revision: Version of the code, or empty.
    details: Further facts; for a budget its numbers, for a release the digest.
    recorded_at: UTC time, ISO 8601.
    previous_digest: Digest of the entry before.
    digest: Of all of the above.
    warning: A sentence for people when 80 % of the budget is spent, or ''.
  """

  sequence: int
  kind: str
  population: str
  release: str
  run: str
  round_number: int | None
  attempt: int
  event: dp_event.DpEvent
  adjacency: guarantee.Adjacency
  plan_digest: str
  config_digest: str
  code_revision: str
  details: Mapping[str, Any]
  recorded_at: str
  previous_digest: str
  digest: str
  warning: str = ''

  def to_json(self) -> dict[str, Any]:
    """Returns a JSON value with the event in named-tuple form."""
    content = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name != 'warning'
    }
    content['event'] = events.to_json(self.event)
    content['adjacency'] = self.adjacency.value
    content['details'] = dict(self.details)
    return content


@dataclasses.dataclass(frozen=True)
class State:
  """What a decision on one population depends on."""

  budget: guarantee.Budget | None
  counts: tuple[tuple[str, int], ...]  # (event text, times), sorted
  firsts: tuple[int, ...]  # The first entry of each of the counts.
  adjacency: str | None


def read_state(
  connection: sa.Connection, population: str, *, until: int | None = None
) -> State:
  """Returns the state after entry `until`; by default after the last one.

  Raises:
    LedgerDamagedError: The budget, or a draw, is not what a ledger writes.
  """
  table = store.entries
  counted = sa.true() if until is None else table.c.sequence <= until
  row = connection.execute(
    sa.select(table.c.sequence, table.c.details, table.c.adjacency)
    .where(table.c.population == population, table.c.kind == 'budget', counted)
    .order_by(table.c.sequence.desc())
    .limit(1)
  ).one_or_none()
  budget = None
  if row is not None:
    budget = _budget(row.sequence, row.details, row.adjacency)
  groups = connection.execute(
    sa.select(sa.func.min(table.c.sequence), sa.func.count())
    .where(table.c.population == population, table.c.kind == 'draw', counted)
    .group_by(table.c.event_digest, table.c.adjacency)
  ).all()
  rows = {
    row.sequence: row
    for row in connection.execute(
      sa.select(table.c.sequence, table.c.event, table.c.adjacency).where(
        table.c.sequence.in_([first for first, _ in groups])
      )
    )
  }
  counts = sorted(
    (_text(first, 'event', rows[first].event), count, first)
    for first, count in groups
  )
  relations = sorted(
    {_text(first, 'adjacency', row.adjacency) for first, row in rows.items()}
  )
  return State(
    budget=budget,
    counts=tuple((text, count) for text, count, _ in counts),
    firsts=tuple(first for _, _, first in counts),
    adjacency=' and '.join(relations) if relations else None,
  )


def count_draws(
  connection: sa.Connection, run: str, release: str, round_number: int | None
) -> int:
  """Returns how often the same draw was charged before."""
  table = store.entries
  query = (
    sa.select(sa.func.count())
    .select_from(table)
    .where(
      table.c.kind == 'draw',
      table.c.run == run,
      table.c.release == release,
      table.c.round_number.is_(None)
      if round_number is None
      else table.c.round_number == round_number,
    )
  )
  return connection.execute(query).scalar_one()


def counts_of_state(state: State, *, without: str = '') -> events.Counts:
  return events.merge(
    (event_of_text(text, first), count)
    for (text, count), first in zip(state.counts, state.firsts, strict=True)
    if text != without
  )


def guarantee_of_state(state: State, delta: float) -> guarantee.Guarantee:
  adjacency = state.adjacency
  if adjacency is None:
    relation = guarantee.Adjacency.ADD_OR_REMOVE_ONE
    if state.budget is not None:
      relation = state.budget.adjacency
    return accountant.guarantee_of_counts((), delta=delta, adjacency=relation)
  if adjacency not in set(guarantee.Adjacency):
    return guarantee.Guarantee(
      math.inf,
      delta=delta,
      adjacency=guarantee.Adjacency.ADD_OR_REMOVE_ONE,
      accountant='none',
      warnings=(
        f'Draws under {adjacency} cannot be composed, so nothing is'
        ' guaranteed.',
      ),
    )
  return accountant.guarantee_of_counts(
    counts_of_state(state),
    delta=delta,
    adjacency=guarantee.Adjacency(adjacency),
    assumptions=(
      'All entries of the ledger for this population are composed.',
    ),
  )


def lease_entries(
  rows: Sequence[Mapping[str, Any]],
) -> list[tuple[str, dict[str, Any]]]:
  """Returns (run, details) of the rows that note a change of hands."""
  return [
    (row['run'], details_of_text(row['details'], row['sequence']))
    for row in rows
    if row['kind'] == 'lease'
  ]


def entry_from_fields(
  fields: Mapping[str, Any],
  known: MutableMapping[str, dp_event.DpEvent] | None = None,
) -> Entry:
  """Returns the entry of a row.

  Args:
    fields: All columns of the row.
    known: Events by their text, as found so far; it is added to.

  Raises:
    LedgerDamagedError: It is not what a ledger writes; the entry is named.
  """
  sequence = fields['sequence']
  for name, (kind, nullable) in _KINDS.items():
    value = fields[name]
    if not isinstance(value, kind) and not (nullable and value is None):
      rule = 'that is a number' if kind is int else 'of text'
      raise _damaged(sequence, f'{name} {rule}', type(value).__name__)
  text = fields['event']
  event = None if known is None else known.get(text)
  if event is None:
    event = event_of_text(text, sequence)
  if known is not None:
    known[text] = event
  if fields['kind'] == 'budget':
    _budget(sequence, fields['details'], fields['adjacency'])
  return Entry(
    **{
      name: fields[name]
      for name in _KINDS
      if name not in ('event', 'event_digest', 'adjacency', 'details')
    },
    event=event,
    adjacency=_adjacency(sequence, fields['adjacency']),
    details=details_of_text(fields['details'], sequence),
  )


def event_of_text(text: Any, sequence: int) -> dp_event.DpEvent:
  """Returns the event of an entry.

  Args:
    text: As it lies in the database; a text, if the entry is whole.
    sequence: Which entry.

  Raises:
    LedgerDamagedError: It is no text of an event; the entry is named.
  """
  content = _json_object(text, sequence, 'event')
  try:
    return events.from_json(content)
  except (AttributeError, RecursionError, TypeError, ValueError) as error:
    raise _damaged(sequence, 'an event', str(error)) from error


def details_of_text(text: Any, sequence: int) -> dict[str, Any]:
  """Returns the details of an entry; arguments and errors as for its event."""
  return _json_object(text, sequence, 'details')


def texts_of_rows(
  rows: Sequence[Sequence[Any]], name: str
) -> list[tuple[str, int]]:
  """Returns (text, first entry with it), sorted, of rows of the two.

  Sorted here: the order of texts differs between databases.

  Raises:
    LedgerDamagedError: One is no text; its entry is named.
  """
  return sorted((_text(first, name, text), first) for text, first in rows)


def _budget(sequence: int, text: Any, adjacency: Any) -> guarantee.Budget:
  numbers = details_of_text(text, sequence)
  try:
    return guarantee.Budget(
      numbers['epsilon'], numbers['delta'], _adjacency(sequence, adjacency)
    )
  except errors.LedgerDamagedError:
    raise
  except (KeyError, TypeError, ValueError) as error:
    raise _damaged(
      sequence, 'a budget', f'{type(error).__name__}: {error}'
    ) from error


def _adjacency(sequence: int, text: Any) -> guarantee.Adjacency:
  try:
    return guarantee.Adjacency(text)
  except ValueError as error:
    raise _damaged(sequence, 'an adjacency', repr(text)) from error


def _json_object(text: Any, sequence: int, name: str) -> dict[str, Any]:
  try:
    content = json.loads(_text(sequence, name, text))
  except (RecursionError, json.JSONDecodeError) as error:
    raise _damaged(sequence, f'{name} in JSON', str(error)) from error
  if not isinstance(content, dict):
    raise _damaged(
      sequence, f'{name} that is a JSON object', type(content).__name__
    )
  return content


def _text(sequence: int, name: str, value: Any) -> str:
  if not isinstance(value, str):
    raise _damaged(sequence, f'{name} of text', type(value).__name__)
  return value


def _damaged(sequence: int, rule: str, got: str) -> errors.LedgerDamagedError:
  return errors.LedgerDamagedError(
    f'entry {sequence} of the ledger must have {rule}, got {got.rstrip(".")};'
    ' it was edited: run `dpemb ledger verify` and restore the ledger from a'
    ' copy.'
  )
