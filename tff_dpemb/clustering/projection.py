"""A projection fitted on public embeddings only.

PCA of public embeddings gives the subspace, the centre and the norm bounds of
every private query, so none of them costs budget. Projecting is exact integer
arithmetic in float64 (inputs and basis are multiples of 2^-24), therefore the
result of a row does not depend on the block that it is computed in.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_dpemb.clustering import errors

RADIUS_QUANTILE = 0.95  # of public norms, where no other is given
_GRID = 2.0**24  # steps per unit of embeddings and basis


@dataclasses.dataclass(frozen=True, eq=False)
class Projection:
  """Public linear map of unit embeddings [n, D] to points [n, d], and back.

  Attributes:
    mean: Public mean embedding [D].
    basis: Principal directions [D, d], multiples of 2^-24.
    variances: Public variance along each principal direction [d].
    residual: [D, D - d]; `residual @ standard normal` is a draw of the public
      variation outside the subspace.
    within: Public covariance within a class in the subspace [d, d].
    radius: Norm bound of points (about the public mean).
    within_radius: Norm bound of points about the centre of their class.
  """

  mean: np.ndarray
  basis: np.ndarray
  variances: np.ndarray
  residual: np.ndarray
  within: np.ndarray
  radius: float
  within_radius: float

  @property
  def embedding_dim(self) -> int:
    return self.basis.shape[0]

  @property
  def dim(self) -> int:
    return self.basis.shape[1]

  def project(self, embeddings: np.ndarray) -> np.ndarray:
    """Returns points [n, d] float64 of norm <= `radius`, for every input.

    A row that is not finite, or whose norm overflows, becomes the zero point
    (the public mean). Rows longer than 1 are first scaled to norm 1.

    Raises:
      ClusteringError: `embeddings` is not [n, D].
    """
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or embeddings.shape[1] != self.embedding_dim:
      raise errors.ClusteringError(
        f'embeddings must be [n, {self.embedding_dim}], got'
        f' {list(embeddings.shape)}.'
      )
    rows, finite = _bounded(embeddings, 1.0)
    steps = np.rint(rows * _GRID)
    # |<x, b>| <= ||x|| ||b||, also for partial sums: exact below 2^53.
    points = (steps @ (self.basis * _GRID)) / (_GRID * _GRID)
    points -= (np.rint(self.mean * _GRID) @ (self.basis * _GRID)) / _GRID**2
    points[~finite] = 0.0
    return _bounded(points, self.radius)[0]

  def back_project(
    self, points: np.ndarray, *, rng: np.random.Generator
  ) -> np.ndarray:
    """Returns unit embeddings [n, D] float32 of points [n, d].

    Directions outside the subspace get public variation, so that a model
    trained on the result learns that they do not matter.
    """
    noise = rng.standard_normal((len(points), self.residual.shape[1]))
    embeddings = self.mean + points @ self.basis.T + noise @ self.residual.T
    norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return (embeddings / np.maximum(norms, 1e-12)).astype(np.float32)

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the map as named arrays, for a file."""
    return {
      f.name: np.asarray(getattr(self, f.name), np.float64)
      for f in dataclasses.fields(self)
    }

  def digest(self) -> str:
    """Returns the SHA-256 hex digest of the map."""
    digest = hashlib.sha256()
    for name, value in self.to_arrays().items():
      digest.update(f'{name}{value.shape}'.encode())
      digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def from_arrays(arrays: Mapping[str, np.ndarray]) -> Projection:
  """Returns the map of `Projection.to_arrays`.

  Raises:
    ClusteringError: An array is missing, or one is of no projection.
  """
  wanted = {field.name for field in dataclasses.fields(Projection)}
  if set(arrays) != wanted:
    raise errors.ClusteringError(
      f'projection must be of arrays {sorted(wanted)}, got {sorted(arrays)};'
      ' start a new release.'
    )
  values: dict[str, Any] = dict(arrays)
  for name in ('radius', 'within_radius'):
    values[name] = float(values[name])
  return Projection(**values)


def fit(
  public_embeddings: np.ndarray,
  dim: int,
  *,
  public_labels: np.ndarray | None = None,
  quantile: float = RADIUS_QUANTILE,
) -> Projection:
  """Returns the PCA projection of public embeddings.

  Args:
    public_embeddings: [n, D], unit norm; PUBLIC data only.
    dim: Dimension d of the subspace, 1 <= d <= D.
    public_labels: Class of each public row [n]: used for the covariance and
      the norm bound within a class. Without them the whole public set is one
      class.
    quantile: Quantile of public norms that becomes a norm bound.

  Raises:
    ClusteringError: Too few rows, a bad shape, or `dim` out of range.
  """
  embeddings = np.asarray(public_embeddings, np.float64)
  if embeddings.ndim != 2 or len(embeddings) < 2:
    raise errors.ClusteringError(
      'public embeddings must be [n >= 2, D], got'
      f' {list(embeddings.shape)}; add public images.'
    )
  embeddings, finite = _bounded(embeddings, 1.0)
  embeddings = embeddings[finite]
  if len(embeddings) < 2:
    raise errors.ClusteringError(
      'public embeddings must have at least 2 finite rows, got'
      f' {len(embeddings)}; check the export.'
    )
  if not 1 <= dim <= embeddings.shape[1]:
    raise errors.ClusteringError(
      f'projection_dim must be in [1, {embeddings.shape[1]}] (the embedding'
      f' dimension), got {dim}.'
    )
  mean = embeddings.mean(axis=0)
  centred = embeddings - mean
  values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
  values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
  basis = np.rint(vectors[:, :dim] * _GRID) / _GRID
  points = centred @ basis
  within = points
  if public_labels is not None:
    labels = np.asarray(public_labels)[finite]
    within = points - _class_means(points, labels)
  radius = float(np.quantile(np.linalg.norm(points, axis=1), quantile))
  within_radius = float(np.quantile(np.linalg.norm(within, axis=1), quantile))
  if not radius > 0 or not within_radius > 0:
    raise errors.ClusteringError(
      'public embeddings must differ from each other, got equal rows; check'
      ' the export and the public store.'
    )
  return Projection(
    mean=mean,
    basis=basis,
    variances=values[:dim],
    residual=vectors[:, dim:] * np.sqrt(values[dim:]),
    within=within.T @ within / len(within),
    radius=radius,
    within_radius=min(within_radius, radius),
  )


def _class_means(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns for each row the mean of its class [n, d]."""
  _, inverse, counts = np.unique(
    labels, return_inverse=True, return_counts=True
  )
  sums = np.zeros((len(counts), points.shape[1]))
  np.add.at(sums, inverse, points)
  return (sums / counts[:, None])[inverse]


def _bounded(rows: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns (rows scaled to norm <= radius, which rows were finite [n])."""
  rows = np.asarray(rows, np.float64)
  with np.errstate(over='ignore', invalid='ignore'):
    norms = np.sqrt(np.square(rows).sum(axis=1))
  finite = np.isfinite(norms)
  rows = np.where(finite[:, None], rows, 0.0)
  norms = np.where(finite, norms, 0.0)
  scale = np.minimum(1.0, radius / np.maximum(norms, np.finfo(float).tiny))
  return rows * scale[:, None], finite
