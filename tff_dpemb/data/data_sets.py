"""A data set: a directory with four user stores, split by identity.

`public` may be used freely (pretraining); `private` is what training protects;
`validation` chooses; `test` is looked at once. No user is in two splits.
"""

import itertools
import os
import pathlib
import typing
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.data import names
from tff_dpemb.data import store_format
from tff_dpemb.data import user_store

Split = Literal['public', 'private', 'validation', 'test']
SPLITS: tuple[Split, ...] = typing.get_args(Split)
MANIFEST = 'data_set.json'

_MOST_VALIDATION, _MOST_TEST = 200, 600


class DataError(ValueError):
  """Input images, or a wanted split of them, that break a rule."""


class HeldOutError(DataError):
  """More users are to be held out than leave one who trains.

  The message names the keys of a page; `in_flags` names those of a command.
  """

  def __init__(self, count: int, validation: int, test: int):
    self._values = (count, validation, test)
    super().__init__(
      self._sentence('data.validation_identities', 'data.test_identities')
    )

  def in_flags(self, validation: str, test: str) -> DataError:
    """Returns the error with the names that the person used."""
    return DataError(self._sentence(validation, test))

  def _sentence(self, validation: str, test: str) -> str:
    count, *held_out = self._values
    return (
      f'{validation} + {test} must leave at least one private identity of'
      f' {count}, got {held_out[0]} + {held_out[1]}; hold out fewer or bring'
      ' more identities.'
    )


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


def propose_held_out(count: int) -> tuple[int, int]:
  """Returns how many identities to hold out for validation and for the test.

  A tenth and a fifth, at least one each, and no more than figures with narrow
  intervals need: who is held out does not train.
  """
  validation = min(_MOST_VALIDATION, count // 10)
  test = min(_MOST_TEST, count // 5)
  return max(1, validation), max(1, test)


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
    HeldOutError: Nobody would be left for the private split.
  """
  if validation < 0 or test < 0 or validation + test >= count:
    raise HeldOutError(count, validation, test)
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
    inputs: Paths that are read, by their flag. The output must
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
        f'--output must be apart from {name}, got {str(directory)!r} and'
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
  store_format.check_directory(
    directory, f'private/{store_format.MANIFEST}', 'a data set directory'
  )
  return {
    split: user_store.UserStore.open(directory / split)
    for split in SPLITS
    if split != 'public' or (directory / split).exists()
  }


def verify(directory: str | os.PathLike[str]) -> dict[str, int]:
  """Reads a whole data set and checks what training relies on.

  Every file has its digest, the stores are those of `data_set.json`, and no
  user is in two splits, nor in one split twice, whichever Unicode form its
  name has.

  Returns:
    The number of users by split.

  Raises:
    user_store.StoreError: A file is damaged.
    DataError: A user is there twice or stores were exchanged.
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
  users: dict[str, set[str]] = {}
  for split, store in stores.items():
    ids = [store.user_id(i) for i in range(store.num_users)]
    users[split] = {names.normal(item) for item in ids}
    if len(users[split]) < len(ids):
      raise DataError(
        f'{split} must hold each user once, got {len(ids) - len(users[split])}'
        ' twice in two Unicode forms of a name (NFC and NFD); make the data set'
        ' again.'
      )
  for split, other in itertools.combinations(stores, 2):
    shared = users[split] & users[other]
    if shared:
      raise DataError(
        f'{split} and {other} must share no user, got {len(shared)} in both;'
        ' make the data set again.'
      )
  return {split: store.num_users for split, store in stores.items()}
