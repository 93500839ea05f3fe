"""What a ledger says: entries, draws, budgets, and what was spent.

Nothing here writes: whoever may read the database can ask it all.
"""

from typing import Any

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import budget as ledger_budget
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.ledger import store as ledger_store
from tff_dpemb.privacy.ledger import verification


class Reader:
  """Questions to one ledger; each is answered from one consistent view."""

  def __init__(self, store: ledger_store.Store):
    self._store = store
    self._data_sets = ledger_budget.DataSets()

  def entries(
    self,
    *,
    population: str | None = None,
    run: str | None = None,
    release: str | None = None,
    kind: str | None = None,
  ) -> list[ledger_state.Entry]:
    """Returns the entries that match, oldest first."""
    query = _matching(
      sa.select(ledger_store.entries).order_by(ledger_store.entries.c.sequence),
      population=population,
      run=run,
      release=release,
      kind=kind,
    )
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
    query = _matching(
      sa.select(
        table.c.event, sa.func.min(table.c.sequence), sa.func.count()
      ).group_by(table.c.event),
      kind='draw',
      population=population,
      run=run,
      release=release,
      until=until,
    )
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
        raise errors.LedgerError(
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

  def _distinct(
    self, column: str, population: str, until: int | None
  ) -> list[str]:
    table = ledger_store.entries
    query = _matching(
      sa.select(table.c[column], sa.func.min(table.c.sequence)).group_by(
        table.c[column]
      ),
      kind='draw',
      population=population,
      until=until,
    )
    with self._store.read() as connection:
      rows = connection.execute(query).all()
    return [name for name, _ in ledger_state.texts_of_rows(rows, column)]


def _matching(
  query: sa.Select[Any], *, until: int | None = None, **wanted: str | None
) -> sa.Select[Any]:
  """Returns a query for rows of these values, None being any, up to an entry."""
  table = ledger_store.entries
  for name, value in wanted.items():
    if value is not None:
      query = query.where(table.c[name] == value)
  return query if until is None else query.where(table.c.sequence <= until)
