"""A published synthetic set: what it is, how it is written and read.

```
<path>/embeddings.parquet   label int32, embedding list<float>
<path>/manifest.json        `manifest.Manifest`
<path>/certificate.json     what certifies both, where it was asked for
```
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.pipelines import files
from tff_dpemb.pipelines import manifest as manifest_lib
from tff_dpemb.privacy.certificate import noise as certificate_noise

EMBEDDINGS = 'embeddings.parquet'
MANIFEST = 'manifest.json'
CERTIFICATE = 'certificate.json'


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticRelease:
  """What is published, or about to be (see `Certify`).

  Attributes:
    path: Directory with embeddings.parquet, manifest.json and what certifies
      them.
    manifest: Of the set.
    event: Composed `dp_accounting` event of every charge of this release.
    embeddings: [examples, D] float32, unit norm.
    labels: [examples] int32, positions in `class_names`.
  """

  path: str
  manifest: manifest_lib.Manifest
  event: Any
  embeddings: np.ndarray = dataclasses.field(repr=False)
  labels: np.ndarray = dataclasses.field(repr=False)

  @property
  def plan(self) -> plan_lib.ClusteringPlan:
    """What was drawn: queries, multipliers and split."""
    return self.manifest.plan

  @property
  def epsilon(self) -> float:
    """Proved epsilon of `event` at `delta`, given the encoder."""
    return self.manifest.epsilon

  @property
  def delta(self) -> float:
    """As asked."""
    return self.manifest.delta

  @property
  def examples(self) -> int:
    """Number of synthetic embeddings."""
    return self.manifest.examples

  @property
  def class_names(self) -> tuple[str, ...]:
    """Name of every declared class, dropped ones included."""
    return tuple(item.name for item in self.manifest.classes)

  @property
  def classes(self) -> tuple[int, ...]:
    """Labels that were published (dropped classes are not in it)."""
    return tuple(
      item.label for item in self.manifest.classes if item.outcome == 'kept'
    )

  def certificate_arguments(self) -> dict[str, Any]:
    """Returns what `certificate.build.for_synthesis` asks about this.

    Each query's `times` counts a pass that was charged again after a crash.
    """
    charges = self.manifest.charges
    asked = [
      certificate_noise.Query(
        name=f'{step.name}/{name}',
        noise_multiplier=multiplier,
        times=charges.count(plan_lib.WHOLE_PLAN) + charges.count(step.name),
      )
      for step in self.plan.passes
      for name, multiplier in step.multipliers.items()
    ]
    least = self.manifest.thresholds.users
    return {
      'queries': asked,
      'norm_bound': self.manifest.projection.norm_bound,
      'covariance_floor': min(
        item.eigenvalue_floor for item in self.manifest.covariance
      ),
      'thresholds': (
        f'a class with fewer than {least:.2f} noisy users is dropped'
      ),
      'dropped_classes': [
        item.name for item in self.manifest.classes if item.outcome == 'dropped'
      ],
      'noise_source': self.manifest.noise.source,
      'fixed_seed': not self.manifest.noise.certifiable,
      'numerics': (
        'Integer sums on a grid of 2^-36 of the norm bound, rounded toward'
        ' zero; discrete Gaussian noise, which adds at most'
        f' {self.plan.discrete_delta():.0e} to delta.'
      ),
    }

  def data_accesses(self) -> dict[str, str]:
    """Returns which facts of the data were used, and whether at a cost."""
    return {
      'projection, norm bounds, covariance target': 'public',
      f'rule of the class set: {self.manifest.class_rule}': 'public',
      'which declared classes the store knows (log of the operator)': (
        'not covered'
      ),
    }


# (release, SHA-256 of embeddings.parquet and manifest.json by file name) ->
# files to publish beside them: `CERTIFICATE` at least. The directory is not
# there yet.
Certify = Callable[[SyntheticRelease, dict[str, str]], Mapping[str, bytes]]


def to_parquet(embeddings: np.ndarray, labels: np.ndarray) -> bytes:
  """Returns embeddings [n, D] and labels [n] as a Parquet file."""
  offsets = np.arange(0, embeddings.size + 1, embeddings.shape[1], np.int32)
  table = pa.table(
    {
      'label': pa.array(labels, pa.int32()),
      'embedding': pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(embeddings.reshape(-1), pa.float32())
      ),
    }
  )
  sink = pa.BufferOutputStream()
  parquet.write_table(table, sink, compression='zstd', use_dictionary=['label'])
  return sink.getvalue().to_pybytes()


def read(path: files.Path) -> tuple[np.ndarray, np.ndarray]:
  """Returns (embeddings [n, D] float32, labels [n] int32) of a published set.

  Raises:
    ArtifactError: The set is missing, damaged or not as published.
    DocumentError: Its manifest is of another form.
  """
  manifest = files.read_document(
    manifest_lib.Manifest, files.join(path, MANIFEST)
  )
  table = files.read_table(
    files.join(path, EMBEDDINGS),
    manifest.files.get(EMBEDDINGS),
    remedy=manifest.remedy,
  )
  flat = table['embedding'].combine_chunks().flatten().to_numpy()
  embeddings = flat.reshape(len(table), manifest.embedding_dim)
  return embeddings, table['label'].to_numpy()


def write(
  made: SyntheticRelease, content: bytes, *, certify: Certify | None
) -> None:
  """Writes a set with what certifies it, unless an equal one is there.

  Args:
    made: The release.
    content: Its embeddings as `to_parquet` returns them.
    certify: Returns what to publish beside them. None: no certificate.

  Raises:
    ClusteringError: `certify` returned no certificate.
    ArtifactError: It could not be written.
  """
  if _is_published(made, certified=certify is not None):
    return
  contents = {EMBEDDINGS: content, MANIFEST: made.manifest.to_bytes()}
  if certify is not None:
    hashes = {
      name: hashlib.sha256(data).hexdigest() for name, data in contents.items()
    }
    extra = certify(made, hashes)
    if CERTIFICATE not in extra or any(
      name in contents or pathlib.PurePath(name).name != name for name in extra
    ):
      raise errors.ClusteringError(
        f'certify must return {CERTIFICATE!r} and other plain file names, got'
        f' {sorted(extra)}.'
      )
    contents.update(extra)
  files.write_directory(made.path, contents, last=MANIFEST)


def _is_published(made: SyntheticRelease, *, certified: bool) -> bool:
  """Returns whether an equal and whole set is at its path already."""
  wanted = [EMBEDDINGS, MANIFEST, *([CERTIFICATE] if certified else [])]
  paths = [files.join(made.path, name) for name in wanted]
  if not all(files.exists(path) for path in paths):
    return False
  try:
    read(made.path)
    return files.read_document(manifest_lib.Manifest, paths[1]) == made.manifest
  except storage.ArtifactError:
    return False  # Damaged, or of an older form: it is written again.
