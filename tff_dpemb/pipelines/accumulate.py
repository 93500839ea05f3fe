"""Beam job: embeddings -> un-noised integer sums of one query. RESTRICTED.

Sums are int64 on a fixed grid (`clustering.queries`): they do not depend on
order, blocks or retries and equal what NumPy gives on the whole array.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import apache_beam as beam
import numpy as np

from tff_dpemb.clustering import mixture
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.clustering import queries
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import files
from tff_dpemb.pipelines import runner

_ROWS = 'rows'


@dataclasses.dataclass(eq=False)
class SumPart(beam.DoFn):
  """Part index -> its sums. The bound of each user is applied in here.

  Attributes:
    embeddings: Whose parts.
    projection: Public.
    classes: Labels of the declared classes, in their order.
    query: What is summed.
    rows_of_user: File of `write_rows_of_user`; read once a worker.
  """

  embeddings: embed.Embeddings
  projection: projection_lib.Projection
  classes: tuple[int, ...]
  query: queries.Query
  rows_of_user: str

  def setup(self):
    self._rows = files.read_arrays(self.rows_of_user)[_ROWS]

  def process(self, index: int):
    embeddings, labels, users = self.embeddings.read(index)
    yield self.query.sums_of(
      self.projection.project(embeddings),
      mixture.class_indices(labels, self.classes),
      users,
      rows_of_user=self._rows,
    )


@dataclasses.dataclass(eq=False)  # Not frozen: Beam writes into transforms.
class SumQuery(beam.PTransform):
  """Parts -> the sums of a query over all users, in one file."""

  sum_part: SumPart
  path: str

  def expand(self, pipeline):
    return (
      pipeline
      | 'Parts' >> beam.Create(range(self.sum_part.embeddings.parts))
      | 'Spread' >> beam.Reshuffle()
      | 'Sum' >> beam.ParDo(self.sum_part)
      | 'Add' >> beam.CombineGlobally(add_sums, self.sum_part.query)
      | 'Write' >> beam.Map(functools.partial(files.write_arrays, self.path))
    )


@dataclasses.dataclass(eq=False)  # Not frozen: Beam writes into transforms.
class CountRows(beam.PTransform):
  """Parts -> the rows in declared classes of each user, in one file."""

  embeddings: embed.Embeddings
  classes: tuple[int, ...]
  path: str

  def expand(self, pipeline):
    num_users = self.embeddings.manifest.num_users
    return (
      pipeline
      | 'Parts' >> beam.Create(range(self.embeddings.parts))
      | 'Spread' >> beam.Reshuffle()
      | 'Count' >> beam.Map(rows_of_part, self.embeddings, self.classes)
      | 'Collect' >> beam.combiners.ToList()
      | 'Write' >> beam.Map(write_rows, num_users, self.path)
    )


def accumulate(
  embeddings: embed.Embeddings,
  query: queries.Query,
  *,
  projection: projection_lib.Projection,
  classes: tuple[int, ...],
  rows_of_user: files.Path,
  path: files.Path,
  pipeline_options: runner.Options = None,
) -> queries.Sums:
  """Returns the sums of a query over all users and leaves them at `path`."""
  fn = SumPart(embeddings, projection, classes, query, str(rows_of_user))
  with runner.run(pipeline_options) as pipeline:
    _ = pipeline | SumQuery(fn, str(path))
  return files.read_arrays(path)


def add_sums(
  parts: Iterable[queries.Sums], query: queries.Query
) -> queries.Sums:
  """Returns the total: exact integers, so any order and grouping agree."""
  return functools.reduce(queries.add, parts, query.zero())


def write_rows_of_user(
  embeddings: embed.Embeddings,
  *,
  classes: tuple[int, ...],
  path: files.Path,
  pipeline_options: runner.Options = None,
) -> None:
  """Writes the rows in declared classes of each user (8 bytes a user).

  A user's rows may lie in several parts; each row weighs 1 / that number.
  """
  with runner.run(pipeline_options) as pipeline:
    _ = pipeline | CountRows(embeddings, classes, str(path))


def rows_of_part(
  index: int, embeddings: embed.Embeddings, classes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (users, each once, rows in declared classes of each) of a part."""
  _, labels, users = embeddings.read(index)
  return np.unique(users[np.isin(labels, classes)], return_counts=True)


def write_rows(
  parts: Sequence[tuple[np.ndarray, np.ndarray]], num_users: int, path: str
) -> None:
  """Writes the sum over parts of what `rows_of_part` returns."""
  rows = np.zeros(num_users, np.int64)
  for users, counts in parts:
    rows[users] += counts
  files.write_arrays(path, {_ROWS: rows})
