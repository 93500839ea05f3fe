"""The file that gives each identity a category: CSV, `identity,category`."""

import csv
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from tff_dpemb.data import data_sets
from tff_dpemb.data import names

_ONE_CATEGORY = 'all'


def read(
  path: str | os.PathLike[str] | None, identities: Sequence[str]
) -> Mapping[str, str]:
  """Returns the category of each identity. PRIVATE for private identities.

  Names are compared and kept in NFC: a file and a folder may spell the same
  name in two Unicode forms.

  Args:
    path: The file; None: all have one category.
    identities: Those who need one, in NFC.

  Raises:
    DataError: The file cannot be read, a line lacks a name or contradicts
      another one, or an identity is not listed.
  """
  if path is None:
    return dict.fromkeys(identities, _ONE_CATEGORY)
  path = pathlib.Path(path)
  listed: dict[str, str] = {}
  for line, (identity, category) in enumerate(_rows(path), start=2):
    if not identity or not category:
      raise data_sets.DataError(
        f'--categories {str(path)!r} line {line} must have an identity and a'
        ' category; fill in the line or remove it.'
      )
    category = names.normal(category)
    if listed.setdefault(names.normal(identity), category) != category:
      raise data_sets.DataError(
        f'--categories {str(path)!r} line {line} must not give an identity a'
        ' second category; remove one of the lines.'
      )
  missing = [item for item in identities if item not in listed]
  if missing:
    raise data_sets.DataError(
      f'--categories {str(path)!r} must list every identity, got none for'
      f' {missing[0]!r} (and {len(missing) - 1} more); add the lines.'
    )
  return listed


def _rows(path: pathlib.Path) -> Iterable[tuple[str | None, str | None]]:
  """Returns (identity, category) of each line of a CSV file."""
  try:
    with path.open(newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file)
      if not {'identity', 'category'} <= set(reader.fieldnames or ()):
        raise data_sets.DataError(
          f"--categories {str(path)!r} must have the header 'identity,category'"
          f', got {reader.fieldnames}.'
        )
      return [(row['identity'], row['category']) for row in reader]
  except OSError as error:
    raise data_sets.DataError(
      f'--categories {str(path)!r} must be a readable CSV file'
      f' ({error.strerror}).'
    ) from error
  except (UnicodeDecodeError, csv.Error) as error:
    raise data_sets.DataError(
      f'--categories {str(path)!r} must be CSV in UTF-8 ({error}).'
    ) from error
