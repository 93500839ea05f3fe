"""A data set: a directory with four user stores, split by identity.

`public` may be used freely (pretraining); `private` is what training protects;
`validation` chooses; `test` is looked at once. No user of `test` is in any
other split.
"""

import os
import pathlib
import typing
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store

Split = Literal['public', 'private', 'validation', 'test']
SPLITS: tuple[Split, ...] = typing.get_args(Split)
MANIFEST = 'data_set.json'


class DataError(ValueError):
  """Input images, or a wanted split of them, that break a rule."""


class DataSetManifest(documents.Document):
  """What a data set was made of.

  Attributes:
    source: Where its images come from.
    options: With which it was made.
    stores: Digest of the store of each split that is there.
  """

  remedy = 'no other form is read'

  schema_name: Literal['dpemb.data_set/2'] = documents.schema(
    'dpemb.data_set/2'
  )
  source: str
  options: dict[str, Any]
  stores: dict[Split, documents.Sha256]


def split_identities(
  count: int,
  *,
  validation: int,
  test: int,
  seed: int,
) -> dict[str, np.ndarray]:
  """Returns which identities are private, for validation and for the test.

  Which identities are tested depends on `count`, `test` and `seed` only.

  Args:
    count: Number of identities.
    validation: How many of them validate.
    test: How many of them test.
    seed: Public seed of the split.

  Returns:
    Ascending int64 indices by split; the three splits partition the range.

  Raises:
    DataError: Nobody would be left for the private split.
  """
  if validation < 0 or test < 0 or validation + test >= count:
    raise DataError(
      'validation_identities + test_identities must leave at least one private'
      f' identity of {count}, got {validation} + {test}; hold out fewer or'
      ' bring more identities.'
    )
  order = np.random.default_rng(seed).permutation(count)
  return {
    'private': np.sort(order[test + validation :]),
    'validation': np.sort(order[test : test + validation]),
    'test': np.sort(order[:test]),
  }


def check_output(
  directory: str | os.PathLike[str],
  *,
  replace: bool,
  inputs: Mapping[str, str | os.PathLike[str] | None] | None = None,
) -> None:
  """Checks that making a data set at `directory` destroys nothing else.

  Args:
    directory: Where the data set goes.
    replace: Whether what is there is to be replaced: a data set, or nothing.
    inputs: Paths that are read, by the name of their option. The output must
      not be, hold or lie within one; links are followed.

  Raises:
    DataError: Something other than a data set would be lost.
  """
  directory = pathlib.Path(directory)
  output = directory.resolve()
  for name, path in (inputs or {}).items():
    if path is None:
      continue
    source = pathlib.Path(path).resolve()
    if output.is_relative_to(source) or source.is_relative_to(output):
      raise DataError(
        f'output must be apart from {name}, got {str(directory)!r} and'
        f' {os.fspath(path)!r}; choose another output.'
      )
  if not replace or not os.path.lexists(directory):
    return
  if directory.is_symlink() or not directory.is_dir():
    raise DataError(
      f'{str(directory)!r} must be a directory to be replaced; choose another'
      ' output.'
    )
  if not (directory / MANIFEST).is_file() and any(directory.iterdir()):
    raise DataError(
      f'{str(directory)!r} must be a data set (with {MANIFEST}) or empty to be'
      ' replaced; choose another output or remove it first.'
    )


def write_manifest(
  directory: str | os.PathLike[str],
  *,
  source: str,
  options: Mapping[str, Any],
) -> None:
  """Writes `data_set.json`: the source, its options and the stores' digests."""
  directory = pathlib.Path(directory)
  stores = open_stores(directory)
  DataSetManifest(
    source=source,
    options=dict(options),
    stores={split: stores[split].digest for split in SPLITS if split in stores},
  ).write(directory / MANIFEST)


def open_stores(
  directory: str | os.PathLike[str],
) -> dict[str, user_store.UserStore]:
  """Returns the stores of a data set by split; those that exist.

  Only `public` may be missing (a data set without public images).

  Raises:
    user_store.StoreError: A store is missing or damaged.
  """
  directory = pathlib.Path(directory)
  if not directory.is_dir():
    raise user_store.StoreError(
      f'{str(directory)!r} must be a data set directory; make one with'
      ' `dpemb data`.'
    )
  return {
    split: user_store.UserStore.open(directory / split)
    for split in SPLITS
    if split != 'public' or (directory / split).exists()
  }


def verify(directory: str | os.PathLike[str]) -> dict[str, int]:
  """Reads a whole data set and checks what training relies on.

  Every file has its digest, the stores are those of `data_set.json`, and no
  user of a held-out split is in another split.

  Returns:
    The number of users by split.

  Raises:
    user_store.StoreError: A file is damaged.
    DataError: Splits overlap or stores were exchanged.
  """
  directory = pathlib.Path(directory)
  stores = open_stores(directory)
  for store in stores.values():
    store.verify()
  try:
    expected = DataSetManifest.read(directory / MANIFEST).stores
  except storage.ArtifactError as error:
    raise DataError(f'{error} Make the data set again.') from error
  found = {split: store.digest for split, store in stores.items()}
  if found != expected:
    changed = sorted(
      split for split in SPLITS if found.get(split) != expected.get(split)
    )
    raise DataError(
      f'stores {changed} must be those of {MANIFEST}, got others; make the'
      ' data set again.'
    )
  users = {
    split: {store.user_id(i) for i in range(store.num_users)}
    for split, store in stores.items()
  }
  for split in ('validation', 'test'):
    for other in SPLITS:
      shared = users[split] & users.get(other, set()) if other != split else ()
      if shared:
        raise DataError(
          f'{split} and {other} must share no user, got {len(shared)} in both;'
          ' make the data set again.'
        )
  return {split: store.num_users for split, store in stores.items()}
