"""A ledger on a server: what is lost with it, and what is said then."""

from unittest import mock

import pytest
import sqlalchemy as sa
from dp_accounting import dp_event

from tff_dpemb.privacy.ledger import databases
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_EVENT = dp_event.GaussianDpEvent(10.0)


@pytest.fixture(name='database')
def _database(postgres_database):
  return postgres_database


@pytest.fixture(name='url')
def _url(database):
  return database.url


def _charge(book, number):
  return book.charge(
    population='p', release='m', run='r', event=_EVENT, round_number=number
  )


def _on_insert(database, body, *, deferred=False):
  """Makes the server do something for each entry, or at its COMMIT."""
  timing = 'AFTER INSERT ON entries'
  kind = 'CREATE TRIGGER'
  if deferred:
    kind = 'CREATE CONSTRAINT TRIGGER'
    timing += ' DEFERRABLE INITIALLY DEFERRED'
  with database.tamper() as connection:
    connection.exec_driver_sql(
      'CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS'
      f' $$ BEGIN {body} RETURN NULL; END $$'
    )
    connection.exec_driver_sql(
      f'{kind} fault {timing} FOR EACH ROW EXECUTE FUNCTION fault()'
    )


def _no_fault(database):
  with database.tamper() as connection:
    connection.exec_driver_sql('DROP TRIGGER fault ON entries')


_DIE = 'PERFORM pg_terminate_backend(pg_backend_pid());'


def test_a_connection_lost_before_the_commit_charged_nothing(url, database):
  with ledger_lib.Ledger.open(url) as book:
    _charge(book, 0)
    _on_insert(database, _DIE)
    with pytest.raises(
      errors.LedgerUnavailableError, match='Nothing was charged'
    ) as error:
      _charge(book, 1)
    assert not isinstance(error.value, errors.LedgerOutcomeUnknownError)
    assert error.value.exit_code == 75
    assert '\n' not in str(error.value)
    _no_fault(database)
    assert _charge(book, 1).attempt == 1
    assert book.verify() == []


def test_a_connection_lost_during_the_commit_may_have_charged(url, database):
  with ledger_lib.Ledger.open(url) as book:
    _on_insert(database, _DIE, deferred=True)
    with pytest.raises(
      errors.LedgerOutcomeUnknownError, match='it may have been charged'
    ):
      _charge(book, 0)
    _no_fault(database)
    _charge(book, 0)  # The remedy: run again.
    assert book.verify() == []


def test_a_commit_that_the_server_refused_charged_nothing(url, database):
  with ledger_lib.Ledger.open(url) as book:
    _on_insert(database, "RAISE EXCEPTION 'no more';", deferred=True)
    with pytest.raises(errors.LedgerError, match='no more.*Nothing was'):
      _charge(book, 0)
    assert book.entries() == []


def test_what_was_acknowledged_outlives_a_crash_of_the_server(url, postgres):
  with ledger_lib.Ledger.open(url) as book:
    for number in range(3):
      _charge(book, number)
    postgres.stop(mode='immediate')
    try:
      with pytest.raises(
        errors.LedgerUnavailableError, match='must be reached.*Nothing was'
      ):
        _charge(book, 3)
      with pytest.raises(errors.LedgerUnavailableError):
        ledger_lib.Ledger.open(url)
    finally:
      postgres.start()
    # The pool's dead connections are replaced.
    assert [entry.round_number for entry in book.entries()] == [0, 1, 2]
    assert _charge(book, 3).sequence == 4
    assert book.verify() == []


def test_a_commit_is_durable_whatever_the_role_s_default(url, database):
  with ledger_lib.Ledger.open(url):
    pass
  with database.tamper() as connection:
    connection.exec_driver_sql('CREATE TABLE noted (value text)')
  _on_insert(
    database,
    "INSERT INTO noted VALUES (current_setting('synchronous_commit'));",
  )
  lax = url.replace('options=', 'options=-csynchronous_commit%3Doff+')
  with ledger_lib.Ledger.open(lax) as book:
    _charge(book, 0)
  with database.tamper() as connection:
    found = connection.exec_driver_sql('SELECT value FROM noted').scalars()
    assert found.all() == ['on']


