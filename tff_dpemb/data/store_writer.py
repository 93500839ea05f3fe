"""Writes a user store: append users, publish whole or not at all."""

import contextlib
import os
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from tff_dpemb.artifacts import storage
from tff_dpemb.data import names
from tff_dpemb.data import store_format
from tff_dpemb.data import store_index

StoreError = store_format.StoreError

# Rows are buffered up to this size before they become a shard: the memory
# that writing takes, and what one step of a streamed reading holds.
_SHARD_BYTES = 64 << 20

# 4 megapixels: far above what the networks take; an image of a mistyped size
# must not exhaust memory.
MAX_PIXELS = 4_000_000


class StoreWriter:
  """Appends users to a new store; a context manager.

  The store appears at `path` when the block ends without an error; after an
  error nothing is left there, and what was there before is untouched.

  A user id that comes twice, in whichever Unicode form, is one user: its later
  examples join the earlier ones (the privacy unit is the user, however the
  files were cut).
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    *,
    name: str,
    image_shape: tuple[int, int, int],
    label_names: Mapping[str, Sequence[str]],
    encoding: Literal['raw', 'encoded'] = 'raw',
    source: str = '',
    licence: str = '',
    replace: bool = False,
    shard_bytes: int = _SHARD_BYTES,
  ):
    """Describes the store; nothing is written before the block is entered.

    Args:
      path: Directory of the store.
      name: Name for people.
      image_shape: (height, width, channels) of every image; channels 1 or 3.
      label_names: Class names of each label column.
      encoding: 'raw': images are uint8 arrays; 'encoded': they are the bytes
        of PNG, JPEG, ... files, decoded and resized when read.
      source: Where the images come from.
      licence: Under which terms.
      replace: Whether a store at `path` may be replaced.
      shard_bytes: Size at which a shard is closed.

    Raises:
      StoreError: The shape, encoding or a label column breaks a rule.
    """
    if (
      len(image_shape) != 3
      or min(image_shape) < 1
      or image_shape[2] not in (1, 3)
    ):
      raise StoreError(
        'image_shape must be (height, width, 1 or 3), got'
        f' {tuple(image_shape)}.'
      )
    if image_shape[0] * image_shape[1] > MAX_PIXELS:
      raise StoreError(
        f'image_shape (--size) must have at most {MAX_PIXELS} pixels, got'
        f' {image_shape[0]} x {image_shape[1]}; choose a smaller size.'
      )
    if encoding not in ('raw', 'encoded'):
      raise StoreError(
        f"encoding must be 'raw' or 'encoded', got {encoding!r}."
      )
    for field, text in (
      ('name', name),
      ('source', source),
      ('licence', licence),
      *(('a label column', column) for column in label_names),
    ):
      if not names.is_unicode(text):  # Of a file name in another encoding.
        raise StoreError(
          f'{field} must be Unicode text, got {text!r}; rename what it is'
          ' called after.'
        )
    for column, classes in label_names.items():
      if column in ('image', 'user'):
        raise StoreError(f'label column must not be named {column!r}.')
      if names.twins(classes):
        raise StoreError(
          f'class names of {column!r} must differ in more than the Unicode form'
          ' (NFC or NFD) of a letter; merge the twins.'
        )
    self._path = pathlib.Path(path)
    self._name = name
    height, width, channels = map(int, image_shape)
    self._shape = (height, width, channels)
    self._label_names = {
      column: [names.normal(item) for item in classes]
      for column, classes in label_names.items()
    }
    self._encoding = encoding
    self._source = source
    self._licence = licence
    self._replace = replace
    self._shard_bytes = shard_bytes
    self._open = False
    self._index_of: dict[str, int] = {}
    self._extents: list[np.ndarray] = []  # [k, (user, shard, start, count)]
    self._shards: list[store_format.FileInfo] = []
    self._skipped: list[store_format.BadFile] = []
    self._clear()

  def __enter__(self) -> 'StoreWriter':
    self._publication = storage.atomic_directory(
      self._path, replace=self._replace, is_private=True
    )
    self._directory = self._publication.__enter__()
    self._open = True
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> bool | None:
    self._open = False
    if error is not None:
      return self._publication.__exit__(kind, error, traceback)
    with contextlib.ExitStack() as stack:
      stack.push(self._publication)
      self._finish()
    return None

  @property
  def num_users(self) -> int:
    """Number of distinct users so far."""
    return len(self._index_of)

  def add_user(
    self,
    user_id: str,
    images: np.ndarray | Sequence[bytes],
    labels: Mapping[str, np.ndarray | int],
  ) -> None:
    """Appends examples of a user.

    Args:
      user_id: The user; if it is known already, its examples are joined.
      images: uint8 [n, height, width, channels], or n encoded files if the
        store's encoding is 'encoded'; n > 0.
      labels: For each label column, int [n] or one int for all: class indices.

    Raises:
      StoreError: There is no image, or a shape, type or class is wrong. The
        message does not tell the user id.
    """
    if not self._open:
      raise StoreError('add_user must be called inside the with block.')
    if not isinstance(user_id, str) or not user_id:
      raise StoreError('user_id must be a string that is not empty.')
    count = len(images)
    if count == 0:
      raise StoreError(
        f'a user must own at least one image, got 0 for user number'
        f' {self.num_users}; leave the user out.'
      )
    images = self._checked_images(images)
    columns = self._checked_labels(labels, count)
    user_id = names.normal(user_id)
    user = self._index_of.setdefault(user_id, len(self._index_of))
    self._append(np.full(count, user, np.int32), images, columns)

  def add_users(
    self,
    user_ids: Sequence[str],
    images: np.ndarray,
    labels: Mapping[str, np.ndarray],
  ) -> None:
    """Appends many users with equally many images each, in one fast step.

    Args:
      user_ids: u user ids.
      images: uint8 [u, n, height, width, channels], n > 0; the store's
        encoding is 'raw'.
      labels: For each label column, int [u]: one class for each user.

    Raises:
      StoreError: As `add_user`.
    """
    if not self._open:
      raise StoreError('add_users must be called inside the with block.')
    images = np.asarray(images)
    if (
      self._encoding != 'raw'
      or images.ndim != 5
      or len(images) != len(user_ids)
      or not images.shape[1]
    ):
      raise StoreError(
        f'images must be raw pixels [{len(user_ids)}, n > 0, height, width,'
        f' channels], got {self._encoding} {list(images.shape)}.'
      )
    if not all(isinstance(item, str) and item for item in user_ids):
      raise StoreError('user_id must be a string that is not empty.')
    each = images.shape[1]
    rows = self._checked_images(images.reshape(-1, *images.shape[2:]))
    columns = {
      name: np.repeat(column, each)
      for name, column in self._checked_labels(labels, len(user_ids)).items()
    }
    index_of = self._index_of
    users = [
      index_of.setdefault(names.normal(item), len(index_of))
      for item in user_ids
    ]
    self._append(np.repeat(np.array(users, np.int32), each), rows, columns)

  def note_skipped(self, files: Sequence[store_format.BadFile]) -> None:
    """Puts into the manifest what an import leaves out."""
    self._skipped.extend(files)

  def _checked_images(
    self, images: np.ndarray | Sequence[bytes]
  ) -> np.ndarray | list[bytes]:
    if self._encoding == 'encoded':
      if not all(isinstance(item, bytes) and item for item in images):
        raise StoreError('images must be bytes that are not empty.')
      return list(images)
    images = np.asarray(images)
    if images.dtype != np.uint8 or images.shape[1:] != self._shape:
      raise StoreError(
        f'images must be uint8 [n, {", ".join(map(str, self._shape))}], got'
        f' {images.dtype} {list(images.shape)}.'
      )
    return images

  def _checked_labels(
    self, labels: Mapping[str, np.ndarray | int], count: int
  ) -> dict[str, np.ndarray]:
    if labels.keys() != self._label_names.keys():
      raise StoreError(
        f'labels must be {sorted(self._label_names)}, got {sorted(labels)}.'
      )
    columns = {}
    for column, values in labels.items():
      values = np.asarray(values)
      classes = len(self._label_names[column])
      if values.dtype.kind not in 'iu' or values.shape not in ((), (count,)):
        raise StoreError(
          f'label {column!r} must be int [{count}] or one int, got'
          f' {values.dtype} {list(values.shape)}.'
        )
      if values.min() < 0 or values.max() >= classes:
        raise StoreError(
          f'label {column!r} must be in [0, {classes}), got'
          f' {values.min()}..{values.max()}.'
        )
      columns[column] = np.broadcast_to(values.astype(np.int32), (count,))
    return columns

  def _append(
    self,
    users: np.ndarray,
    images: np.ndarray | list[bytes],
    columns: Mapping[str, np.ndarray],
  ) -> None:
    """Buffers rows, and writes a shard whenever one is full."""
    start = 0
    while start < len(users):
      stop = min(len(users), start + self._room(images, start))
      owners = users[start:stop]
      ends = np.append(np.flatnonzero(np.diff(owners)) + 1, len(owners))
      begins = np.insert(ends[:-1], 0, 0)
      shard = np.full(len(ends), len(self._shards))
      self._extents.append(
        np.stack(
          [owners[begins], shard, self._rows + begins, ends - begins], axis=1
        ).astype(np.int64)
      )
      self._users.append(owners)
      if self._encoding == 'raw':
        pixels = np.array(images[start:stop])  # Callers may reuse buffers.
        self._images.append(pixels)
        self._pending_bytes += pixels.nbytes
      else:
        self._images.extend(images[start:stop])
        self._pending_bytes += sum(map(len, images[start:stop]))
      for name, values in columns.items():
        self._labels[name].append(values[start:stop])
      self._rows += stop - start
      start = stop
      if self._pending_bytes >= self._shard_bytes:
        self._flush()

  def _room(self, images: np.ndarray | list[bytes], start: int) -> int:
    """Returns how many of the next images fit into the open shard, >= 1."""
    left = self._shard_bytes - self._pending_bytes
    if self._encoding == 'raw':
      return max(1, left // int(np.prod(self._shape)))
    room = 0
    for item in images[start:]:
      left -= len(item)
      if left < 0:
        break
      room += 1
    return max(1, room)

  def _clear(self) -> None:
    self._images: list = []
    self._users: list[np.ndarray] = []
    self._labels: dict[str, list[np.ndarray]] = {
      column: [] for column in self._label_names
    }
    self._rows = 0
    self._pending_bytes = 0

  def _flush(self) -> None:
    if not self._rows:
      return
    if self._encoding == 'raw':
      pixels = np.concatenate(self._images)
      image = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(int(np.prod(self._shape))),
        self._rows,
        [None, pa.py_buffer(pixels)],
      )
    else:
      image = pa.array(self._images, pa.large_binary())
    arrays = {'image': image, 'user': pa.array(np.concatenate(self._users))}
    for column, parts in self._labels.items():
      arrays[column] = pa.array(np.concatenate(parts))
    name = f'shard-{len(self._shards):05d}.arrow'
    self._shards.append(
      store_format.write_batch(
        self._directory / name, pa.RecordBatch.from_pydict(arrays)
      )
    )
    self._clear()

  def _finish(self) -> None:
    if not self._index_of:
      raise StoreError(
        f'store {self._name!r} must hold at least one user, got none.'
      )
    self._flush()
    directory = self._directory
    extents = np.concatenate(self._extents)
    users, ends, classes = (
      store_format.write_batch(directory / name, batch)
      for name, batch in (
        (
          store_format.USERS,
          store_index.users_batch(list(self._index_of), extents),
        ),
        (store_format.EXTENTS, store_index.extents_batch(extents)),
        (store_format.CLASSES, store_index.classes_batch(self._label_names)),
      )
    )
    manifest = store_format.StoreManifest(
      name=self._name,
      image_shape=self._shape,
      encoding=self._encoding,
      num_users=len(self._index_of),
      num_examples=sum(shard.rows for shard in self._shards),
      num_classes={
        column: len(classes) for column, classes in self._label_names.items()
      },
      source=self._source,
      licence=self._licence,
      shards=tuple(self._shards),
      files=(users, ends, classes),
      skipped=tuple(self._skipped),
    )
    manifest.write(directory / store_format.MANIFEST)
