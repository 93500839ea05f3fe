"""Where a ledger lies: its tables, in SQLite (the default) or PostgreSQL.

A URL may name the mirror of the head (`mirror`) as `?mirror=PATH`.
SQLite has one beside its file by default; on PostgreSQL it is optional, and
must then be on a disk that all writers share.
"""

import contextlib
import hashlib
import os
import pathlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy.ledger import databases
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import mirror as ledger_mirror

SCHEMA_VERSION = 2


metadata = sa.MetaData()

entries = sa.Table(
  'entries',
  metadata,
  sa.Column('sequence', sa.Integer, primary_key=True, autoincrement=False),
  sa.Column('kind', sa.String(16), nullable=False),
  sa.Column('population', sa.String(64), nullable=False),
  sa.Column('release', sa.String(128), nullable=False),
  sa.Column('run', sa.String(128), nullable=False),
  sa.Column('round_number', sa.Integer, nullable=True),
  sa.Column('attempt', sa.Integer, nullable=False),
  sa.Column('event', sa.Text, nullable=False),
  sa.Column('event_digest', sa.String(64), nullable=False),
  sa.Column('adjacency', sa.String(32), nullable=False),
  sa.Column('plan_digest', sa.String(64), nullable=False),
  sa.Column('config_digest', sa.String(64), nullable=False),
  sa.Column('code_revision', sa.String(128), nullable=False),
  sa.Column('details', sa.Text, nullable=False),
  sa.Column('recorded_at', sa.String(40), nullable=False),
  sa.Column('previous_digest', sa.String(64), nullable=False),
  sa.Column('digest', sa.String(64), nullable=False),
  sa.Index('entries_by_event', 'population', 'kind', 'event_digest'),
  sa.Index('entries_by_round', 'run', 'release', 'round_number'),
)

head = sa.Table(
  'head',
  metadata,
  sa.Column('id', sa.Integer, primary_key=True, autoincrement=False),
  sa.Column('ledger_id', sa.String(32), nullable=False),
  sa.Column('schema_version', sa.Integer, nullable=False),
  sa.Column('entry_count', sa.Integer, nullable=False),
  sa.Column('digest', sa.String(64), nullable=False),
)

leases = sa.Table(
  'leases',
  metadata,
  sa.Column('run', sa.String(128), primary_key=True),
  sa.Column('slot', sa.String(128), primary_key=True),
  sa.Column('holder', sa.String(256), nullable=False),
  sa.Column('generation', sa.Integer, nullable=False),
  sa.Column('status', sa.String(16), nullable=False),
  sa.Column('expires_at', sa.Float, nullable=False),
)

_APPEND_ONLY = 'entries are append-only'
_TRIGGERS = [
  (
    'sqlite',
    f'CREATE TRIGGER entries_no_{action.lower()} BEFORE {action} ON entries'
    f" BEGIN SELECT RAISE(ABORT, '{_APPEND_ONLY}'); END",
  )
  for action in ('UPDATE', 'DELETE')
]
_TRIGGERS.append(
  (
    'postgresql',
    'CREATE OR REPLACE FUNCTION entries_append_only() RETURNS trigger LANGUAGE'
    f" plpgsql AS $$ BEGIN RAISE EXCEPTION '{_APPEND_ONLY}'; END $$",
  )
)
_TRIGGERS += [
  (
    'postgresql',
    f'CREATE TRIGGER entries_no_{action.lower()} BEFORE {action} ON entries FOR'
    f' EACH {each} EXECUTE FUNCTION entries_append_only()',
  )
  for action, each in (
    ('UPDATE', 'ROW'),
    ('DELETE', 'ROW'),
    ('TRUNCATE', 'STATEMENT'),
  )
]
for _dialect, _statement in _TRIGGERS:
  sa.event.listen(
    entries, 'after_create', sa.DDL(_statement).execute_if(dialect=_dialect)
  )


def genesis_digest(ledger_id: str) -> str:
  """Returns what the first entry of a ledger is chained to."""
  return hashlib.sha256(f'dpemb-ledger:{ledger_id}'.encode()).hexdigest()


def entry_digest(fields: dict[str, Any]) -> str:
  """Returns the SHA-256 of an entry's fields but its own digest.

  Fields that no entry of ours can hold have none: ''.
  """
  content = {key: value for key, value in fields.items() if key != 'digest'}
  try:
    return documents.digest_of(content)
  except documents.DocumentError:
    return ''


def only_head(rows: Sequence[sa.Row]) -> sa.Row:
  """Returns the head record; LedgerDamagedError if there is not just one."""
  if len(rows) != 1:
    raise errors.LedgerDamagedError(
      f'the ledger must have one head record, got {len(rows)}; it was damaged:'
      ' restore it from a copy.'
    )
  return rows[0]


