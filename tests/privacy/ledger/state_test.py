"""What a decision on a population depends on, and rows as entries."""

import math

import pytest
import sqlalchemy as sa
from dp_accounting import dp_event

from tests.privacy.ledger import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.ledger import store

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE
_OTHER = dp_event.GaussianDpEvent(7.0)


@pytest.fixture(name='read')
def _read(book, database):
  """Reads the state of a population, past the ledger."""

  def read(population='glyphs', **until):
    with database.tamper() as connection:
      return ledger_state.read_state(connection, population, **until)

  return read


def test_nothing_is_a_state_too(read):
  found = read()
  assert (found.budget, found.counts, found.adjacency) == (None, (), None)
  assert ledger_state.guarantee_of_state(found, 1e-5).epsilon == 0


def test_equal_draws_are_counted_and_their_first_entry_is_known(book, read):
  budget = guarantee.Budget(8.0, 1e-5)
  book.set_budget('glyphs', budget)
  for number in range(3):
    cases.charge(book, number)
  cases.charge(book, None, event=_OTHER)
  cases.charge(book, None, population='faces', event=_OTHER)
  found = read()
  assert found.budget == budget
  assert found.adjacency == _ADD_REMOVE.value
  assert dict(found.counts) == {
    events.canonical_text(cases.EVENT): 3,
    events.canonical_text(_OTHER): 1,
  }
  firsts = dict(zip(found.counts, found.firsts, strict=True))
  assert sorted(firsts.values()) == [2, 5]
  text = events.canonical_text(_OTHER)
  assert ledger_state.counts_of_state(found, without=text) == (
    (cases.EVENT, 3),
  )
  assert dict(read(until=3).counts) == {events.canonical_text(cases.EVENT): 2}
  assert read(until=0).budget is None


def test_draws_under_two_relations_leave_no_guarantee():
  """None is charged so, but a ledger that was edited may hold them."""
  found = ledger_state.guarantee_of_state(
    ledger_state.State(
      budget=None,
      counts=((events.canonical_text(_OTHER), 1),),
      firsts=(1,),
      adjacency='add-or-remove-one-user and replace-one-user',
    ),
    1e-5,
  )
  assert found.epsilon == math.inf
  assert 'cannot be composed' in found.warnings[0]


def test_a_row_is_an_entry(book, database):
  entry = cases.charge(book, 3, details={'cohort': 'poisson'})
  with database.tamper() as connection:
    row = connection.execute(sa.select(store.entries)).mappings().one()
  known = {}
  assert ledger_state.entry_from_fields(dict(row), known) == entry
  assert known == {events.canonical_text(cases.EVENT): cases.EVENT}
  content = entry.to_json()
  assert events.from_json(content['event']) == cases.EVENT
  assert content['details'] == {'cohort': 'poisson'}
  assert 'warning' not in content
  with pytest.raises(errors.LedgerDamagedError, match='entry 1 .* of text'):
    ledger_state.entry_from_fields(dict(row) | {'run': 3})


@pytest.mark.parametrize('text', [3, '[]', '{', '{"class_name": "os"}', '{}'])
def test_texts_that_are_no_events_name_their_entry(text):
  with pytest.raises(errors.LedgerDamagedError, match='entry 7 '):
    ledger_state.event_of_text(text, 7)
