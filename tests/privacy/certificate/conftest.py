"""A ledger with a model and a synthetic set, and a certificate."""

import pytest

from tests.privacy.certificate import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import ledger as ledger_lib


@pytest.fixture(name='book')
def _book(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'ledger.sqlite') as book:
    book.set_budget('glyphs', guarantee.Budget(8.0, cases.PLAN.delta))
    for number in (0, 1, 2, 3, 4, 4, 5):  # Round 4 was drawn again.
      cases.charge(book, number)
    cases.charge(
      book, None, release='quick/synthetic', event=cases.RELEASE_EVENT
    )
    yield book


@pytest.fixture(name='model', scope='module')
def _model(tmp_path_factory):
  path = tmp_path_factory.mktemp('model') / 'ledger.sqlite'
  with ledger_lib.Ledger.open(path) as book:
    for number in (0, 1, 2, 3, 4, 4, 5):
      cases.charge(book, number)
    return cases.for_training(book)
