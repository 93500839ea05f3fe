"""Which population each data set was charged to.

A budget belongs to users, not to a free string: the same data under a second
population's name would get a second budget.
"""

import threading
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import state
from tff_dpemb.privacy.ledger import store

DATA_DIGEST = 'data_digest'


class DataSets:
  """What the draws of one ledger say about data sets.

  Entries are only ever appended, so each call reads those that are new since
  the last one: a charge stays quick however long the ledger is.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._read = 0  # The last entry that was looked at.
    self._found: set[tuple[str, str]] = set()  # (data digest, population)

  def of_population(
    self, connection: sa.Connection, population: str
  ) -> list[str]:
    """Returns the digests of the data sets that a population paid for."""
    return sorted(
      digest for digest, name in self._update(connection) if name == population
    )

  def check(
    self, connection: sa.Connection, population: str, data_digest: str
  ) -> None:
    """Refuses a data set that another population paid for.

    Raises:
      LedgerError: So it is, or the digest is no text; it names the other.
    """
    if not isinstance(data_digest, str) or not data_digest:
      raise errors.LedgerError(
        f'data_digest must be a text that is not empty, got {data_digest!r}.'
      )
    others = sorted(
      name
      for digest, name in self._update(connection)
      if digest == data_digest and name != population
    )
    if others:
      raise errors.LedgerError(
        f'data set {data_digest[:12]} is charged to population {others[0]!r},'
        f' got {population!r}: a budget is bound to users, not to a name; use'
        f' population {others[0]!r}. Nothing was charged.'
      )

  def check_details(
    self,
    connection: sa.Connection,
    population: str,
    details: Mapping[str, Any] | None,
  ) -> None:
    """Does `check` for the data set that a draw's details name, if any."""
    if details is not None and DATA_DIGEST in details:
      self.check(connection, population, details[DATA_DIGEST])

  def _update(self, connection: sa.Connection) -> frozenset[tuple[str, str]]:
    table = store.entries
    with self._lock:
      last = connection.execute(
        sa.select(sa.func.max(table.c.sequence))
      ).scalar_one()
      rows = connection.execute(
        sa.select(
          table.c.population, table.c.details, sa.func.min(table.c.sequence)
        )
        .where(
          table.c.sequence > self._read,
          table.c.kind == 'draw',
          table.c.details.contains(f'"{DATA_DIGEST}"', autoescape=True),
        )
        .group_by(table.c.population, table.c.details)
      )
      for population, text, first in rows:
        digest = state.details_of_text(text, first).get(DATA_DIGEST)
        if isinstance(digest, str):
          self._found.add((digest, population))
      self._read = max(self._read, last or 0)
      return frozenset(self._found)
