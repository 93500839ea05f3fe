"""Images on disk, owned by users: open, count, read by user or by shard.

A store is a directory of memory-mapped Arrow files (`store_format`), written
by `StoreWriter`. Opening reads the manifest and maps the index, so that it
takes the same time and memory for ten users as for a million.
"""

import collections
import dataclasses
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tff_dpemb import images as image_codec
from tff_dpemb.data import names
from tff_dpemb.data import store_format
from tff_dpemb.data import store_index
from tff_dpemb.data import store_writer

StoreError = store_format.StoreError
StoreManifest = store_format.StoreManifest
StoreWriter = store_writer.StoreWriter

# The label column of who or what an image shows; backbones are trained on it.
IDENTITY = 'identity'

# Mapped shards are kept open up to this number: each holds a file descriptor.
_OPEN_SHARDS = 64


@dataclasses.dataclass(frozen=True)
class UserExamples:
  """Examples of one user.

  Attributes:
    images: uint8 [n, height, width, channels].
    labels: int32 [n] for each label column.
  """

  images: np.ndarray
  labels: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Shard:
  """A mapped shard: views into the file, nothing read yet."""

  images: np.ndarray | pa.LargeBinaryArray  # uint8 [rows, h, w, c], or files
  users: np.ndarray  # int32 [rows]
  labels: dict[str, np.ndarray]  # int32 [rows] each


