"""The index of a user store: three small tables, as written and as mapped.

An *extent* is a run of one user's examples in one shard: (user, shard, start,
count). A user that came several times has several.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa


class ClassNames(Sequence[str]):
  """The class names of one label column, read from the map when asked for."""

  def __init__(self, names: pa.StringArray):
    self._names = names

  def __len__(self) -> int:
    return len(self._names)

  def __getitem__(self, index):
    if isinstance(index, slice):
      return self._names[index].to_pylist()
    if index < 0:
      index += len(self)
    if not 0 <= index < len(self):
      raise IndexError(f'class must be in [0, {len(self)}), got {index}.')
    return self._names[index].as_py()


def users_batch(ids: Sequence[str], extents: np.ndarray) -> pa.RecordBatch:
  """Returns the table of users: where their extents begin, ids in hash order.

  Args:
    ids: Of the users, in the order of their indices.
    extents: int64 [e, (user, shard, start, count)], in any order.
  """
  users, _, _, counts = extents.T
  total = len(ids)
  num_extents = np.bincount(users, minlength=total)
  examples = np.bincount(users, weights=counts, minlength=total)
  hashes = np.array([hash_of(item) for item in ids], np.uint64)
  order = np.argsort(hashes, kind='stable')
  return pa.RecordBatch.from_pydict(
    {
      'id': pa.array(ids, pa.large_string()),
      'first_extent': pa.array(np.cumsum(num_extents) - num_extents),
      'num_extents': pa.array(num_extents.astype(np.int32)),
      'num_examples': pa.array(examples.astype(np.int64)),
      'sorted_hash': pa.array(hashes[order]),
      'sorted_index': pa.array(order.astype(np.int64)),
    }
  )


def extents_batch(extents: np.ndarray) -> pa.RecordBatch:
  """Returns the table of extents: those of one user are adjacent, as written.

  Args:
    extents: int64 [e, (user, shard, start, count)], in the order of writing.
  """
  extents = extents[np.argsort(extents[:, 0], kind='stable')]
  names = ('user', 'shard', 'start', 'count')
  return pa.RecordBatch.from_pydict(
    {name: pa.array(extents[:, column]) for column, name in enumerate(names)}
  )


def classes_batch(label_names: Mapping[str, Sequence[str]]) -> pa.RecordBatch:
  """Returns the table of class names: label columns in the order of names.

  The order is not the mapping's: the manifest is JSON, whose objects have none.
  """
  pairs = [
    (column, name)
    for column in sorted(label_names)
    for name in label_names[column]
  ]
  return pa.RecordBatch.from_pydict(
    {
      'column': pa.array([column for column, _ in pairs], pa.large_string()),
      'name': pa.array([name for _, name in pairs], pa.large_string()),
    }
  )


def class_names(
  classes: pa.RecordBatch, num_classes: Mapping[str, int]
) -> dict[str, ClassNames]:
  """Returns the class names of each label column, as views of the table.

  Args:
    classes: Of `classes_batch`.
    num_classes: Number of classes of each label column.
  """
  names, start = {}, 0
  for column, count in sorted(num_classes.items()):
    names[column] = ClassNames(classes.column('name').slice(start, count))
    start += count
  return names


def hash_of(user_id: str) -> int:
  """Returns the 64-bit hash by which a user id is looked up."""
  digest = hashlib.blake2b(user_id.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')
