"""Entries are chained, counted and mirrored, or not there at all."""

import datetime

import pytest

from tff_dpemb.privacy.ledger import appending
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.ledger import mirror
from tff_dpemb.privacy.ledger import store as ledger_store

_NOW = datetime.datetime(2024, 5, 6, tzinfo=datetime.UTC)


@pytest.fixture(name='store')
def _store(database):
  store = ledger_store.open_store(database.url, create=True, mirror=None)
  yield store
  store.close()


@pytest.fixture(name='appender')
def _appender(store):
  return appending.Appender(store, lambda: _NOW)


def test_an_entry_is_chained_to_the_one_before(appender, store):
  with appender.transaction() as writing:
    start = writing.head
    one = writing.append('release', population='glyphs', run='quick')
    two = writing.append('release', population='glyphs', run='quick')
    assert writing.head == (2, two.digest)
  assert start[0] == 0
  assert (one.sequence, one.previous_digest) == (1, start[1])
  assert (two.sequence, two.previous_digest) == (2, one.digest)
  assert one.recorded_at == '2024-05-06T00:00:00.000000+00:00'
  with appender.transaction() as writing:
    assert writing.head == (2, two.digest)
  assert ledger_lib.Ledger(store, lambda: _NOW).verify() == []


def test_what_fails_leaves_nothing(appender, store):
  with pytest.raises(KeyError):
    with appender.transaction() as writing:
      writing.append('release', population='glyphs')
      raise KeyError
  with appender.transaction() as writing:
    assert writing.head[0] == 0
    assert writing.append('release', population='glyphs').sequence == 1


def test_details_that_are_no_json_are_refused(appender):
  with pytest.raises(errors.LedgerError, match='details must be JSON values'):
    with appender.transaction() as writing:
      writing.append('release', details={'x': float('nan')})
  with appender.transaction() as writing:
    assert writing.head[0] == 0


def test_the_mirror_hears_of_an_entry_before_and_after(tmp_path):
  store = ledger_store.open_store(
    tmp_path / 'ledger.sqlite', create=True, mirror=None
  )
  appender = appending.Appender(store, lambda: _NOW)
  seen = mirror.Mirror(tmp_path / 'ledger.sqlite.head')
  with appender.transaction() as writing:
    entry = writing.append('release', population='glyphs')
    assert seen.known() == {(1, entry.digest)}
    assert seen.acknowledged() == []
  assert seen.acknowledged() == [(1, entry.digest)]
  with appender.transaction():  # Nothing is appended: nothing to tell.
    pass
  assert seen.acknowledged() == [(1, entry.digest)]
  store.close()
