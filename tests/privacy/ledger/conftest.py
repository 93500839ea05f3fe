"""A new ledger, on each database."""

import pytest

from tff_dpemb.privacy.ledger import ledger as ledger_lib


@pytest.fixture(name='path')
def _path(tmp_path):
  return tmp_path / 'runs' / 'ledger.sqlite'


@pytest.fixture(name='book')
def _book(database):
  with ledger_lib.Ledger.open(database.url) as book:
    yield book