class Store:
  """Connections to one ledger, and the mirror of its head if it has one."""

  def __init__(
    self,
    database: databases.Database,
    mirror: ledger_mirror.Mirror | None,
  ):
    self._database = database
    self.mirror = mirror

  @contextlib.contextmanager
  def read(self) -> Iterator[sa.Connection]:
    """Yields a connection with a consistent view."""
    with databases.translated(self._database):
      with self._database.engine.connect() as plain:
        connection = plain.execution_options(**self._database.read_options)
        with connection.begin():
          yield connection

  @contextlib.contextmanager
  def write(self) -> Iterator[tuple[sa.Connection, sa.Row]]:
    """Yields a connection that alone may write, and the head row.

    Commits durably when the body succeeds, rolls back otherwise.

    Raises:
      LedgerOutcomeUnknownError: The connection was lost while committing.
      LedgerError: Nothing was written.
    """
    database = self._database
    with databases.translated(database):
      with database.engine.connect() as plain:
        connection = plain.execution_options(**database.write_options)
        transaction = connection.begin()
        try:
          database.prepare_write(connection)
          yield (
            connection,
            only_head(
              connection.execute(sa.select(head).with_for_update()).all()
            ),
          )
        except BaseException:
          with contextlib.suppress(sa.exc.DBAPIError):
            transaction.rollback()
          raise
        with databases.translated(database, committing=True):
          transaction.commit()

  def close(self) -> None:
    """Closes all connections."""
    self._database.engine.dispose()


def open_store(
  url: str | os.PathLike[str],
  *,
  create: bool,
  mirror: str | os.PathLike[str] | None,
) -> Store:
  """Returns the store at a SQLAlchemy URL or a SQLite file path.

  Raises:
    LedgerUnavailableError: The server cannot be reached.
    LedgerError: The URL is wrong, the ledger is missing and `create` is
      false, or the database refused.
  """
  text = os.fspath(url)
  try:
    parsed = databases.url_of(text)
  except (sa.exc.ArgumentError, ValueError) as error:
    raise errors.LedgerError(
      'ledger must be a file path or a SQLAlchemy URL, got'
      f' {text.partition("?")[0]!r}.'
    ) from error
  named = parsed.query.get('mirror')
  parsed = parsed.difference_update_query(['mirror'])
  if mirror is None and isinstance(named, str):
    mirror = named
  mirror_path = None if mirror is None else pathlib.Path(mirror)
  match parsed.get_backend_name():
    case 'sqlite':
      file = _sqlite(parsed, create=create)
      database: databases.Database = file
      if mirror_path is None:
        mirror_path = file.path.with_name(file.path.name + '.head')
    case 'postgres' | 'postgresql':
      database = databases.Postgres(parsed)
    case other:
      raise errors.LedgerError(
        f'ledger must be SQLite or PostgreSQL, got {other!r}; give a file path'
        ' or postgresql://HOST/DATABASE.'
      )
  if mirror_path is not None and mirror_path.is_dir():
    raise errors.LedgerDamagedError(
      f"the ledger's mirror {str(mirror_path)!r} must be a file, got a"
      ' directory; move it away and restore the file.'
    )
  try:
    if mirror_path is not None:
      mirror_path.parent.mkdir(parents=True, exist_ok=True)
      # Not where the ledger is there already: that would hide a loss.
      if isinstance(database, databases.Sqlite) and database.is_new:
        mirror_path.open('ab').close()
    with databases.translated(database):
      is_new = _initialise(database, create=create)
    if is_new and mirror_path is not None:
      mirror_path.open('ab').close()
  except OSError as error:
    raise errors.LedgerError(
      f'ledger {database.name!r} could not be opened ({error.strerror}).'
    ) from error
  return Store(
    database,
    None if mirror_path is None else ledger_mirror.Mirror(mirror_path),
  )


def _sqlite(url: sa.URL, *, create: bool) -> databases.Sqlite:
  if url.database in (None, '', ':memory:'):
    raise errors.LedgerError(
      'ledger must be on disk, got an in-memory database; give a file.'
    )
  path = pathlib.Path(str(url.database))
  if path.is_dir():
    raise errors.LedgerError(
      f'ledger {str(path)!r} must be a file, got a directory; give the path'
      ' of the SQLite file.'
    )
  if not create and not path.exists():
    raise errors.LedgerError(
      f'ledger {str(path)!r} must exist; nothing was charged there yet.'
    )
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise errors.LedgerError(
      f'ledger {str(path)!r} could not be opened ({error.strerror}).'
    ) from error
  return databases.Sqlite(url, path)


def _initialise(database: databases.Database, *, create: bool) -> bool:
  """Makes the tables where they are missing; returns whether it did."""
  made = False
  ours = set(metadata.tables)
  with database.engine.connect() as plain:
    names = set(sa.inspect(plain).get_table_names())
  if not ours <= names:
    if not create and not names & ours:
      raise errors.LedgerError(
        f'ledger {database.name!r} must exist; nothing was charged there yet.'
      )
    with database.engine.connect() as plain:
      connection = plain.execution_options(**database.write_options)
      with connection.begin():
        database.prepare_set_up(connection)
        names = set(sa.inspect(connection).get_table_names())
        if ours & names and not ours <= names:
          raise errors.LedgerDamagedError(
            'the ledger lacks a table; it was damaged: restore it from a copy.'
          )
        if not ours <= names:
          _create(connection)
          made = True
  with database.engine.connect() as plain:
    database.check(plain)
    versions = plain.execute(sa.select(head.c.schema_version)).scalars().all()
  for version in versions:
    if version != SCHEMA_VERSION:
      raise errors.LedgerError(
        f'ledger must have schema version {SCHEMA_VERSION}, got {version}; open'
        ' it with the release of dpemb that wrote it. Nothing was charged.'
      )
  return made


def _create(connection: sa.Connection) -> None:
  metadata.create_all(connection)
  ledger_id = uuid.uuid4().hex
  connection.execute(
    head.insert().values(
      id=1,
      ledger_id=ledger_id,
      schema_version=SCHEMA_VERSION,
      entry_count=0,
      digest=genesis_digest(ledger_id),
    )
  )
