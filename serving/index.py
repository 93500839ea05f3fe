"""Exact nearest neighbours over stored embeddings, stamped with their model.

```
<path>/vectors.faiss   IndexFlatIP of unit vectors
<path>/items.json      ids and labels, in the order of the vectors
<path>/manifest.json   model digest, dimension, count, hashes
```
A model that is replaced by another of the same dimension makes an index
meaningless without any error; the model digest in the manifest is what finds
it out.

*Exact* means: equal to comparing the query with every vector in float64,
rounding the cosine to float32 and ordering equal scores by position. faiss
computes in float32 with another order of summation for each batch size, so it
proposes candidates and the final order is decided here.
"""

import dataclasses
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import faiss
import numpy as np

from serving import status
from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage

VECTORS = 'vectors.faiss'
ITEMS = 'items.json'
MANIFEST = 'manifest.json'

# Two float32 inner products of unit vectors [D] are off by at most D * 2**-24
# each, whatever the order of summation; twice that for safety.
_SLACK_PER_DIMENSION = 2.0**-22
_SPARE = 16  # candidates fetched beyond k at first


class Manifest(documents.Manifest):
  """`manifest.json` of an index.

  Attributes:
    kind: How the vectors are searched.
    model_digest: Of the export that embedded the items.
    dimension: Numbers in a vector.
    count: Items.
    normalised: The vectors are of unit L2 norm.
    index_digest: The digest of `files`.
  """

  remedy = 'build it again with `dpemb index`'

  schema_name: Literal['dpemb.index/2'] = documents.schema('dpemb.index/2')
  kind: Literal['flat_inner_product'] = 'flat_inner_product'
  model_digest: documents.Sha256
  dimension: documents.PositiveCount
  count: documents.PositiveCount
  normalised: Literal[True] = True
  index_digest: documents.Sha256


@dataclasses.dataclass(frozen=True)
class Neighbour:
  """An item and its cosine with the query."""

  id: str
  label: str
  score: float
  position: int


