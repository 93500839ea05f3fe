"""Beam job: user store -> embeddings, one Parquet file a shard. RESTRICTED.

Embeddings of private images are private: they stay in the restricted folder.
Shards are opened inside the DoFn from their index (feeding arrays through
`Create` is 10 to 20 times slower), the model is loaded once a worker.

```
<directory>/part-00000.parquet   user int64, label int32, embedding list<float>
<directory>/manifest.json        digests of store and export, rows, users, dim
```
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.data import user_store
from tff_dpemb.export import registry
from tff_dpemb.pipelines import runner

SCHEMA = 'dpemb.embeddings/1'
_BATCH = 512


@dataclasses.dataclass(frozen=True)
class Embeddings:
  """Embedded shards on disk.

  Attributes:
    path: Their directory.
    store_digest: Digest of the user store.
    export_digest: Model digest of the export.
    label: The label column, or '' where the store has none.
    parts: Number of files.
    rows: Number of embeddings.
    num_users: Number of users of the store; users are 0 .. num_users - 1.
    embedding_dim: D.
  """

  path: pathlib.Path
  store_digest: str
  export_digest: str
  label: str
  parts: int
  rows: int
  num_users: int
  embedding_dim: int

  def read(
    self, index: int, *, with_embeddings: bool = True
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (embeddings [n, D] float32, labels [n], users [n]) of a part.

    Raises:
      ArtifactError: The part is missing or damaged.
    """
    path = part_path(self.path, index)
    columns = ['user', 'label'] + ['embedding'] * with_embeddings
    try:
      table = parquet.read_table(path, columns=columns, memory_map=True)
    except (OSError, pa.ArrowException) as error:
      raise storage.ArtifactError(
        f'{str(path)!r} is missing or damaged; remove {str(self.path)!r} and'
        ' run again.'
      ) from error
    embeddings = np.zeros((len(table), 0), np.float32)
    if with_embeddings:
      column = table['embedding'].combine_chunks()
      embeddings = column.flatten().to_numpy(zero_copy_only=False)
      embeddings = embeddings.reshape(len(table), self.embedding_dim)
    return embeddings, table['label'].to_numpy(), table['user'].to_numpy()

  def read_all(
    self, *, max_rows: int | None = None
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the triple of `read` for all parts, or the first `max_rows`."""
    parts, rows = [], 0
    for index in range(self.parts):
      parts.append(self.read(index))
      rows += len(parts[-1][1])
      if max_rows is not None and rows >= max_rows:
        break
    embeddings, labels, users = (
      np.concatenate([part[i] for part in parts])[:max_rows] for i in range(3)
    )
    return embeddings, labels, users


class EmbedShard(beam.DoFn):
  """Shard index -> (index, rows); writes the part of that shard.

  A retried bundle writes the same file again, so retries are harmless.
  """

  def __init__(
    self,
    *,
    store: str,
    export: str,
    label: str,
    directory: str,
    open_export: Callable[[str], Any],
  ):
    """Keeps paths only: what is opened is opened by each worker."""
    self._store_path = store
    self._export_path = export
    self._label = label
    self._directory = directory
    self._open_export = open_export
    self._store: Any = None
    self._export: Any = None

  def setup(self):
    self._store = user_store.UserStore.open(self._store_path)
    self._export = self._open_export(self._export_path)

  def process(self, index: int):
    images, labels, users = self._store.read_shard(index)
    embeddings = np.concatenate(
      [
        self._export.embed(images[start : start + _BATCH])
        for start in range(0, len(images), _BATCH)
      ]
    )
    if self._label:
      labels = labels[self._label]
    else:
      labels = np.full(len(images), -1, np.int32)
    write_part(part_path(self._directory, index), embeddings, labels, users)
    yield index, len(users)


def embed(
  *,
  store: str | pathlib.Path,
  export: str | pathlib.Path,
  label: str,
  directory: str | pathlib.Path,
  pipeline_options: runner.Options = None,
  open_export: Callable[[str], Any] = registry.open_export,
) -> Embeddings:
  """Embeds a store, or returns what an equal call has left in `directory`.

  Args:
    store: User store.
    export: A version of an export.
    label: Label column to keep; '' for none.
    directory: Where the parts go; replaced when store or export changed.
    pipeline_options: Beam options or flags.
    open_export: How a worker opens the export.

  Raises:
    NothingToRelease: The store has no user or no image.
    StoreError, ExportError, ArtifactError: An input is missing or damaged.
  """
  directory = pathlib.Path(directory)
  opened = user_store.UserStore.open(store)
  if not opened.num_users or not opened.num_examples:
    raise errors.NothingToRelease(
      f'nothing to release: {str(store)!r} has no images; add users first.'
    )
  if label:
    opened.num_classes(label)  # An unknown column is refused here.
  inputs = {
    'store_digest': opened.digest,
    'export_digest': open_export(str(export)).digest,
    'label': label,
  }
  if (directory / 'manifest.json').exists():
    found = _open(directory)
    if all(getattr(found, name) == value for name, value in inputs.items()):
      return found
  with storage.atomic_directory(directory, replace=True) as temporary:
    fn = EmbedShard(
      store=str(store),
      export=str(export),
      label=label,
      directory=str(temporary),
      open_export=open_export,
    )
    with runner.run(pipeline_options) as pipeline:
      _ = (
        pipeline
        | 'Shards' >> beam.Create(range(len(opened.shards)))
        | 'Spread' >> beam.Reshuffle()
        | 'Embed' >> beam.ParDo(fn)
      )
    first = parquet.read_schema(part_path(temporary, 0))
    storage.atomic_write_json(
      temporary / 'manifest.json',
      {
        'schema': SCHEMA,
        **inputs,
        'parts': len(opened.shards),
        'rows': opened.num_examples,
        'num_users': opened.num_users,
        'embedding_dim': first.field('embedding').type.list_size,
      },
    )
  return _open(directory)


def write_part(
  path: str | pathlib.Path,
  embeddings: np.ndarray,
  labels: np.ndarray,
  users: np.ndarray,
) -> None:
  """Writes one part, whole or not at all."""
  embeddings = np.ascontiguousarray(embeddings, np.float32)
  values = pa.array(embeddings.reshape(-1), pa.float32())
  table = pa.table(
    {
      'user': pa.array(users, pa.int64()),
      'label': pa.array(labels, pa.int32()),
      'embedding': pa.FixedSizeListArray.from_arrays(
        values, embeddings.shape[1]
      ),
    }
  )
  sink = pa.BufferOutputStream()
  parquet.write_table(table, sink, compression='none', use_dictionary=False)
  storage.atomic_write_bytes(path, sink.getvalue().to_pybytes())


def part_path(directory: str | pathlib.Path, index: int) -> pathlib.Path:
  """Returns the path of a part."""
  return pathlib.Path(directory) / f'part-{index:05d}.parquet'


@functools.lru_cache(maxsize=4)
def _cached(path: pathlib.Path, stamp: int) -> Embeddings:
  del stamp
  content = storage.read_json(path / 'manifest.json')
  if content.pop('schema', None) != SCHEMA:
    raise storage.ArtifactError(
      f'{str(path)!r} must have schema {SCHEMA!r}; remove it and run again.'
    )
  return Embeddings(path=path, **content)


def _open(path: pathlib.Path) -> Embeddings:
  return _cached(path, (path / 'manifest.json').stat().st_mtime_ns)
