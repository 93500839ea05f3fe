"""Names of users and classes: one spelling, so that one name is one user.

Unicode writes an accented letter in two ways: as one character (NFC) or as a
letter and a mark (NFD, what some file systems hand out). Both are the same
text and look the same. Had each a user of its own, the protection of a user
would be that of half a user, or half of a user would be public. So every name
is brought to NFC where it enters, and two names that then are equal, *twins*,
are refused.

Names that differ in case, width or spaces at the ends are *look-alikes*: they
may be one person typed twice or two ids that use both cases. Only their owner
can tell, so they are pointed out and not refused.
"""

import unicodedata
from collections.abc import Callable, Iterable


def normal(name: str) -> str:
  """Returns a name in NFC, the spelling in which names are kept."""
  return unicodedata.normalize('NFC', name)


def is_unicode(name: str) -> bool:
  """Returns whether a name is text: a file name may be other bytes."""
  try:
    name.encode()
  except UnicodeEncodeError:
    return False
  return True


def twins(names: Iterable[str]) -> list[tuple[str, str]]:
  """Returns pairs of different spellings of one name, the earlier one first."""
  return _pairs(names, key=normal)


def look_alikes(names: Iterable[str]) -> list[tuple[str, str]]:
  """Returns pairs that differ in case, width or spaces at the ends only.

  Args:
    names: In NFC: twins are no look-alikes.
  """
  return _pairs(names, key=_folded)


def _folded(name: str) -> str:
  folded = unicodedata.normalize('NFKC', name).strip().casefold()
  return unicodedata.normalize('NFKC', folded)  # Folding may undo the form.


def _pairs(
  names: Iterable[str], *, key: Callable[[str], str]
) -> list[tuple[str, str]]:
  """Returns (first, later) for each later name that has the key of a first."""
  first: dict[str, str] = {}
  pairs = []
  for name in names:
    known = first.setdefault(key(name), name)
    if known != name:
      pairs.append((known, name))
  return pairs
