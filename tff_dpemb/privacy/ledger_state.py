"""What the rows of a ledger say: entries, state of a population, the chain."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy import accounting
from tff_dpemb.privacy import events
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy import ledger_store


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
  adjacency: str | None


def read_state(
  connection: sa.Connection, population: str, *, until: int | None = None
) -> State:
  """Returns the state after entry `until`; by default after the last one."""
  table = ledger_store.entries
  counted = sa.true() if until is None else table.c.sequence <= until
  details = connection.execute(
    sa.select(table.c.details, table.c.adjacency)
    .where(table.c.population == population, table.c.kind == 'budget', counted)
    .order_by(table.c.sequence.desc())
    .limit(1)
  ).one_or_none()
  budget = None
  if details is not None:
    numbers = json.loads(details.details)
    budget = guarantee.Budget(
      numbers['epsilon'],
      numbers['delta'],
      guarantee.Adjacency(details.adjacency),
    )
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
  counts = sorted((rows[first].event, count) for first, count in groups)
  relations = sorted({row.adjacency for row in rows.values()})
  return State(
    budget=budget,
    counts=tuple(counts),
    adjacency=' and '.join(relations) if relations else None,
  )


def count_draws(
  connection: sa.Connection, run: str, release: str, round_number: int | None
) -> int:
  """Returns how often the same draw was charged before."""
  table = ledger_store.entries
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
    (event_of_text(text), count)
    for text, count in state.counts
    if text != without
  )


def guarantee_of_state(state: State, delta: float) -> guarantee.Guarantee:
  adjacency = state.adjacency
  if adjacency is None:
    relation = guarantee.Adjacency.ADD_OR_REMOVE_ONE
    if state.budget is not None:
      relation = state.budget.adjacency
    return accounting.guarantee_of_counts((), delta=delta, adjacency=relation)
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
  return accounting.guarantee_of_counts(
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
    (row['run'], json.loads(row['details']))
    for row in rows
    if row['kind'] == 'lease'
  ]


def entry_from_fields(fields: dict[str, Any]) -> Entry:
  known = {
    name: fields[name]
    for name in fields
    if name not in ('event', 'event_digest', 'adjacency', 'details')
  }
  return Entry(
    **known,
    event=event_of_text(fields['event']),
    adjacency=guarantee.Adjacency(fields['adjacency']),
    details=json.loads(fields['details']),
  )


def event_of_text(text: str) -> dp_event.DpEvent:
  return events.from_json(json.loads(text))
