"""Ledgers of both kinds, each new and alone."""

import contextlib
import dataclasses
import itertools
import pathlib

import pytest
import sqlalchemy as sa

from tests import postgres_server

_NUMBERS = itertools.count()


@dataclasses.dataclass(frozen=True)
class Database:
  """Where a test's ledger lies.

  Attributes:
    kind: 'sqlite', 'postgresql', or 'postgresql-mirror'.
    url: For `Ledger.open`.
    mirror: The file of its mirror; None if it has none.
    raw_url: Without what only a ledger understands.
  """

  kind: str
  url: str
  mirror: pathlib.Path | None
  raw_url: str

  @contextlib.contextmanager
  def tamper(self):
    """Yields a connection of whoever owns the database; commits at the end."""
    engine = sa.create_engine(self.raw_url)
    try:
      with engine.begin() as connection:
        yield connection
    finally:
      engine.dispose()

  @contextlib.contextmanager
  def without_triggers(self):
    """As `tamper`, past what keeps entries from being changed by accident."""
    with self.tamper() as connection:
      if self.kind == 'sqlite':
        for name in ('update', 'delete'):
          connection.exec_driver_sql(f'DROP TRIGGER entries_no_{name}')
      else:
        connection.exec_driver_sql('ALTER TABLE entries DISABLE TRIGGER USER')
      yield connection


@pytest.fixture(name='postgres', scope='session')
def _postgres():
  """A server that no other session uses."""
  reason = postgres_server.obstacle()
  if reason is not None:
    pytest.skip(reason)
  with postgres_server.serve() as server:
    yield server


def new_database(kind, tmp_path, server):
  """Returns a database that no ledger has been opened in."""
  if kind == 'sqlite':
    path = tmp_path / 'runs' / 'ledger.sqlite'
    return Database(
      kind, str(path), path.with_name('ledger.sqlite.head'), f'sqlite:///{path}'
    )
  schema = f's{next(_NUMBERS)}'
  engine = sa.create_engine(server.url())
  with engine.begin() as connection:
    connection.exec_driver_sql(f'CREATE SCHEMA {schema}')
  engine.dispose()
  raw = server.url(schema=schema)
  if kind == 'postgresql':
    return Database(kind, raw, None, raw)
  mirror = tmp_path / 'ledger.head'
  return Database(kind, f'{raw}&mirror={mirror}', mirror, raw)


@pytest.fixture(name='database', params=['sqlite', 'postgresql'])
def _database(request, tmp_path):
  server = None
  if request.param != 'sqlite':
    server = request.getfixturevalue('postgres')
  return new_database(request.param, tmp_path, server)


@pytest.fixture(
  name='any_database', params=['sqlite', 'postgresql', 'postgresql-mirror']
)
def _any_database(request, tmp_path):
  server = None
  if request.param != 'sqlite':
    server = request.getfixturevalue('postgres')
  return new_database(request.param, tmp_path, server)


@pytest.fixture(name='postgres_database')
def _postgres_database(postgres, tmp_path):
  return new_database('postgresql', tmp_path, postgres)
