"""Beam job: user store -> embeddings, one Parquet file a shard. RESTRICTED.

Embeddings of private images are private: they stay in the restricted folder.
Shards are opened inside the DoFn from their index (feeding arrays through
`Create` is 10 to 20 times slower), the model is loaded once a worker.

```
<directory>/part-00000.parquet   user int64, label int32, embedding list<float>
<directory>/manifest.json        `Manifest`; written last, so that without it
                                 there are no embeddings
```
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import apache_beam as beam
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tff_dpemb.artifacts import documents
from tff_dpemb.clustering import errors
from tff_dpemb.data import user_store
from tff_dpemb.export import registry
from tff_dpemb.pipelines import files
from tff_dpemb.pipelines import runner

MANIFEST = 'manifest.json'
_BATCH = 512


class Manifest(documents.Manifest):
  """What was embedded, by what. RESTRICTED: it holds digests of private data.

  Attributes:
    store_digest: Digest of the user store.
    export_digest: Model digest of the export.
    label: The label column, or '' for none.
    rows: Number of embeddings.
    num_users: Number of users of the store; users are 0 .. num_users - 1.
    embedding_dim: D.
  """

  remedy: ClassVar[str] = 'remove its directory and run again'

  schema_name: Literal['dpemb.embeddings/2'] = documents.schema(
    'dpemb.embeddings/2'
  )
  store_digest: documents.Sha256
  export_digest: documents.Sha256
  label: str
  rows: documents.PositiveCount
  num_users: documents.PositiveCount
  embedding_dim: documents.PositiveCount


@dataclasses.dataclass(frozen=True)
class Embeddings:
  """Embedded shards: their directory and its manifest."""

  path: str
  manifest: Manifest

  @property
  def parts(self) -> int:
    """Number of files."""
    return len(self.manifest.files)

  def read(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (embeddings [n, D] float32, labels [n], users [n]) of a part.

    Raises:
      ArtifactError: The part is missing, or not the one that was written.
    """
    table = files.read_table(
      part_path(self.path, index),
      self.manifest.files[part_name(index)],
      remedy=Manifest.remedy,
    )
    flat = table['embedding'].combine_chunks().flatten()
    embeddings = flat.to_numpy(zero_copy_only=False)
    embeddings = embeddings.reshape(len(table), self.manifest.embedding_dim)
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


@dataclasses.dataclass(eq=False)
class EmbedShard(beam.DoFn):
  """Shard index -> (name, SHA-256) of the part that it writes.

  A retried bundle writes the same file again, so retries are harmless. Only
  paths are sent to workers: each opens store and export itself.
  """

  store: str
  export: str
  label: str
  directory: str
  open_export: Callable[[str], Any]

  def setup(self):
    self._store = user_store.UserStore.open(self.store)
    self._export = self.open_export(self.export)

  def process(self, index: int):
    images, labels, users = self._store.read_shard(index)
    content = part_from_arrays(
      embed_images(self._export, images),
      labels[self.label] if self.label else np.full(len(images), -1, np.int32),
      users,
    )
    files.write(part_path(self.directory, index), content, is_private=True)
    yield part_name(index), hashlib.sha256(content).hexdigest()


@dataclasses.dataclass(eq=False)  # Not frozen: Beam writes into transforms.
class EmbedStore(beam.PTransform):
  """Shards of a store -> parts, then their manifest.

  Attributes:
    shards: Number of shards.
    embed_shard: What is done with each.
    manifest: What is known of the parts before they are there.
  """

  shards: int
  embed_shard: EmbedShard
  manifest: Manifest

  def expand(self, pipeline):
    return (
      pipeline
      | 'Shards' >> beam.Create(range(self.shards))
      | 'Spread' >> beam.Reshuffle()
      | 'Embed' >> beam.ParDo(self.embed_shard)
      | 'Collect' >> beam.combiners.ToList()
      | 'Finish'
      >> beam.Map(write_manifest, self.manifest, self.embed_shard.directory)
    )


def embed(
  *,
  store: files.Path,
  export: files.Path,
  label: str,
  directory: files.Path,
  pipeline_options: runner.Options = None,
  open_export: Callable[[str], Any] = registry.open_export,
) -> Embeddings:
  """Embeds a store, or returns what an equal call has left in `directory`.

  Args:
    store: User store; each worker opens it at this path.
    export: A version of an export; each worker opens it at this path.
    label: Label column to keep; '' for none.
    directory: Where the parts go, on any file system; replaced when store or
      export changed.
    pipeline_options: Beam options or flags.
    open_export: How a worker opens the export.

  Raises:
    NothingToRelease: The store has no user or no image.
    StoreError, ExportError, ArtifactError: An input is missing or damaged.
  """
  opened = user_store.UserStore.open(store)
  if not opened.num_users or not opened.num_examples:
    raise errors.NothingToRelease(
      f'nothing to release: {str(store)!r} has no images; add users first.'
    )
  if label:
    opened.num_classes(label)  # An unknown column is refused here.
  encoder = open_export(str(export))
  manifest = Manifest(
    files={},
    store_digest=opened.digest,
    export_digest=encoder.digest,
    label=label,
    rows=opened.num_examples,
    num_users=opened.num_users,
    embedding_dim=encoder.embedding_dim,
  )
  path = files.join(directory, MANIFEST)
  if files.exists(path):
    found = files.read_document(Manifest, path)
    if found.model_copy(update={'files': {}}) == manifest:
      return Embeddings(str(directory), found)
  files.clear(directory)
  fn = EmbedShard(str(store), str(export), label, str(directory), open_export)
  with runner.run(pipeline_options) as pipeline:
    _ = pipeline | EmbedStore(len(opened.shards), fn, manifest)
  return Embeddings(str(directory), files.read_document(Manifest, path))


def embed_images(export: Any, images: np.ndarray) -> np.ndarray:
  """Returns embeddings [n, D] of images [n, height, width, channels]."""
  return np.concatenate(
    [
      export.embed(images[start : start + _BATCH])
      for start in range(0, len(images), _BATCH)
    ]
  )


def part_from_arrays(
  embeddings: np.ndarray, labels: np.ndarray, users: np.ndarray
) -> bytes:
  """Returns the Parquet file of a part."""
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
  return sink.getvalue().to_pybytes()


def write_manifest(
  parts: Sequence[tuple[str, str]], manifest: Manifest, directory: str
) -> None:
  """Completes embeddings: their manifest with (name, SHA-256) of each part."""
  whole = manifest.model_copy(update={'files': dict(sorted(parts))})
  path = files.join(directory, MANIFEST)
  files.write(path, whole.to_bytes(), is_private=True)


def part_name(index: int) -> str:
  """Returns the name of a part."""
  return f'part-{index:05d}.parquet'


def part_path(directory: files.Path, index: int) -> str:
  """Returns the path of a part."""
  return files.join(directory, part_name(index))
