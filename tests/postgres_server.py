"""A PostgreSQL server in a directory of its own, for tests and benchmarks.

It listens on a Unix socket in that directory only, takes nothing from the
machine's own server, and is stopped and removed at the end. PostgreSQL refuses
to run as root: root starts it as the user `postgres`, or `nobody`.
"""

import contextlib
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator

INSTALL = 'apt-get install --no-install-recommends postgresql'
_DATABASE = 'postgres'
_PORT = 5432  # Only the name of the socket.


class ServerError(RuntimeError):
  """No PostgreSQL is installed, or it did not start."""


def find_binaries() -> pathlib.Path | None:
  """Returns the directory of `initdb` and `pg_ctl`, the newest if several."""

  def version(path: pathlib.Path) -> float:
    found = re.search(r'postgresql/([0-9.]+)/bin', str(path))
    return float(found[1]) if found else 0.0

  places = sorted(
    pathlib.Path('/usr/lib/postgresql').glob('*/bin'), key=version, reverse=True
  )
  for name in ('initdb', 'pg_ctl'):
    on_path = shutil.which(name)
    if on_path:
      places.append(pathlib.Path(on_path).resolve().parent)
  for place in places:
    if (place / 'initdb').exists() and (place / 'pg_ctl').exists():
      return place
  return None


def obstacle() -> str | None:
  """Returns why no server can be started here; None if one can."""
  if find_binaries() is None:
    return f'no PostgreSQL is installed; {INSTALL}'
  if os.geteuid() == 0 and _account() is None:
    return 'PostgreSQL refuses root, and this sandbox has no other user'
  return None


class Server:
  """A server that runs until the `with` block of `serve` ends."""

  def __init__(
    self, binaries: pathlib.Path, directory: pathlib.Path, account: list[str]
  ):
    self._binaries = binaries
    self._directory = directory
    self._account = account

  def url(self, *, schema: str = 'public', **options: str) -> str:
    """Returns the SQLAlchemy URL of a schema; `make_schema` makes it."""
    query = urllib.parse.urlencode(
      {
        'host': str(self._directory),
        'options': f'-csearch_path={schema}',
        **options,
      }
    )
    return f'postgresql+psycopg://dpemb@/{_DATABASE}?{query}'

  def start(self) -> None:
    """Starts it and waits until it answers."""
    options = (
      f"-c listen_addresses='' -c unix_socket_directories={self._directory}"
      f' -c port={_PORT} -c max_connections=50 -c shared_buffers=16MB'
      ' -c autovacuum=off'
    )
    log = str(self._directory / 'log')
    self._control('start', '-w', '-l', log, '-o', options)

  def stop(self, *, mode: str = 'fast') -> None:
    """Stops it: 'fast' closes connections, 'immediate' is as good as a crash."""
    self._control('stop', '-w', '-m', mode)

  def is_running(self) -> bool:
    """Whether the server process is there."""
    return (self._directory / 'data' / 'postmaster.pid').exists()

  def _control(self, *arguments: str) -> None:
    data = str(self._directory / 'data')
    _run(
      [*self._account, str(self._binaries / 'pg_ctl'), '-D', data, *arguments]
    )


@contextlib.contextmanager
def serve() -> Iterator[Server]:
  """Yields a new server with one database and the superuser `dpemb`.

  Raises:
    ServerError: No PostgreSQL is installed, or it refused to start.
  """
  reason, binaries = obstacle(), find_binaries()
  if reason is not None or binaries is None:
    raise ServerError(f'PostgreSQL must be usable: {reason}.')
  # A short path: that of a Unix socket has 107 characters.
  with tempfile.TemporaryDirectory(prefix='dpemb-pg-', dir='/tmp') as name:
    directory = pathlib.Path(name)
    account = []
    entry = _account() if os.geteuid() == 0 else None
    if entry is not None:
      os.chown(directory, entry.pw_uid, entry.pw_gid)
      ids = (f'--reuid={entry.pw_uid}', f'--regid={entry.pw_gid}')
      account = ['setpriv', *ids, '--clear-groups']
    data = str(directory / 'data')
    _run(
      [
        *account,
        str(binaries / 'initdb'),
        *('-D', data, '-U', 'dpemb', '-A', 'trust', '-E', 'UTF8'),
        *('--locale=C', '--no-instructions'),
      ]
    )
    server = Server(binaries, directory, account)
    server.start()
    try:
      yield server
    finally:
      if server.is_running():
        server.stop(mode='immediate')


def _account() -> pwd.struct_passwd | None:
  """Returns the user that root starts PostgreSQL as; None if there is none.

  In a sandbox's user namespace, only ids that it maps can be taken.
  """
  lines = pathlib.Path('/proc/self/uid_map').read_text().splitlines()
  mapped = [
    range(int(inside), int(inside) + int(count))
    for inside, _, count in map(str.split, lines)
  ]
  for name in ('postgres', 'nobody'):
    with contextlib.suppress(KeyError):
      entry = pwd.getpwnam(name)
      if any(entry.pw_uid in ids for ids in mapped):
        return entry
  return None


def _run(command: list[str]) -> None:
  result = subprocess.run(
    command,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    cwd='/',
  )
  if result.returncode != 0:
    raise ServerError(
      f'{" ".join(command)} failed: {" ".join(result.stderr.split())}'
    )
