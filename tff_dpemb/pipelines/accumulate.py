"""Beam job: embeddings -> un-noised integer sums of one query. RESTRICTED.

Sums are int64 on a fixed grid (`clustering.queries`): they do not depend on
order, blocks or retries and equal what NumPy gives on the whole array.
"""

import io
import pathlib
import zipfile
from collections.abc import Iterable

import apache_beam as beam
import numpy as np

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import mixture
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.clustering import queries
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import runner


class SumPart(beam.DoFn):
  """Part index -> its sums. The bound of each user is applied in here."""

  def __init__(
    self,
    embeddings: embed.Embeddings,
    *,
    projection: projection_lib.Projection,
    classes: tuple[int, ...],
    query: queries.Query,
    rows_of_user: str,
  ):
    """Keeps small values; `rows_of_user` is a .npy that workers map."""
    self._embeddings = embeddings
    self._projection = projection
    self._classes = classes
    self._query = query
    self._rows_path = rows_of_user
    self._rows: np.ndarray | None = None

  def setup(self):
    self._rows = np.load(self._rows_path, mmap_mode='r')

  def process(self, index: int):
    embeddings, labels, users = self._embeddings.read(index)
    yield self._query.sums_of(
      self._projection.project(embeddings),
      mixture.class_indices(labels, self._classes),
      users,
      rows_of_user=self._rows,
    )


class AddSums(beam.CombineFn):
  """Adds integer sums: exact, so any order and any grouping agree."""

  def __init__(self, query: queries.Query):
    self._query = query

  def create_accumulator(self) -> queries.Sums:
    return self._query.zero()

  def add_input(
    self, mutable_accumulator: queries.Sums, element: queries.Sums
  ) -> queries.Sums:
    return queries.add(mutable_accumulator, element)

  def merge_accumulators(self, accumulators: Iterable[queries.Sums]):
    total = self._query.zero()
    for sums in accumulators:
      total = queries.add(total, sums)
    return total

  def extract_output(self, accumulator: queries.Sums) -> queries.Sums:
    return accumulator


class WriteSums(beam.DoFn):
  """Writes the one result where the driver reads it."""

  def __init__(self, path: str):
    self._path = path

  def process(self, sums: queries.Sums):
    write_sums(self._path, sums)
    yield self._path


def accumulate(
  embeddings: embed.Embeddings,
  query: queries.Query,
  *,
  projection: projection_lib.Projection,
  classes: tuple[int, ...],
  rows_of_user: pathlib.Path,
  path: pathlib.Path,
  pipeline_options: runner.Options = None,
) -> queries.Sums:
  """Returns the sums of a query over all users and leaves them at `path`."""
  fn = SumPart(
    embeddings,
    projection=projection,
    classes=classes,
    query=query,
    rows_of_user=str(rows_of_user),
  )
  with runner.run(pipeline_options) as pipeline:
    _ = (
      pipeline
      | 'Parts' >> beam.Create(range(embeddings.parts))
      | 'Spread' >> beam.Reshuffle()
      | 'Sum' >> beam.ParDo(fn)
      | 'Add' >> beam.CombineGlobally(AddSums(query))
      | 'Write' >> beam.ParDo(WriteSums(str(path)))
    )
  return read_sums(path)


def write_rows_of_user(
  embeddings: embed.Embeddings,
  *,
  classes: tuple[int, ...],
  path: pathlib.Path,
) -> None:
  """Writes the rows in declared classes of each user (.npy, 8 bytes a user).

  A user's rows may lie in several parts; each row weighs 1 / that number.
  """
  rows = np.zeros(embeddings.num_users, np.int64)
  for index in range(embeddings.parts):
    _, labels, users = embeddings.read(index, with_embeddings=False)
    rows += queries.count_rows(
      mixture.class_indices(labels, classes),
      users,
      classes=len(classes),
      num_users=embeddings.num_users,
    )
  buffer = io.BytesIO()
  np.save(buffer, rows)
  storage.atomic_write_bytes(path, buffer.getvalue())


def write_sums(path: str | pathlib.Path, sums: queries.Sums) -> None:
  """Writes integer sums durably, whole or not at all."""
  buffer = io.BytesIO()
  np.savez(buffer, **sums)
  storage.atomic_write_bytes(path, buffer.getvalue())


def read_sums(path: str | pathlib.Path) -> queries.Sums:
  """Returns the sums that `write_sums` wrote.

  Raises:
    ArtifactError: The file is missing or damaged.
  """
  try:
    with np.load(path, allow_pickle=False) as content:
      return {name: content[name] for name in content.files}
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
    raise storage.ArtifactError(
      f'{str(path)!r} is missing or damaged; start a new release.'
    ) from error
