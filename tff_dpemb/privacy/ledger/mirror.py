"""The head of a ledger, repeated in a file outside its database.

For each entry a line '~count digest' before it is committed and 'count digest'
once it is acknowledged. A copy of the database from yesterday, or one with its
last entries cut off, disagrees with it; an entry with neither line means that
the mirror was cut. A crash between the two leaves the first, which is no alarm.
"""

import os
import pathlib
import re

from tff_dpemb.privacy.ledger import errors


class Mirror:
  """One such file. All writers of a ledger must share it."""

  def __init__(self, path: pathlib.Path):
    self.path = path

  def announce(self, count: int, digest: str) -> None:
    """Notes an entry durably, before it is committed."""
    self._write(f'~{count} {digest}', durable=True)

  def acknowledge(self, count: int, digest: str) -> None:
    """Notes an entry, once it is durable inside the database."""
    self._write(f'{count} {digest}', durable=False)

  def acknowledged(self) -> list[tuple[int, str]] | None:
    """Returns the acknowledged (count, digest); None if there is no file.

    Raises:
      LedgerDamagedError: A line is neither whole nor cut short by a crash, or
        the mirror cannot be read.
    """
    lines = self._lines()
    if lines is None:
      return None
    return [(count, digest) for mark, count, digest in lines if not mark]

  def known(self) -> set[tuple[int, str]]:
    """Returns (count, digest) of all entries that the mirror ever heard of."""
    return {(count, digest) for _, count, digest in self._lines() or ()}

  def _write(self, line: str, *, durable: bool) -> None:
    try:
      handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
      try:
        # A leading newline, so that a torn line never swallows the next one.
        os.write(handle, f'\n{line}\n'.encode())
        if durable:
          os.fsync(handle)
      finally:
        os.close(handle)
    except OSError as error:
      raise errors.LedgerError(
        f"the ledger's mirror {str(self.path)!r} must be a writable file"
        f' ({error.strerror}).'
      ) from error

  def _lines(self) -> list[tuple[str, int, str]] | None:
    if not self.path.exists():
      return None
    try:
      content = self.path.read_bytes()
    except OSError as error:
      raise errors.LedgerDamagedError(
        f"the ledger's mirror {str(self.path)!r} must be a readable file"
        f' ({error.strerror}); restore it.'
      ) from error
    found = []
    for line in content.decode('utf-8', errors='replace').splitlines():
      whole = re.fullmatch(r'(~?)([0-9]{1,18}) ([0-9a-f]{64})', line)
      if whole:
        found.append((whole[1], int(whole[2]), whole[3]))
      elif not re.fullmatch(r'~?([0-9]{1,18}( [0-9a-f]{0,63})?)?', line):
        raise errors.LedgerDamagedError(
          f'{self.path.name!r} must hold lines of count and digest; one was'
          ' edited: restore it.'
        )
    return found
