"""The ledger: what is charged, and what is refused."""

import datetime
import math

import pytest
from dp_accounting import dp_event

from tests.privacy.ledger import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE


def test_an_entry_holds_all_that_it_was_charged_with(book):
  entry = cases.charge(
    book,
    3,
    plan_digest='a' * 64,
    config_digest='b' * 64,
    code_revision='c0ffee',
    details={'cohort': 'poisson'},
  )
  (found,) = book.entries()
  assert found == entry
  assert found.sequence == 1
  assert found.kind == 'draw'
  assert (found.population, found.release, found.run) == (
    'glyphs',
    'quick/model',
    'quick',
  )
  assert (found.round_number, found.attempt) == (3, 1)
  assert found.event == cases.EVENT
  assert found.adjacency is _ADD_REMOVE
  assert found.plan_digest == 'a' * 64
  assert found.config_digest == 'b' * 64
  assert found.code_revision == 'c0ffee'
  assert found.details == {'cohort': 'poisson'}
  recorded = datetime.datetime.fromisoformat(found.recorded_at)
  assert recorded.tzinfo is datetime.UTC
  assert len(found.digest) == 64
  assert found.to_json()['event']['class_name'] == 'PoissonSampledDpEvent'


def test_a_round_that_is_drawn_again_is_paid_again(book):
  attempts = [cases.charge(book, number).attempt for number in (50, 51, 51, 51)]
  assert attempts == [1, 1, 2, 3]
  assert book.draw_counts(run='quick') == ((cases.EVENT, 4),)
  assert book.spent('glyphs', 1e-5).epsilon == pytest.approx(
    accountant.guarantee_of_event(
      dp_event.SelfComposedDpEvent(cases.EVENT, 4),
      delta=1e-5,
      adjacency=_ADD_REMOVE,
    ).epsilon
  )


def test_attempts_of_other_runs_and_releases_are_their_own(book):
  cases.charge(book, 1)
  assert cases.charge(book, 1, run='other').attempt == 1
  assert cases.charge(book, 1, release='quick/synthetic').attempt == 1
  assert cases.charge(book, None).attempt == 1
  assert cases.charge(book, None).attempt == 2


def test_entries_outlive_the_process(database):
  with ledger_lib.Ledger.open(database.url) as book:
    cases.charge(book)
  with ledger_lib.Ledger.open(database.url) as book:
    assert [entry.sequence for entry in book.entries()] == [1]
    assert cases.charge(book, 1).sequence == 2
    assert book.verify() == []


def test_another_adjacency_is_refused(book):
  cases.charge(book)
  with pytest.raises(errors.LedgerError, match='adjacency must be add-or'):
    cases.charge(
      book,
      event=dp_event.GaussianDpEvent(1.0),
      adjacency=guarantee.Adjacency.REPLACE_ONE,
    )
  assert len(book.entries()) == 1


@pytest.mark.parametrize(
  'changes',
  [
    {'population': ''},
    {'run': 'x' * 129},
    {'release': ''},
    {'event': dp_event.GaussianDpEvent(-1.0)},
    {'details': {'loss': math.nan}},
  ],
)
def test_illegal_charges_write_nothing(book, changes):
  with pytest.raises(guarantee.PrivacyError, match='must be'):
    cases.charge(book, **changes)
  assert book.entries() == []


def test_a_release_is_recorded_and_costs_nothing(book):
  cases.charge(book)
  before = book.spent('glyphs', 1e-5).epsilon
  entry = book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='d' * 64
  )
  assert entry.kind == 'release'
  assert entry.details == {'artifact_digest': 'd' * 64}
  assert book.spent('glyphs', 1e-5).epsilon == before
  assert book.verify() == []