class UserStore:
  """A store of images owned by users; open with `UserStore.open`.

  Safe to use from several threads; pickles as its path.
  """

  def __init__(self, path: pathlib.Path, manifest: StoreManifest):
    """Maps the index; use `open`."""
    self._path = path
    files = {info.name: info for info in manifest.files}
    users = store_format.map_batch(path, files[store_format.USERS])
    extents = store_format.map_batch(path, files[store_format.EXTENTS])
    self._ids = users.column('id')
    self._first_extent = users.column('first_extent').to_numpy()
    self._num_extents = users.column('num_extents').to_numpy()
    self._num_examples = users.column('num_examples').to_numpy()
    self._sorted_hash = users.column('sorted_hash').to_numpy()
    self._sorted_index = users.column('sorted_index').to_numpy()
    self._extents = [
      extents.column(name).to_numpy() for name in ('shard', 'start', 'count')
    ]
    classes = store_format.map_batch(path, files[store_format.CLASSES])
    self._label_names = store_index.class_names(classes, manifest.num_classes)
    self.manifest = manifest
    self._open_shards: collections.OrderedDict[int, _Shard] = (
      collections.OrderedDict()
    )
    self._lock = threading.Lock()

  @classmethod
  def open(cls, path: str | os.PathLike[str]) -> 'UserStore':
    """Returns the store at `path`.

    Checks that every file is there with its full size, not its digest: see
    `verify`.

    Raises:
      StoreError: There is no store, or a file is missing or truncated.
    """
    path = pathlib.Path(path)
    store_format.check_directory(path, store_format.MANIFEST, 'a user store')
    manifest = store_format.read_manifest(path / store_format.MANIFEST)
    for info in manifest.shards:
      store_format.check_size(path / info.name, info)
    return cls(path, manifest)

  def __reduce__(self):
    return UserStore.open, (str(self._path),)

  @property
  def path(self) -> pathlib.Path:
    """Directory of the store."""
    return self._path

  @property
  def digest(self) -> str:
    """SHA-256 hex digest of the store's content."""
    return self.manifest.digest

  @property
  def num_users(self) -> int:
    """Number of users."""
    return self.manifest.num_users

  @property
  def num_examples(self) -> int:
    """Number of images of all users."""
    return self.manifest.num_examples

  @property
  def image_shape(self) -> tuple[int, int, int]:
    """(height, width, channels) of every image."""
    return self.manifest.image_shape

  @property
  def examples_per_user(self) -> np.ndarray:
    """int64 [num_users]: how many images each user owns."""
    return self._num_examples

  @property
  def label_names(self) -> Mapping[str, Sequence[str]]:
    """Class names of each label column; views of the mapped file."""
    return self._label_names

  def num_classes(self, label: str) -> int:
    """Returns the number of classes of a label column."""
    return len(self._names_of(label))

  def class_name(self, label: str, index: int) -> str:
    """Returns the name of a class of a label column."""
    return self._names_of(label)[index]

  def user_id(self, index: int) -> str:
    """Returns the id of a user; for the operator's eyes, not for logs."""
    return self._ids[self._checked(index)].as_py()

  def index_of(self, user_id: str) -> int:
    """Returns the index of a user by binary search on the mapped index.

    Any Unicode form of the id finds the user.

    Raises:
      StoreError: No such user.
    """
    # As given too: stores of before names were kept in one form.
    for form in dict.fromkeys((names.normal(user_id), user_id)):
      wanted = np.uint64(store_index.hash_of(form))
      place = int(np.searchsorted(self._sorted_hash, wanted))
      while place < self.num_users and self._sorted_hash[place] == wanted:
        index = int(self._sorted_index[place])
        if self._ids[index].as_py() == form:
          return index
        place += 1
    raise StoreError('user_id must be in the store, got an unknown one.')

  def read_user(
    self,
    index: int,
    *,
    max_examples: int | None = None,
    rng: np.random.Generator | None = None,
    apply: Callable[..., Iterable[np.ndarray]] = map,
  ) -> UserExamples:
    """Returns examples of one user, copied out of the map.

    Args:
      index: The user.
      max_examples: Keep at most so many.
      rng: Picks which are kept, uniformly; without it, the first ones.
      apply: Applies the decoder to the files of an encoded store; the `map` of
        a pool of threads decodes several at a time, to the same pixels.

    Raises:
      StoreError: No such user, or a shard is damaged.
    """
    if max_examples is not None and max_examples < 1:
      raise StoreError(f'max_examples must be > 0, got {max_examples}.')
    index = self._checked(index)
    first = int(self._first_extent[index])
    extents = range(first, first + int(self._num_extents[index]))
    count = int(self._num_examples[index])
    rows = np.arange(count)
    if max_examples is not None and count > max_examples:
      if rng is None:
        rows = rows[:max_examples]
      else:
        rows = np.sort(rng.choice(count, max_examples, replace=False))
    images, labels = [], []
    passed = 0
    for extent in extents:
      shard, start, size = (int(column[extent]) for column in self._extents)
      inside = rows[(rows >= passed) & (rows < passed + size)] - passed
      passed += size
      if len(inside):
        view = self._shard(shard)
        images.append(self._pixels(view, start + inside, apply))
        labels.append(
          {name: column[start + inside] for name, column in view.labels.items()}
        )
    return UserExamples(
      images=np.concatenate(images),
      labels={
        name: np.concatenate([part[name] for part in labels])
        for name in self.manifest.num_classes
      },
    )

  def read_all(
    self,
    *,
    users: Sequence[int] | np.ndarray | None = None,
    max_examples: int | None = None,
  ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Returns all examples of all or some users; for small stores.

    Args:
      users: Users in the wanted order; None: all, in order.
      max_examples: Keep at most so many of each user, the first ones.

    Returns:
      uint8 [n, height, width, channels]; int32 [n] for each label column; the
      user index of each example, int32 [n]. One user's examples are adjacent.
    """
    if users is None and max_examples is None:
      parts = [self.read_shard(i) for i in range(len(self.shards))]
      images = np.concatenate([part[0] for part in parts])
      owners = np.concatenate([part[2] for part in parts])
      labels = {
        name: np.concatenate([part[1][name] for part in parts])
        for name in self.manifest.num_classes
      }
      if np.any(np.diff(owners) < 0):  # A user came twice.
        order = np.argsort(owners, kind='stable')
        images, owners = images[order], owners[order]
        labels = {name: column[order] for name, column in labels.items()}
      return images, labels, owners
    users = range(self.num_users) if users is None else users
    read = [self.read_user(int(u), max_examples=max_examples) for u in users]
    if not read:
      raise StoreError('users must name at least one user, got none.')
    return (
      np.concatenate([item.images for item in read]),
      {
        name: np.concatenate([item.labels[name] for item in read])
        for name in self.manifest.num_classes
      },
      np.repeat(
        np.asarray(list(users), np.int32), [len(item.images) for item in read]
      ),
    )

  def example_ids(self) -> list[str]:
    """Returns `user/position` of each example, in the order of `read_all`."""
    return [
      f'{self.user_id(user)}/{position}'
      for user, count in enumerate(self._num_examples.tolist())
      for position in range(count)
    ]

  def read_first(self, count: int) -> np.ndarray:
    """Returns up to `count` images, uint8 [n, h, w, c], user after user."""
    owners = np.searchsorted(np.cumsum(self._num_examples), count) + 1
    users = range(min(int(owners), self.num_users))
    return self.read_all(users=users)[0][:count]

  @property
  def shards(self) -> list[store_format.FileInfo]:
    """The files that hold the examples, in order."""
    return list(self.manifest.shards)

  def read_shard(
    self, index: int
  ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Returns the examples of one shard; the triple of `read_all`.

    The shards partition the examples; a user may have examples in several.
    """
    if not 0 <= index < len(self.manifest.shards):
      raise StoreError(
        f'shard must be in [0, {len(self.manifest.shards)}), got {index}.'
      )
    view = self._shard(index)
    return (
      self._pixels(view, np.arange(len(view.users))),
      {name: np.array(column) for name, column in view.labels.items()},
      np.array(view.users),
    )

  def verify(self) -> None:
    """Reads every file and checks its digest against the manifest.

    Raises:
      StoreError: A file differs; the message names it and the remedy.
    """
    for info in (*self.manifest.files, *self.manifest.shards):
      store_format.check_digest(self._path, info)

  def _names_of(self, label: str) -> Sequence[str]:
    if label not in self._label_names:
      raise StoreError(
        f'label must be one of {sorted(self._label_names)}, got {label!r}.'
      )
    return self._label_names[label]

  def _checked(self, index: int) -> int:
    if not 0 <= index < self.num_users:
      raise StoreError(f'user must be in [0, {self.num_users}), got {index}.')
    return int(index)

  def _shard(self, index: int) -> _Shard:
    with self._lock:
      if index in self._open_shards:
        self._open_shards.move_to_end(index)
        return self._open_shards[index]
    batch = store_format.map_batch(self._path, self.manifest.shards[index])
    column = batch.column('image')
    if self.manifest.encoding == 'raw':
      pixels = np.frombuffer(column.buffers()[1], np.uint8)
      column = pixels.reshape(-1, *self.image_shape)[: batch.num_rows]
    shard = _Shard(
      images=column,
      users=batch.column('user').to_numpy(),
      labels={
        name: batch.column(name).to_numpy()
        for name in self.manifest.num_classes
      },
    )
    with self._lock:
      self._open_shards[index] = shard
      while len(self._open_shards) > _OPEN_SHARDS:
        self._open_shards.popitem(last=False)
    return shard

  def _pixels(self, shard: _Shard, rows: np.ndarray, apply=map) -> np.ndarray:
    column = shard.images
    if isinstance(column, np.ndarray):
      return column[rows]

    def decode(row: int) -> np.ndarray:
      return image_codec.decode(column[row].as_py(), self.image_shape)

    return np.stack(list(apply(decode, rows.tolist())))
