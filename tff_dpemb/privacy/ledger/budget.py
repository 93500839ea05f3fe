"""Whether a population may pay for one more draw.

It must fit the population's budget. Accounting takes up to seconds, a charge
must take milliseconds: so the first draw of a kind finds how many of it fit,
given all other draws, and the next ones only compare counts.

And it must be on the population's own data. A budget belongs to users, not to a
free string: the same data under another name would get a second budget.
"""

import json
import shlex
import threading
from typing import Any, Literal

import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.ledger import store

WARNING_SHARE = 0.8
DATA_DIGEST = 'data_digest'  # In the details of draws.
_LOOK_AHEAD = 1000

Verdict = Literal['fits', 'warn', 'exceeds', 'unknown']


# By all that it depends on: (most that fit, most below the warning, how far was
# looked), each counted from the first draw of the event, given all others. It
# follows from the key alone, so all ledgers of a process share it.
_KNOWN: dict[Any, tuple[int, int, int]] = {}
_MOST_KNOWN = 4096


def verdict(state: ledger_state.State, text: str, *, compute: bool) -> Verdict:
  """Returns what one more draw of an event would do to the budget.

  Args:
    state: The population.
    text: Canonical text of the event.
    compute: Whether to do the accounting if the answer is not remembered;
      otherwise the answer is then 'unknown'.
  """
  budget = state.budget
  if budget is None:
    return 'fits'
  key, drawn = _key(state, text)
  known = _KNOWN.get(key)
  if known is None or drawn + 1 > known[2]:
    if not compute:
      return 'unknown'
    learn(state, text, budget)
    known = _KNOWN[key]
  most, below_warning, _ = known
  if drawn + 1 > most:
    return 'exceeds'
  return 'warn' if drawn + 1 > below_warning else 'fits'


def learn(
  state: ledger_state.State, text: str, budget: guarantee.Budget
) -> None:
  """Finds and remembers the limits of an event; may take seconds."""
  key, drawn = _key(state, text)
  others = ledger_state.counts_of_state(state, without=text)
  event = events.from_json(json.loads(text))
  looked = max(_LOOK_AHEAD, 2 * (drawn + 1))
  most, below_warning = (
    accountant.max_count(
      others,
      event,
      epsilon=share * budget.epsilon,
      delta=budget.delta,
      adjacency=budget.adjacency,
      limit=looked,
    )
    for share in (1.0, WARNING_SHARE)
  )
  if len(_KNOWN) >= _MOST_KNOWN:
    _KNOWN.clear()
  _KNOWN[key] = (most, below_warning, looked)


def warning(population: str, budget: guarantee.Budget) -> str:
  """Returns the sentence for people when 80 % is spent."""
  return (
    f'population {population!r} has spent more than {WARNING_SHARE:.0%} of its'
    f' budget (epsilon {budget.epsilon:g} at delta {budget.delta:.3g}).'
  )


def refusal(
  population: str,
  state: ledger_state.State,
  event: dp_event.DpEvent,
  budget: guarantee.Budget,
) -> errors.BudgetExceededError:
  """Returns the error for a draw that does not fit; it says what is left."""
  before = ledger_state.guarantee_of_state(state, budget.delta).epsilon
  after = accountant.guarantee_of_counts(
    events.merge((*ledger_state.counts_of_state(state), (event, 1))),
    delta=budget.delta,
    adjacency=budget.adjacency,
    cross_check=False,
  ).epsilon
  left = max(0.0, budget.epsilon - before)
  return errors.BudgetExceededError(
    f'budget of population {population!r} is epsilon {budget.epsilon:g} at'
    f' delta {budget.delta!r}: spent {guarantee.epsilon_text(before)}, left'
    f' {left:.4g}, and this draw would make it'
    f' {guarantee.epsilon_text(after)}. It was refused before any noise was'
    ' drawn; raise the budget with'
    f' `{command(population, "EPSILON", budget.delta)}`, use more noise or'
    ' fewer rounds.',
    left=left,
  )


def command(population: str, epsilon: str, delta: float) -> str:
  """Returns the command that changes a budget; delta is exact, to copy."""
  return (
    f'dpemb ledger budget {shlex.quote(population)} --epsilon {epsilon}'
    f' --delta {float(delta)!r} --replace'
  )


def _key(state: ledger_state.State, text: str) -> tuple[Any, int]:
  counts = dict(state.counts)
  drawn = counts.pop(text, 0)
  return (state.budget, tuple(sorted(counts.items())), text), drawn


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
        digest = ledger_state.details_of_text(text, first).get(DATA_DIGEST)
        if isinstance(digest, str):
          self._found.add((digest, population))
      self._read = max(self._read, last or 0)
      return frozenset(self._found)
