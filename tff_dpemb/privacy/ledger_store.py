"""Where a ledger lies: tables, connections, and the mirror of its head.

SQLite is the default (write-ahead log, synchronous FULL, one writer at a time
by BEGIN IMMEDIATE); any SQLAlchemy URL works in principle, with the head row
locked for each write.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import sqlite3
import time
import uuid
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from tff_dpemb.privacy import guarantee

SCHEMA_VERSION = 1
_BUSY_SECONDS = 60


class LedgerError(guarantee.PrivacyError):
  """Base of the ledger's errors: nothing was charged."""


class LedgerDamagedError(LedgerError):
  """The ledger is not what was written: edited, truncated or replaced."""

  exit_code = 5


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

for _action in ('UPDATE', 'DELETE'):
  sa.event.listen(
    entries,
    'after_create',
    sa.DDL(
      f'CREATE TRIGGER entries_no_{_action.lower()} BEFORE {_action} ON entries'
      " BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END"
    ).execute_if(dialect='sqlite'),
  )


def genesis_digest(ledger_id: str) -> str:
  """Returns what the first entry of a ledger is chained to."""
  return hashlib.sha256(f'dpemb-ledger:{ledger_id}'.encode()).hexdigest()


def entry_digest(fields: dict[str, Any]) -> str:
  """Returns the SHA-256 of an entry's fields but its own digest."""
  content = {key: value for key, value in fields.items() if key != 'digest'}
  text = json.dumps(content, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()


class Store:
  """Connections to one ledger and the mirror of its head.

  The mirror is a text file beside a SQLite ledger (`<file>.head`): for each
  entry a line '~count digest' before it is committed and 'count digest' once it
  is acknowledged. A copy of the database from yesterday, or one with its last
  entries cut off, disagrees with it; an entry with neither line means that the
  mirror was cut. A crash between the two leaves the first, which is no alarm.
  """

  def __init__(self, engine: sa.Engine, mirror: pathlib.Path | None):
    self._engine = engine
    self.mirror = mirror

  @contextlib.contextmanager
  def read(self) -> Iterator[sa.Connection]:
    """Yields a connection with a consistent view."""
    with _translated(self._engine), self._engine.begin() as connection:
      yield connection

  @contextlib.contextmanager
  def write(self) -> Iterator[tuple[sa.Connection, sa.Row]]:
    """Yields a connection that alone may write, and the head row.

    Commits durably when the body succeeds, rolls back otherwise.
    """
    with _translated(self._engine):
      with self._engine.connect() as plain:
        connection = plain.execution_options(dpemb_write=True)
        with connection.begin():
          row = connection.execute(
            sa.select(head).with_for_update()
          ).one_or_none()
          if row is None:
            raise LedgerDamagedError(
              'the ledger has no head record; it was damaged: restore it from'
              ' a copy.'
            )
          yield connection, row

  def announce(self, count: int, digest: str) -> None:
    """Notes an entry outside the database, durably, before it is committed."""
    self._write_mirror(f'~{count} {digest}', durable=True)

  def append_mirror(self, count: int, digest: str) -> None:
    """Notes an entry outside the database, once it is durable inside."""
    self._write_mirror(f'{count} {digest}', durable=False)

  def _write_mirror(self, line: str, *, durable: bool) -> None:
    if self.mirror is None:
      return
    try:
      handle = os.open(
        self.mirror, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644
      )
      try:
        # A leading newline, so that a torn line never swallows the next one.
        os.write(handle, f'\n{line}\n'.encode())
        if durable:
          os.fsync(handle)
      finally:
        os.close(handle)
    except OSError as error:
      raise LedgerError(
        f"the ledger's mirror {str(self.mirror)!r} must be a writable file"
        f' ({error.strerror}).'
      ) from error

  def read_mirror(self) -> list[tuple[int, str]] | None:
    """Returns the acknowledged (count, digest); None if there is no mirror.

    Raises:
      LedgerDamagedError: A line is neither whole nor cut short by a crash, or
        the mirror cannot be read.
    """
    lines = self._mirror_lines()
    if lines is None:
      return None
    return [(count, digest) for mark, count, digest in lines if not mark]

  def read_known(self) -> set[tuple[int, str]]:
    """Returns (count, digest) of all entries that the mirror ever heard of."""
    return {(count, digest) for _, count, digest in self._mirror_lines() or ()}

  def _mirror_lines(self) -> list[tuple[str, int, str]] | None:
    if self.mirror is None or not self.mirror.exists():
      return None
    try:
      content = self.mirror.read_bytes()
    except OSError as error:
      raise LedgerDamagedError(
        f"the ledger's mirror {str(self.mirror)!r} must be a readable file"
        f' ({error.strerror}); restore it.'
      ) from error
    found = []
    for line in content.decode('utf-8', errors='replace').splitlines():
      whole = re.fullmatch(r'(~?)([0-9]{1,18}) ([0-9a-f]{64})', line)
      if whole:
        found.append((whole[1], int(whole[2]), whole[3]))
      elif not re.fullmatch(r'~?([0-9]{1,18}( [0-9a-f]{0,63})?)?', line):
        raise LedgerDamagedError(
          f'{self.mirror.name!r} must hold lines of count and digest; one was'
          ' edited: restore it.'
        )
    return found

  def close(self) -> None:
    """Closes all connections."""
    self._engine.dispose()


def open_store(
  url: str | os.PathLike[str],
  *,
  create: bool,
  mirror: str | os.PathLike[str] | None,
) -> Store:
  """Returns the store at a SQLAlchemy URL or a SQLite file path.

  Raises:
    LedgerError: The URL is wrong, the ledger is missing and `create` is
      false, or the database refused.
  """
  text = os.fspath(url)
  if '://' not in text:
    text = f'sqlite:///{os.path.abspath(text)}'
  try:
    parsed = sa.make_url(text)
  except sa.exc.ArgumentError as error:
    raise LedgerError(
      f'ledger must be a file path or a SQLAlchemy URL, got {text!r}.'
    ) from error
  mirror_path = None if mirror is None else pathlib.Path(mirror)
  if parsed.get_backend_name() == 'sqlite':
    if parsed.database in (None, '', ':memory:'):
      raise LedgerError(
        'ledger must be on disk, got an in-memory database; give a file.'
      )
    path = pathlib.Path(parsed.database)
    if path.is_dir():
      raise LedgerError(
        f'ledger {str(path)!r} must be a file, got a directory; give the path'
        ' of the SQLite file.'
      )
    if not create and not path.exists():
      raise LedgerError(
        f'ledger {str(path)!r} must exist; nothing was charged there yet.'
      )
    if mirror_path is None:
      mirror_path = path.with_name(path.name + '.head')
    if mirror_path.is_dir():
      raise LedgerDamagedError(
        f"the ledger's mirror {str(mirror_path)!r} must be a file, got a"
        ' directory; move it away and restore the file.'
      )
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      return _open_sqlite(parsed, path, mirror_path)
    except OSError as error:
      raise LedgerError(
        f'ledger {str(path)!r} could not be opened ({error.strerror}).'
      ) from error
  try:
    engine = sa.create_engine(parsed)
  except (sa.exc.ArgumentError, ImportError) as error:
    raise LedgerError(
      f'ledger URL {parsed.render_as_string()!r} needs a driver that is not'
      f' installed ({error}).'
    ) from error
  with _translated(engine):
    _initialise(engine)
  return Store(engine, mirror_path)


def _open_sqlite(
  url: sa.URL, path: pathlib.Path, mirror: pathlib.Path
) -> Store:
  engine = sa.create_engine(url, connect_args={'timeout': _BUSY_SECONDS})
  sa.event.listen(engine, 'connect', _on_connect)
  sa.event.listen(engine, 'begin', _on_begin)
  is_new = not path.exists()
  if not is_new and not mirror.exists():
    # Say so in `verify`, but do not invent a mirror: that would hide its loss.
    lock_name = path
  else:
    lock_name = mirror
  with open(lock_name, 'ab') as lock, _translated(engine):
    fcntl.flock(lock, fcntl.LOCK_EX)
    _initialise(engine)
  return Store(engine, mirror)


def _on_connect(connection: Any, record: Any) -> None:
  del record
  connection.isolation_level = None  # SQLAlchemy's begin event does BEGIN.
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


def _on_begin(connection: sa.Connection) -> None:
  write = connection.get_execution_options().get('dpemb_write', False)
  connection.exec_driver_sql('BEGIN IMMEDIATE' if write else 'BEGIN')


def _initialise(engine: sa.Engine) -> None:
  with engine.connect() as plain:
    names = set(sa.inspect(plain).get_table_names())
  if not {'entries', 'head', 'leases'} <= names:
    with engine.connect() as plain:
      connection = plain.execution_options(dpemb_write=True)
      with connection.begin():
        if names & {'entries', 'head', 'leases'}:
          raise LedgerDamagedError(
            'the ledger lacks a table; it was damaged: restore it from a copy.'
          )
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
  with engine.connect() as plain:
    versions = plain.execute(sa.select(head.c.schema_version)).scalars().all()
  for version in versions:
    if version != SCHEMA_VERSION:
      raise LedgerError(
        f'ledger must have schema version {SCHEMA_VERSION}, got {version}; open'
        ' it with the release of dpemb that wrote it. Nothing was charged.'
      )


@contextlib.contextmanager
def _translated(engine: sa.Engine) -> Iterator[None]:
  """Turns database errors into one line that says nothing was charged."""
  try:
    yield
  except sa.exc.DBAPIError as error:
    name = engine.url.render_as_string(hide_password=True)
    if getattr(error.orig, 'sqlite_errorcode', None) in (
      sqlite3.SQLITE_NOTADB,
      sqlite3.SQLITE_CORRUPT,
    ):
      raise LedgerDamagedError(
        f'{name!r} must be a ledger, got a file that is none or is damaged'
        f' ({error.orig}); restore it from a backup. Nothing was charged.'
      ) from error
    raise LedgerError(
      f'ledger {name!r} refused: {error.orig}. Nothing was charged; free space'
      ' or wait for the other writer, then run again.'
    ) from error