class Index:
  """A loaded index. Safe to search from several threads."""

  def __init__(
    self,
    flat: faiss.IndexFlatIP,
    *,
    ids: Sequence[str],
    labels: Sequence[str],
    manifest: Manifest,
  ) -> None:
    self._flat = flat
    self._vectors = faiss.rev_swig_ptr(
      flat.get_xb(), flat.ntotal * flat.d
    ).reshape(flat.ntotal, flat.d)
    self.ids = tuple(ids)
    self.labels = tuple(labels)
    self.manifest = manifest

  @property
  def model_digest(self) -> str:
    """Digest of the model that embedded the items."""
    return self.manifest.model_digest

  @property
  def digest(self) -> str:
    """SHA-256 of the index's files (hex)."""
    return self.manifest.index_digest

  @property
  def dimension(self) -> int:
    return self._flat.d

  def __len__(self) -> int:
    return self._flat.ntotal

  def search(
    self, queries: np.ndarray, k: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `k` items nearest to each query, best first.

    Args:
      queries: float32 [Q, D]; normalised here, none may be zero.
      k: Neighbours of each; at most the number of items are returned.

    Returns:
      (scores float32 [Q, K], positions int64 [Q, K]) with K = min(k, items).

    Raises:
      status.InvalidValue: `queries` or `k` breaks a rule.
    """
    if k < 1:
      raise status.InvalidValue(f'k must be >= 1, got {k}.')
    queries = unit_rows(queries, name='queries')
    if queries.shape[1] != self.dimension:
      raise status.InvalidValue(
        f'queries must be [Q, {self.dimension}], got {list(queries.shape)}.'
      )
    k = min(k, len(self))
    scores = np.empty([len(queries), k], np.float32)
    positions = np.empty([len(queries), k], np.int64)
    fetch = min(k + _SPARE, len(self))
    pending = np.arange(len(queries))
    while len(pending):
      rough, candidates = self._flat.search(queries[pending], fetch)
      exact = _cosines(queries[pending], self._vectors, candidates)
      order = np.lexsort((candidates, -exact), axis=1)[:, :k]
      scores[pending] = np.take_along_axis(exact, order, axis=1)
      positions[pending] = np.take_along_axis(candidates, order, axis=1)
      # Whatever faiss left out scores at most its last candidate, plus error.
      slack = self.dimension * _SLACK_PER_DIMENSION
      unsure = rough[:, -1] + slack >= scores[pending, -1]
      if fetch == len(self):
        break
      pending = pending[unsure]
      fetch = min(fetch * 4, len(self))
    return scores, positions

  def neighbours(self, queries: np.ndarray, k: int) -> list[list[Neighbour]]:
    """Returns the nearest items of each query; errors as `search`."""
    scores, positions = self.search(queries, k)
    return [
      [
        Neighbour(self.ids[at], self.labels[at], float(score), int(at))
        for score, at in zip(*row, strict=True)
      ]
      for row in zip(scores, positions, strict=True)
    ]


def exact_search(
  vectors: np.ndarray, queries: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns what `Index.search` must return, by NumPy over all pairs."""
  vectors = unit_rows(vectors, name='vectors')
  queries = unit_rows(queries, name='queries')
  cosines = queries.astype(np.float64) @ vectors.astype(np.float64).T
  cosines = cosines.astype(np.float32)
  order = np.argsort(-cosines, axis=1, kind='stable')[:, :k]
  return np.take_along_axis(cosines, order, axis=1), order


def build(
  path: str | os.PathLike[str],
  embeddings: np.ndarray,
  ids: Sequence[str],
  labels: Sequence[str] | None = None,
  *,
  model_digest: str,
  replace: bool = False,
) -> Index:
  """Writes an index at `path`, atomically, and returns it.

  Args:
    path: Directory to make.
    embeddings: float32 [N, D], N >= 1; normalised here.
    ids: N distinct identifiers.
    labels: N labels; None: no labels.
    model_digest: Digest of the model that made the embeddings.
    replace: Whether an index at `path` may be replaced.

  Raises:
    status.InvalidValue: An argument breaks a rule.
    status.IndexDamaged: `path` exists or could not be written.
  """
  vectors = unit_rows(embeddings, name='embeddings')
  ids = [str(item) for item in ids]
  labels = [''] * len(ids) if labels is None else [str(item) for item in labels]
  for name, items in (('ids', ids), ('labels', labels)):
    if len(items) != len(vectors):
      raise status.InvalidValue(
        f'{name} must be one for each embedding, {len(vectors)}, got'
        f' {len(items)}.'
      )
  if not len(vectors):
    raise status.InvalidValue('embeddings must hold at least 1 row, got 0.')
  if len(set(ids)) != len(ids):
    raise status.InvalidValue(
      f'ids must be distinct, got {len(ids) - len(set(ids))} repeated.'
    )
  if not re.fullmatch('[0-9a-f]{64}', model_digest):
    raise status.InvalidValue(
      "model_digest must be the export's digest (64 hex digits), got"
      f' {model_digest!r}.'
    )
  flat = faiss.IndexFlatIP(vectors.shape[1])
  flat.add(vectors)
  try:
    with storage.atomic_directory(path, replace=replace) as directory:
      data = faiss.serialize_index(flat).tobytes()
      storage.atomic_write_bytes(directory / VECTORS, data)
      storage.atomic_write_json(
        directory / ITEMS, {'ids': ids, 'labels': labels}
      )
      files = {
        name: storage.sha256_of(directory / name) for name in (VECTORS, ITEMS)
      }
      manifest = Manifest(
        model_digest=model_digest,
        dimension=int(vectors.shape[1]),
        count=len(vectors),
        index_digest=documents.digest_of_files(files),
        files=files,
      )
      manifest.write(directory / MANIFEST)
  except storage.ArtifactError as error:
    raise status.IndexDamaged(str(error)) from error
  return Index(flat, ids=ids, labels=labels, manifest=manifest)


def load(path: str | os.PathLike[str]) -> Index:
  """Returns the index at `path`; every file is hashed first.

  Raises:
    status.IndexDamaged: It is missing or not whole.
  """
  path = pathlib.Path(path)
  try:
    manifest = Manifest.read(path / MANIFEST)
    if sorted(manifest.files) != sorted((VECTORS, ITEMS)):
      raise _damaged(path, 'the manifest lists other files than an index has')
    for problem in manifest.file_problems(path):
      raise _damaged(path, problem)
    if manifest.files_digest != manifest.index_digest:
      raise _damaged(path, 'the manifest has another digest than its files')
    items = storage.read_json(path / ITEMS)
    flat: Any = faiss.deserialize_index(
      np.frombuffer((path / VECTORS).read_bytes(), np.uint8)
    )
    found = {flat.ntotal, len(items['ids']), len(items['labels'])}
    if found != {manifest.count} or flat.d != manifest.dimension:
      raise _damaged(path, 'the files and the manifest differ in size')
    return Index(
      flat, ids=items['ids'], labels=items['labels'], manifest=manifest
    )
  except storage.ArtifactError as error:
    raise status.IndexDamaged(str(error)) from error
  except (OSError, KeyError, TypeError, RuntimeError) as error:
    if isinstance(error, status.ServingError):
      raise
    raise _damaged(path, f'{type(error).__name__} while reading') from error


def unit_rows(rows: np.ndarray, *, name: str) -> np.ndarray:
  """Returns float32 [N, D] with rows of unit norm.

  Raises:
    status.InvalidValue: The array is not [N, D], or a row is zero or not
      finite.
  """
  rows = np.asarray(rows)
  if rows.ndim != 2 or rows.shape[1] < 1:
    raise status.InvalidValue(f'{name} must be [N, D], got {list(rows.shape)}.')
  rows = rows.astype(np.float64)
  norms = np.linalg.norm(rows, axis=1, keepdims=True)
  bad = ~(np.isfinite(norms) & (norms > 0))[:, 0]
  if bad.any():
    raise status.InvalidValue(
      f'{name} must be finite and not zero, got {int(bad.sum())} bad of'
      f' {len(rows)} rows, the first at {int(bad.argmax())}.'
    )
  return np.ascontiguousarray(rows / norms, np.float32)


def _cosines(
  queries: np.ndarray, vectors: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
  """Returns float32 [Q, M] cosines of each query with its candidates."""
  found = vectors[candidates].astype(np.float64)
  return np.einsum('qd,qmd->qm', queries.astype(np.float64), found).astype(
    np.float32
  )


def _damaged(path: pathlib.Path, what: str) -> status.IndexDamaged:
  return status.IndexDamaged(
    f'index {str(path)!r} must be whole: {what}; build it again with'
    ' `dpemb index`.'
  )
