"""The files of a user store, and its manifest.

  manifest.json        what is in the store, and the digest of every file
  shard-00000.arrow    examples: image, user, one int32 column a label
  extents.arrow        where each user's examples lie: shard, start, count
  users.arrow          user ids, first extent, examples, ids in hash order
  classes.arrow        class names of every label column

All but the manifest are Arrow IPC files of one record batch, so that a memory
map is one contiguous array per column and nothing is read until it is used.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tff_dpemb.artifacts import storage

FORMAT = 'dpemb.user_store/1'
MANIFEST = 'manifest.json'
USERS = 'users.arrow'
EXTENTS = 'extents.arrow'
CLASSES = 'classes.arrow'


class StoreError(ValueError):
  """A user store, or what is put into one, that breaks a rule."""


@dataclasses.dataclass(frozen=True)
class FileInfo:
  """One file of a store: its name, rows, size and digest."""

  name: str
  rows: int
  bytes: int
  sha256: str


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


@dataclasses.dataclass(frozen=True)
class StoreManifest:
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
    files: The other files.
    label_names: Class names of each label column; a view of the mapped file.
  """

  name: str
  image_shape: tuple[int, int, int]
  encoding: str
  num_users: int
  num_examples: int
  num_classes: Mapping[str, int]
  source: str
  licence: str
  shards: tuple[FileInfo, ...]
  files: tuple[FileInfo, ...]
  label_names: Mapping[str, Sequence[str]] = dataclasses.field(
    default_factory=dict, compare=False, repr=False
  )

  def to_json(self) -> dict[str, Any]:
    """Returns the JSON object that `manifest_from_json` reads."""
    content = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in ('label_names', 'shards', 'files')
    }
    content['image_shape'] = list(self.image_shape)
    content['num_classes'] = dict(self.num_classes)
    content['shards'] = [dataclasses.asdict(item) for item in self.shards]
    content['files'] = [dataclasses.asdict(item) for item in self.files]
    return {'format': FORMAT, **content}

  @property
  def digest(self) -> str:
    """SHA-256 of the manifest, hence of every file of the store."""
    text = json.dumps(self.to_json(), sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()


def manifest_from_json(content: Any, *, path: pathlib.Path) -> StoreManifest:
  """Returns the manifest of a JSON object.

  Raises:
    StoreError: It is not a manifest of this format.
  """
  if not isinstance(content, dict) or content.get('format') != FORMAT:
    raise StoreError(
      f'{str(path)!r} must be a manifest of format {FORMAT!r}; build the store'
      ' again.'
    )
  fields = {key: value for key, value in content.items() if key != 'format'}
  try:
    fields['image_shape'] = tuple(fields['image_shape'])
    for key in ('shards', 'files'):
      fields[key] = tuple(FileInfo(**item) for item in fields[key])
    return StoreManifest(**fields)
  except (KeyError, TypeError) as error:
    raise StoreError(
      f'{str(path)!r} must be a whole manifest ({error}); build the store'
      ' again.'
    ) from error


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


def hash_of(user_id: str) -> int:
  """Returns the 64-bit hash by which a user id is looked up."""
  digest = hashlib.blake2b(user_id.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')
