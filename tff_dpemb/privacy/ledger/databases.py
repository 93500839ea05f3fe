"""The two databases that a ledger may lie in, behind one small interface.

What is asked of a database: one writer at a time, a consistent view for
readers, an entry that is on disk when COMMIT returns, and an error that tells
whether anything was charged.

* SQLite: write-ahead log, synchronous FULL, BEGIN IMMEDIATE.
* PostgreSQL 11 or later, by psycopg 3: the head row is locked for each write,
  synchronous_commit is on (or remote_apply) for it whatever the role's default,
  and a server with fsync off is refused.
"""

import contextlib
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from tff_dpemb.privacy.ledger import errors

_BUSY_SECONDS = 60
_DRIVER = 'postgresql+psycopg'
# For a server that vanishes without closing its connections.
_CONNECT_ARGUMENTS: dict[str, Any] = {
  'application_name': 'dpemb-ledger',
  'client_encoding': 'utf8',
  'connect_timeout': 10,
  'keepalives_count': 3,
  'keepalives_idle': 30,
  'keepalives_interval': 10,
  'prepare_threshold': None,  # A pooler between may change the session.
  'tcp_user_timeout': 30_000,
}
# In the transaction, not the session, which a pooler may share. A holder of
# the lock whose machine is gone gives way after a while.
_PREPARE_WRITE = """
SELECT set_config('lock_timeout', '60s', true),
  set_config('idle_in_transaction_session_timeout', '600s', true),
  set_config(
    'synchronous_commit',
    CASE current_setting('synchronous_commit')
      WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END,
    true
  )
"""
_SET_UP_LOCK = 0x6470656D62  # 'dpemb'


class Sqlite:
  """A ledger in a file."""

  read_options: Mapping[str, Any] = {}
  write_options: Mapping[str, Any] = {'dpemb_write': True}

  def __init__(self, url: sa.URL, path: pathlib.Path):
    self.path = path
    self.is_new = not path.exists()
    self.name = str(path)
    self.engine = sa.create_engine(url, connect_args={'timeout': _BUSY_SECONDS})
    sa.event.listen(self.engine, 'connect', _on_sqlite_connect)
    sa.event.listen(self.engine, 'begin', _on_sqlite_begin)

  def check(self, connection: sa.Connection) -> None:
    """Nothing can be wrong: durability is set by each connection."""

  def prepare_set_up(self, connection: sa.Connection) -> None:
    """Nothing is left to do: BEGIN IMMEDIATE holds the only write lock."""

  def prepare_write(self, connection: sa.Connection) -> None:
    """Nothing is left to do: BEGIN IMMEDIATE holds the only write lock."""

  def error(
    self, error: sa.exc.DBAPIError, *, committing: bool
  ) -> errors.LedgerError:
    """Returns what a database error means for the ledger."""
    code = getattr(error.orig, 'sqlite_errorcode', None)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
      return errors.LedgerDamagedError(
        f'{self.name!r} must be a ledger, got a file that is none or is'
        f' damaged ({error.orig}); restore it from a backup. Nothing was'
        ' charged.'
      )
    # The low byte is the kind of error. A failed fsync of the log may leave
    # the entry in it.
    if committing and code is not None and code & 0xFF == sqlite3.SQLITE_IOERR:
      return _unknown(self.name, error)
    return errors.LedgerError(
      f'ledger {self.name!r} refused: {error.orig}. Nothing was charged; free'
      ' space or wait for the other writer, then run again.'
    )


