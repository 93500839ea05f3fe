"""What a ledger answers: draws, runs, and what was spent."""

import math

import pytest
from dp_accounting import dp_event

from tests.privacy.ledger import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.ledger import errors

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE


def test_training_and_synthesis_of_a_population_add_up(book):
  release = dp_event.ComposedDpEvent(
    [dp_event.GaussianDpEvent(4.0), dp_event.GaussianDpEvent(3.0)]
  )
  for number in range(5):
    cases.charge(book, number)
  cases.charge(book, None, release='quick/synthetic', event=release)
  cases.charge(
    book, None, population='other', event=dp_event.GaussianDpEvent(0.1)
  )
  expected = accountant.guarantee_of_event(
    dp_event.ComposedDpEvent(
      [dp_event.SelfComposedDpEvent(cases.EVENT, 5), release]
    ),
    delta=1e-5,
    adjacency=_ADD_REMOVE,
  )
  assert book.spent('glyphs', 1e-5).epsilon == pytest.approx(expected.epsilon)
  assert book.releases('glyphs') == ['quick/model', 'quick/synthetic']
  assert book.populations() == ['glyphs', 'other']
  composed = accountant.guarantee_of_event(
    book.composed_event('glyphs'), delta=1e-5, adjacency=_ADD_REMOVE
  )
  assert composed.epsilon == pytest.approx(expected.epsilon)


def test_nothing_drawn_costs_nothing(book):
  assert book.spent('glyphs', 1e-5).epsilon == 0
  with pytest.raises(errors.LedgerError, match='has no budget'):
    book.spent('glyphs')


def test_a_draw_without_noise_leaves_no_guarantee(book):
  cases.charge(book, 0)
  cases.charge(book, 1, event=dp_event.NonPrivateDpEvent())
  found = book.spent('glyphs', 1e-5)
  assert found.epsilon == math.inf
  assert 'no noise' in found.warnings[0]


def test_an_unsupported_draw_leaves_no_guarantee(book):
  cases.charge(book, 1, event=dp_event.UnsupportedDpEvent())
  found = book.spent('glyphs', 1e-5)
  assert found.epsilon == math.inf
  assert 'No accountant supports' in found.warnings[0]


def test_the_rounds_attempts_and_the_runs_can_be_asked(book):
  for number in (0, 1, 1):
    cases.charge(book, number)
  cases.charge(book, 1, run='other', release='other/model')
  asked = dict(run='quick', release='quick/model')
  assert [book.count_draws(**asked, round_number=n) for n in (0, 1, 2)] == [
    1,
    2,
    0,
  ]
  assert book.runs('glyphs') == ['other', 'quick']
  assert book.runs('glyphs', until=3) == ['quick']


def test_spending_can_be_read_as_of_an_entry(book):
  for number in range(3):
    cases.charge(book, number)
  cases.charge(book, release='quick/other')
  assert book.draw_counts(until=2) == ((cases.EVENT, 2),)
  assert book.releases('glyphs', until=3) == ['quick/model']
  assert book.spent('glyphs', 1e-5, until=2).epsilon == pytest.approx(
    accountant.guarantee_of_event(
      dp_event.SelfComposedDpEvent(cases.EVENT, 2),
      delta=1e-5,
      adjacency=_ADD_REMOVE,
    ).epsilon
  )
