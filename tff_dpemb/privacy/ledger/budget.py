"""Whether one more draw fits a population's budget.

Accounting takes up to seconds, a charge must take milliseconds: so the first
draw of a kind finds how many of it fit, given all other draws, and the next
ones only compare counts.
"""

import json
import shlex
from typing import Any, Literal

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import state as ledger_state

WARNING_SHARE = 0.8
_LOOK_AHEAD = 1000

Verdict = Literal['fits', 'warn', 'exceeds', 'unknown']


class BudgetExceededError(errors.LedgerError):
  """A draw that would exceed the population's budget: it must not run.

  Attributes:
    left: Epsilon that is left at the budget's delta.
    exit_code: What a command ends with.
  """

  exit_code = 4

  def __init__(self, message: str, *, left: float):
    super().__init__(message)
    self.left = left


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
) -> BudgetExceededError:
  """Returns the error for a draw that does not fit; it says what is left."""
  before = ledger_state.guarantee_of_state(state, budget.delta).epsilon
  after = accountant.guarantee_of_counts(
    events.merge((*ledger_state.counts_of_state(state), (event, 1))),
    delta=budget.delta,
    adjacency=budget.adjacency,
    cross_check=False,
  ).epsilon
  left = max(0.0, budget.epsilon - before)
  return BudgetExceededError(
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
