"""A budget is for all releases, and for one population of users."""

import functools
import math

import pytest
from dp_accounting import dp_event

from tests.privacy.ledger import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib


@pytest.mark.parametrize(
  'event', [dp_event.NonPrivateDpEvent(), dp_event.UnsupportedDpEvent()]
)
def test_what_has_no_guarantee_never_fits_a_budget(book, event):
  book.set_budget('glyphs', guarantee.Budget(100.0, 1e-5))
  with pytest.raises(errors.BudgetExceededError, match='no guarantee'):
    cases.charge(book, event=event)
  assert book.entries(kind='draw') == []


def test_a_budget_is_never_exceeded_and_warned_of(book):
  event = dp_event.GaussianDpEvent(20.0)
  book.set_budget('glyphs', guarantee.Budget(0.8, 1e-5), approved_by='board')
  fitting = book.headroom('glyphs', event)
  warned_at = None
  count = 0
  with pytest.raises(errors.BudgetExceededError) as refused:
    while True:
      entry = cases.charge(book, count, event=event)
      count += 1
      if entry.warning and warned_at is None:
        warned_at = book.spent('glyphs').epsilon
        assert '80%' in entry.warning
  assert count == fitting
  spent = book.spent('glyphs')
  assert spent.epsilon <= 0.8
  assert 0.8 * 0.8 < warned_at < 0.8 * 0.8 + 0.05
  assert refused.value.left == pytest.approx(0.8 - spent.epsilon)
  assert f'left {refused.value.left:.4g}' in str(refused.value)
  # Nothing was written, and cheaper draws may still fit.
  assert len(book.entries(kind='draw')) == count
  assert book.headroom('glyphs', event) == 0
  cases.charge(book, count, event=dp_event.GaussianDpEvent(1e4))
  assert book.spent('glyphs').epsilon <= 0.8
  assert book.verify() == []


def test_the_budget_covers_all_releases(book):
  book.set_budget('glyphs', guarantee.Budget(1.0, 1e-5))
  release = dp_event.GaussianDpEvent(5.0)  # About 0.9 alone.
  cases.charge(book, None, release='one', event=release)
  with pytest.raises(errors.BudgetExceededError):
    cases.charge(book, None, release='two', run='other', event=release)
  cases.charge(book, None, population='another', event=release)


def test_refusals_give_the_whole_command(book):
  delta = 1 / 30001
  book.set_budget('my glyphs', guarantee.Budget(1.0, delta))
  with pytest.raises(errors.LedgerError) as error:
    book.set_budget('my glyphs', guarantee.Budget(2.5, delta))
  assert (
    f"`dpemb ledger budget 'my glyphs' --epsilon 2.5 --delta {delta!r}"
    ' --replace`'
  ) in str(error.value)
  with pytest.raises(errors.BudgetExceededError) as error:
    cases.charge(
      book, population='my glyphs', event=dp_event.GaussianDpEvent(0.5)
    )
  assert f'at delta {delta!r}: spent' in str(error.value)
  assert (
    f"`dpemb ledger budget 'my glyphs' --epsilon EPSILON --delta {delta!r}"
    ' --replace`'
  ) in str(error.value)


def test_budgets_change_only_when_asked(book):
  budget = guarantee.Budget(1.0, 1e-5)
  book.set_budget('glyphs', budget)
  book.set_budget('glyphs', budget)
  assert len(book.entries(kind='budget')) == 1
  with pytest.raises(errors.LedgerError, match='--replace'):
    book.set_budget('glyphs', guarantee.Budget(2.0, 1e-5))
  book.set_budget(
    'glyphs', guarantee.Budget(2.0, 1e-5), replace=True, approved_by='board'
  )
  assert book.budget('glyphs') == guarantee.Budget(2.0, 1e-5)
  assert book.entries(kind='budget')[-1].details['approved_by'] == 'board'
  assert book.budget('another') is None


@pytest.mark.parametrize(
  ('epsilon', 'delta'),
  [(0.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)],
)
def test_illegal_budgets_are_refused(epsilon, delta):
  with pytest.raises(guarantee.PrivacyError, match='budget .* must be'):
    guarantee.Budget(epsilon, delta)


def test_charges_do_no_accounting_once_it_is_known(book, monkeypatch):
  book.set_budget('glyphs', guarantee.Budget(50.0, 1e-5))
  cases.charge(book)  # The first of a kind pays for the accounting.

  def refuse(*unused, **also_unused):
    raise AssertionError('a charge must not do accounting again')

  with monkeypatch.context() as patch:
    patch.setattr(accountant, 'guarantee_of_counts', refuse)
    for number in range(1, 50):
      cases.charge(book, number)
  assert book.spent('glyphs').epsilon > 0
  assert book.verify() == []


def _charge_data(book, population, digest, **changes):
  details = {'data_digest': digest, 'part': 'plan'}
  return cases.charge(book, population=population, details=details, **changes)


def test_a_data_set_has_one_population(book):
  _charge_data(book, 'glyphs', 'a' * 64)
  _charge_data(book, 'glyphs', 'a' * 64)  # The same users pay again.
  _charge_data(book, 'glyphs', 'b' * 64)  # They have more data now.
  _charge_data(book, 'faces', 'c' * 64)
  book.check_data_set('glyphs', 'a' * 64)
  book.check_data_set('anybody', 'd' * 64)
  assert book.data_sets('glyphs') == ['a' * 64, 'b' * 64]
  assert book.data_sets('faces') == ['c' * 64]
  assert book.data_sets('anybody') == []
  for refused in (book.check_data_set, functools.partial(_charge_data, book)):
    with pytest.raises(errors.LedgerError) as error:
      refused('fresh name', 'b' * 64)
    assert str(error.value) == (
      "data set bbbbbbbbbbbb is charged to population 'glyphs', got 'fresh"
      " name': a budget is bound to users, not to a name; use population"
      " 'glyphs'. Nothing was charged."
    )
  assert book.populations() == ['faces', 'glyphs']
  assert book.verify() == []


def test_a_data_set_of_another_process_is_seen(database, book):
  book.check_data_set('glyphs', 'a' * 64)
  with ledger_lib.Ledger.open(database.url) as other:
    _charge_data(other, 'faces', 'a' * 64)
  with pytest.raises(errors.LedgerError, match="'faces'"):
    _charge_data(book, 'glyphs', 'a' * 64)
  assert len(book.entries()) == 1


def test_only_draws_bind_a_data_set(book):
  book.record_release(
    population='faces',
    release='r',
    run='r',
    digest='0' * 64,
    details={'data_digest': 'a' * 64},
  )
  cases.charge(book, population='faces', details={'note': 'a' * 64})
  book.check_data_set('glyphs', 'a' * 64)


@pytest.mark.parametrize('digest', ['', None, 7])
def test_a_data_digest_is_a_text(book, digest):
  with pytest.raises(errors.LedgerError, match='data_digest must be a text'):
    _charge_data(book, 'glyphs', digest)
  assert book.entries() == []
