"""The files of a user store, and its manifest.

  manifest.json        what is in the store, and the digest of every file
  shard-00000.arrow    examples: image, user, one int32 column a label
  extents.arrow        where each user's examples lie: shard, start, count
  users.arrow          user ids, first extent, examples, ids in hash order
  classes.arrow        class names of every label column

All but the manifest are Arrow IPC files of one record batch, so that a memory
map is one contiguous array per column and nothing is read until it is used.
"""

import os
import pathlib
from typing import Any, Literal

import pyarrow as pa

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage

MANIFEST = 'manifest.json'
USERS = 'users.arrow'
EXTENTS = 'extents.arrow'
CLASSES = 'classes.arrow'


class StoreError(ValueError):
  """A user store, or what is put into one, that breaks a rule."""


class FileInfo(documents.Value):
  """One file of a store: its name, rows, size and digest."""

  name: str
  rows: documents.PositiveCount
  bytes: documents.PositiveCount
  sha256: documents.Sha256


class BadFile(documents.Value):
  """A file or folder that an import could not use.

  Attributes:
    file: Its path relative to the input, with `/`; it may name a user.
    reason: The rule that it breaks, and how.
  """

  file: str
  reason: str


class StoreManifest(documents.Document):
  """What a store holds.

  Attributes:
    name: Name of the store, for people.
    image_shape: (height, width, channels) of every image.
    encoding: 'raw' (uint8 pixels) or 'encoded' (PNG, JPEG, ... files).
    num_users: Number of distinct users.
    num_examples: Number of images.
    num_classes: Number of classes of each label column.
    source: Where the images come from.
    licence: Under which terms.
    shards: The files with the examples.
    files: `users.arrow`, `extents.arrow` and `classes.arrow`.
    skipped: What an import left out on its owner's word; names of files are as
      private as the store. Not part of the JSON where there is none, so that
      the digest of a whole import says nothing of it.
  """

  remedy = 'no other form is read'

  schema_name: Literal['dpemb.user_store/2'] = documents.schema(
    'dpemb.user_store/2'
  )
  name: str
  image_shape: tuple[
    documents.PositiveCount, documents.PositiveCount, documents.PositiveCount
  ]
  encoding: Literal['raw', 'encoded']
  num_users: documents.PositiveCount
  num_examples: documents.PositiveCount
  num_classes: dict[str, documents.PositiveCount]
  source: str
  licence: str
  shards: tuple[FileInfo, ...]
  files: tuple[FileInfo, FileInfo, FileInfo]
  skipped: tuple[BadFile, ...] = ()

  def to_json(self) -> dict[str, Any]:
    """Returns the manifest as a JSON object."""
    content = super().to_json()
    if not self.skipped:
      del content['skipped']
    return content


def check_directory(path: pathlib.Path, manifest: str, kind: str) -> None:
  """Checks that a directory holds a manifest, before anything is opened.

  Args:
    path: The directory.
    manifest: The file that makes it one of its kind.
    kind: What it must be, for the error: 'a user store'.

  Raises:
    StoreError: There is no such directory, or it holds no manifest.
  """
  if (path / manifest).is_file():
    return
  if path.is_dir():
    found = f'a directory without {manifest}'
  elif os.path.lexists(path):
    found = 'a file'
  else:
    found = 'no such directory'
    if not path.parent.is_dir():  # Name where the way ends.
      found = f'no directory {str(path.parent)!r}'
  raise StoreError(
    f'{str(path)!r} must be {kind}, got {found}; check the path'
    ' (data.directory of a page), or make the data set with `dpemb data`.'
  )


def read_manifest(path: pathlib.Path) -> StoreManifest:
  """Returns the manifest in a file.

  Raises:
    StoreError: The file is missing, of another form, or breaks a rule.
  """
  try:
    manifest = StoreManifest.read(path)
  except storage.ArtifactError as error:
    raise StoreError(f'{error} Build the store again.') from error
  names = tuple(info.name for info in manifest.files)
  if names != (USERS, EXTENTS, CLASSES):
    raise StoreError(
      f'{str(path)!r}: files must be {USERS}, {EXTENTS} and {CLASSES}, got'
      f' {list(names)}; build the store again.'
    )
  return manifest


def write_batch(path: pathlib.Path, batch: pa.RecordBatch) -> FileInfo:
  """Writes one record batch as an Arrow IPC file and describes the file."""
  with pa.OSFile(str(path), 'wb') as sink:
    with pa.ipc.new_file(sink, batch.schema) as writer:
      writer.write_batch(batch)
  return FileInfo(
    name=path.name,
    rows=batch.num_rows,
    bytes=path.stat().st_size,
    sha256=storage.sha256_of(path),
  )


def map_batch(directory: pathlib.Path, info: FileInfo) -> pa.RecordBatch:
  """Returns the record batch of a file, memory-mapped.

  Raises:
    StoreError: The file is missing, truncated or not Arrow.
  """
  path = directory / info.name
  check_size(path, info)
  try:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if reader.num_record_batches != 1:
      raise pa.ArrowInvalid(f'{reader.num_record_batches} record batches')
    batch = reader.get_batch(0)
  except (OSError, pa.ArrowException) as error:
    raise _damaged(path, str(error).splitlines()[0]) from error
  if batch.num_rows != info.rows:
    raise _damaged(path, f'{batch.num_rows} rows instead of {info.rows}')
  return batch


def check_size(path: pathlib.Path, info: FileInfo) -> None:
  """Checks that a file of the store has the size that it was written with.

  Raises:
    StoreError: The file is missing or its size differs.
  """
  try:
    size = path.stat().st_size
  except OSError as error:
    raise _damaged(path, error.strerror) from error
  if size != info.bytes:
    raise _damaged(path, f'{size} bytes instead of {info.bytes}')


def check_digest(directory: pathlib.Path, info: FileInfo) -> None:
  """Checks a file's size and SHA-256; raises `StoreError` if they differ."""
  path = directory / info.name
  check_size(path, info)
  if storage.sha256_of(path) != info.sha256:
    raise _damaged(path, 'its SHA-256 differs from the manifest')


def _damaged(path: pathlib.Path, reason: str | None) -> StoreError:
  return StoreError(
    f'{str(path)!r} is damaged or missing ({reason}); copy it again from a'
    ' backup or build the store again.'
  )