class Postgres:
  """A ledger on a server."""

  read_options: Mapping[str, Any] = {
    'isolation_level': 'REPEATABLE READ',
    'postgresql_readonly': True,
  }
  # Statements after the lock is granted must see what its last holder wrote.
  write_options: Mapping[str, Any] = {'isolation_level': 'READ COMMITTED'}

  def __init__(self, url: sa.URL):
    if url.drivername in ('postgres', 'postgresql'):
      url = url.set(drivername=_DRIVER)
    host = url.host or url.query.get('host', 'localhost')
    self.name = f'postgresql://{host}/{url.database or ""}'
    if url.drivername != _DRIVER:
      raise errors.LedgerError(
        f"the driver of a ledger's URL must be psycopg, got {url.drivername!r};"
        ' write postgresql://HOST/DATABASE.'
      )
    arguments = {
      key: value
      for key, value in _CONNECT_ARGUMENTS.items()
      if key not in url.query
    }
    try:
      self.engine = sa.create_engine(
        url, connect_args=arguments, pool_pre_ping=True, max_overflow=50
      )
    except (sa.exc.ArgumentError, ImportError) as error:
      raise errors.LedgerError(
        f'ledger {self.name!r} needs the driver psycopg ({error}).'
      ) from error

  def check(self, connection: sa.Connection) -> None:
    """Refuses a server that does not keep what it acknowledges."""
    (safe,) = connection.execute(
      sa.select(sa.func.current_setting('fsync'))
    ).one()
    if safe != 'on':
      raise errors.LedgerError(
        f'PostgreSQL of ledger {self.name!r} must run with fsync on, got'
        f' {safe}: what it acknowledges could be lost. Nothing was charged.'
      )

  def prepare_set_up(self, connection: sa.Connection) -> None:
    """Waits until no other process makes tables, until the commit."""
    self.prepare_write(connection)
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SET_UP_LOCK)))

  def prepare_write(self, connection: sa.Connection) -> None:
    """Sets what a write needs, for its transaction."""
    connection.exec_driver_sql(_PREPARE_WRITE)

  def error(
    self, error: sa.exc.DBAPIError, *, committing: bool
  ) -> errors.LedgerError:
    """Returns what a database error means for the ledger."""
    state = getattr(error.orig, 'sqlstate', None) or ''
    text = ' '.join(str(error.orig).split())
    # Without a state no server answered. 08: connection; 57P: the server
    # stops; 40003: the server itself does not know.
    lost = (
      error.connection_invalidated
      or (
        not state
        and isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError))
      )
      or state.startswith(('08', '57P'))
      or state == '40003'
    )
    if lost and committing:
      return _unknown(self.name, error)
    if lost:
      return errors.LedgerUnavailableError(
        f'ledger {self.name!r} must be reached, got: {text}. Nothing was'
        ' charged; see that the server runs and lets you in, then run again.'
      )
    if state == '55P03':
      return errors.LedgerUnavailableError(
        f'ledger {self.name!r} is busy: another writer held it for'
        f' {_BUSY_SECONDS} s. Nothing was charged; run again.'
      )
    return errors.LedgerError(
      f'ledger {self.name!r} refused: {text}. Nothing was charged.'
    )


Database = Sqlite | Postgres


def url_of(text: str) -> sa.URL:
  """Returns the URL of a ledger, given it or the path of a SQLite file.

  A path is never parsed as a part of a URL, where '?', '#' and '%' have another
  meaning: the ledger would lie beside the file that was named.

  Raises:
    ArgumentError, ValueError: It is no URL.
  """
  if '://' in text:
    return sa.make_url(text)
  return sa.URL.create('sqlite', database=os.path.abspath(text))


@contextlib.contextmanager
def translated(
  database: Database, *, committing: bool = False
) -> Iterator[None]:
  """Turns database errors into one line that says what was charged."""
  try:
    yield
  except sa.exc.DBAPIError as error:
    raise database.error(error, committing=committing) from error


def _unknown(
  name: str, error: sa.exc.DBAPIError
) -> errors.LedgerOutcomeUnknownError:
  return errors.LedgerOutcomeUnknownError(
    f'ledger {name!r} was lost while an entry was committed'
    f' ({" ".join(str(error.orig).split())}): it may have been charged, and no'
    ' noise was drawn for it. Run again; what was charged twice is counted'
    ' twice.'
  )


def _text_or_bytes(raw: bytes) -> str | bytes:
  """Reads a text; one that is none stays bytes, and is found where it lies."""
  try:
    return raw.decode()
  except UnicodeDecodeError:
    return raw


def _on_sqlite_connect(connection: Any, record: Any) -> None:
  del record
  connection.isolation_level = None  # SQLAlchemy's begin event does BEGIN.
  connection.text_factory = _text_or_bytes
  cursor = connection.cursor()
  deadline = time.monotonic() + _BUSY_SECONDS
  while True:
    try:
      cursor.execute('PRAGMA journal_mode=WAL')
      break
    except sqlite3.OperationalError as error:
      # Changing the mode does not wait for other connections by itself.
      if 'locked' not in str(error) or time.monotonic() > deadline:
        raise
      time.sleep(0.01)
  cursor.execute('PRAGMA synchronous=FULL')
  cursor.close()


def _on_sqlite_begin(connection: sa.Connection) -> None:
  write = connection.get_execution_options().get('dpemb_write', False)
  connection.exec_driver_sql('BEGIN IMMEDIATE' if write else 'BEGIN')
