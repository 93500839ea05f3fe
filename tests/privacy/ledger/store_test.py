"""Where a ledger may lie, and what is refused."""

import pytest

from tests.privacy.ledger import cases
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib


def test_a_file_that_is_no_ledger_is_to_be_restored(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  path.write_bytes(b'garbage ' * 1000)
  with pytest.raises(errors.LedgerDamagedError) as error:
    ledger_lib.Ledger.open(path, create=False)
  assert 'must be a ledger' in str(error.value)
  assert 'restore it from a backup' in str(error.value)
  assert 'free space' not in str(error.value)


def test_a_directory_is_no_ledger(tmp_path):
  with pytest.raises(
    errors.LedgerError, match='must be a file, got a directory; give'
  ):
    ledger_lib.Ledger.open(tmp_path, create=False)


def test_memory_is_refused():
  for url in ('sqlite://', 'sqlite:///:memory:'):
    with pytest.raises(errors.LedgerError, match='must be on disk'):
      ledger_lib.Ledger.open(url)


def test_a_missing_ledger_is_not_made_by_readers(path):
  with pytest.raises(errors.LedgerError, match='must exist'):
    ledger_lib.Ledger.open(path, create=False)
  assert not path.exists()


def test_a_file_that_is_no_database_is_one_line(path):
  path.parent.mkdir(parents=True)
  path.write_bytes(b'no database at all, but long enough to be looked at' * 99)
  with pytest.raises(errors.LedgerError, match='not a database') as error:
    ledger_lib.Ledger.open(path)
  assert '\n' not in str(error.value)


def test_other_databases_and_drivers_are_refused_in_one_line():
  with pytest.raises(errors.LedgerError, match='driver .* must be psycopg'):
    ledger_lib.Ledger.open('postgresql+nosuchdriver://localhost/x')
  with pytest.raises(errors.LedgerError, match="SQLite or PostgreSQL, got 'my"):
    ledger_lib.Ledger.open('mysql://localhost/x')
  with pytest.raises(errors.LedgerError, match='SQLAlchemy URL') as error:
    ledger_lib.Ledger.open('postgresql://h:port/x?password=secret')
  assert 'secret' not in str(error.value)


def test_a_sqlite_url_and_a_path_are_the_same_ledger(path):
  with ledger_lib.Ledger.open(path) as book:
    cases.charge(book)
  with ledger_lib.Ledger.open(f'sqlite:///{path}') as other:
    assert len(other.entries()) == 1


@pytest.mark.parametrize('version', [0, 1, 3])
def test_a_ledger_of_another_schema_is_refused(database, book, version):
  cases.charge(book)
  with database.tamper() as connection:
    connection.exec_driver_sql(f'UPDATE head SET schema_version = {version}')
  with pytest.raises(errors.LedgerError) as error:
    ledger_lib.Ledger.open(database.url)
  assert str(error.value) == (
    f'ledger must have schema version 2, got {version}; open it with the'
    ' release of dpemb that wrote it. Nothing was charged.'
  )