def test_a_server_without_fsync_is_refused(url):
  connection = mock.Mock()
  connection.execute.return_value.one.return_value = ('off',)
  database = databases.Postgres(sa.make_url(url))
  with pytest.raises(errors.LedgerError, match='fsync on, got off'):
    database.check(connection)


def test_a_role_that_may_only_append_is_enough(url, database):
  with ledger_lib.Ledger.open(url):
    pass
  role = database.raw_url.rpartition('%3D')[2].partition('&')[0] + '_writer'
  with database.tamper() as connection:
    schema = sa.inspect(connection).default_schema_name
    for statement in (
      f'CREATE ROLE {role} LOGIN',
      f'GRANT USAGE ON SCHEMA {schema} TO {role}',
      f'GRANT SELECT, INSERT ON entries, head, leases TO {role}',
      f'GRANT UPDATE ON head, leases TO {role}',
    ):
      connection.exec_driver_sql(statement)
  with ledger_lib.Ledger.open(url.replace('dpemb@', f'{role}@')) as book:
    lease = book.acquire_lease('r')
    _charge(book, 0)
    book.release_lease(lease)
    assert book.verify() == []


def test_a_read_only_server_is_one_line(url):
  with ledger_lib.Ledger.open(url) as book:
    _charge(book, 0)
  standby = url.replace(
    'options=', 'options=-cdefault_transaction_read_only%3Don+'
  )
  with ledger_lib.Ledger.open(standby) as book:
    with pytest.raises(errors.LedgerError, match='refused: .*read-only'):
      _charge(book, 1)
    assert len(book.entries()) == 1


def test_a_writer_that_does_not_let_go_is_named(url, database, monkeypatch):
  statement = databases._PREPARE_WRITE
  monkeypatch.setattr(
    databases, '_PREPARE_WRITE', statement.replace("'60s'", "'50ms'")
  )
  with ledger_lib.Ledger.open(url) as book:
    with database.tamper() as connection:
      connection.execute(sa.text('SELECT * FROM head FOR UPDATE'))
      with pytest.raises(
        errors.LedgerUnavailableError, match='is busy.*Nothing was charged'
      ):
        _charge(book, 0)
    _charge(book, 0)


def test_a_missing_ledger_is_not_made_by_readers(url, database):
  with pytest.raises(errors.LedgerError, match='must exist'):
    ledger_lib.Ledger.open(url, create=False)
  with database.tamper() as connection:
    assert sa.inspect(connection).get_table_names() == []


def test_a_ledger_that_lacks_a_table_is_damaged(url, database):
  with ledger_lib.Ledger.open(url):
    pass
  with database.tamper() as connection:
    connection.exec_driver_sql('DROP TABLE leases')
  with pytest.raises(errors.LedgerDamagedError, match='lacks a table'):
    ledger_lib.Ledger.open(url)


def test_passwords_are_in_no_error():
  url = 'postgresql://user:secret@127.0.0.1:1/x?sslpassword=secret'
  with pytest.raises(errors.LedgerUnavailableError) as error:
    ledger_lib.Ledger.open(url)
  assert 'secret' not in str(error.value)
  assert '127.0.0.1' in str(error.value)


def test_text_that_the_database_cannot_hold_is_refused(url):
  with ledger_lib.Ledger.open(url) as book:
    with pytest.raises(errors.LedgerError, match='refused.*Nothing was'):
      book.charge(population='p\0', release='m', run='r', event=_EVENT)
    assert book.entries() == []


@pytest.mark.parametrize('name', ['a?b#c', '50% mine', 'x%3Fy', 'q?mirror=m'])
def test_a_path_is_a_path_whatever_a_url_would_make_of_it(tmp_path, name):
  path = tmp_path / name / 'ledger.sqlite'
  with ledger_lib.Ledger.open(str(path)) as book:
    _charge(book, 0)
  assert [item.name for item in tmp_path.iterdir()] == [name]
  assert {item.name for item in path.parent.iterdir()} >= {
    'ledger.sqlite',
    'ledger.sqlite.head',
  }
  with ledger_lib.Ledger.open(path, create=False) as book:
    assert len(book.entries()) == 1
