"""The three private queries of one pass over the users, on an integer grid.

Every user's rows are weighted 1/m, m = the user's rows in declared classes,
so that the user's whole contribution to a query, over all classes jointly, is
bounded whatever the rows are:

| query   | a user adds, in units of 2^36 grid steps          | L2 sensitivity |
|---------|---------------------------------------------------|----------------|
| counts  | [C]: sum of 1/m over the component's rows         | 1              |
| sums    | [C, d]: sum of r/m, r = residual / radius         | 1              |
| scatter | [S, d, d]: sum of r r^T / m                       | 1 (Frobenius)  |

for adding or removing one user. Residuals are points minus the centre of
their component, clipped to `radius`. Values are truncated toward zero *row by
row* before they are summed: truncation cannot lengthen a row, so rounding
costs no sensitivity, and sums of integers do not depend on order or blocks.
"""

import dataclasses
import math

import numpy as np

from tff_dpemb.clustering import errors

COUNT_STEPS = 2.0**36  # grid steps of one user: int64 holds 2^27 users
SCATTER_STEPS = 2.0**36  # of one user's scatter (rows: 2^18 steps)
_ROW_STEPS = 2.0**18
_SHRINK = 1.0 - 2.0**-40  # pays for the rounding of float64 arithmetic
_CHUNK = 2**14  # rows; float64 sums of scatter stay exact below 2^53

Sums = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Query:
  """One pass: what is summed, about which centres, within which radius.

  Attributes:
    centres: Public or already released centres [K, k, d]: k components of
      each of K declared classes.
    radius: Norm bound of a row's residual, > 0.
    counts: Whether the pass asks for them.
    scatter: 'none', 'pooled' (one matrix over all classes) or 'per_class'.
  """

  centres: np.ndarray
  radius: float
  counts: bool = True
  scatter: str = 'none'

  def __post_init__(self):
    if self.centres.ndim != 3 or not np.isfinite(self.centres).all():
      raise errors.ClusteringError(
        'centres must be finite [classes, components, dim], got shape'
        f' {list(self.centres.shape)}.'
      )
    if not (math.isfinite(self.radius) and self.radius > 0):
      raise errors.ClusteringError(
        f'radius must be finite and > 0, got {self.radius}.'
      )
    if self.scatter not in ('none', 'pooled', 'per_class'):
      raise errors.ClusteringError(
        "scatter must be 'none', 'pooled' or 'per_class', got"
        f' {self.scatter!r}.'
      )

  def zero(self) -> Sums:
    """Returns the sums of no user."""
    classes, components, dim = self.centres.shape
    sums = {'sums': np.zeros((classes * components, dim), np.int64)}
    if self.counts:
      sums['counts'] = np.zeros(classes * components, np.int64)
    if self.scatter != 'none':
      matrices = classes if self.scatter == 'per_class' else 1
      sums['scatter'] = np.zeros((matrices, dim, dim), np.int64)
    return sums

  def sums_of(
    self,
    points: np.ndarray,
    labels: np.ndarray,
    users: np.ndarray,
    *,
    rows_of_user: np.ndarray | None = None,
  ) -> Sums:
    """Returns the un-noised integer sums of a block of rows. PRIVATE.

    Args:
      points: [n, d]; any values, non-finite rows count as the zero point.
      labels: [n] int index of the declared class; others (-1) are dropped.
      users: [n] int.
      rows_of_user: [users] rows in declared classes of each user in *all*
        blocks, indexed by user. Without it every user must have all rows in
        this one block.

    Raises:
      ClusteringError: Shapes disagree.
    """
    points, labels, users = (np.asarray(a) for a in (points, labels, users))
    classes, _, dim = self.centres.shape
    if (
      points.ndim != 2
      or points.shape[1] != dim
      or labels.shape != (len(points),)
      or users.shape != labels.shape
    ):
      raise errors.ClusteringError(
        f'points must be [n, {dim}] with labels [n] and users [n], got'
        f' {list(points.shape)}, {list(labels.shape)}, {list(users.shape)}.'
      )
    declared = (labels >= 0) & (labels < classes)
    points, labels, users = points[declared], labels[declared], users[declared]
    result = self.zero()
    if not len(points):
      return result
    _, inverse, here = np.unique(users, return_inverse=True, return_counts=True)
    rows = here[inverse].astype(np.float64)
    if rows_of_user is not None:  # Never fewer than what is seen here.
      rows = np.maximum(rows, np.asarray(rows_of_user)[users])
    for start in range(0, len(points), _CHUNK):
      part = slice(start, start + _CHUNK)
      self._add(result, points[part], labels[part], rows[part])
    return result

  def _add(
    self,
    result: Sums,
    points: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
  ) -> None:
    component, residuals = self._assign(points, labels)
    cell = labels.astype(np.int64) * self.centres.shape[1] + component
    if self.counts:
      weights = np.floor(COUNT_STEPS / rows).astype(np.int64)
      np.add.at(result['counts'], cell, weights)
    steps = np.trunc(residuals * (COUNT_STEPS / rows)[:, None])
    _add_by_cell(result['sums'], cell, steps.astype(np.int64))
    if self.scatter == 'none':
      return
    steps = np.trunc(residuals * (_ROW_STEPS / np.sqrt(rows))[:, None])
    if self.scatter == 'pooled':
      result['scatter'][0] += np.rint(steps.T @ steps).astype(np.int64)
      return
    for label in np.unique(labels):
      mine = steps[labels == label]
      result['scatter'][label] += np.rint(mine.T @ mine).astype(np.int64)

  def _assign(
    self, points: np.ndarray, labels: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns (nearest component of the class [n], residual / radius)."""
    points = np.asarray(points, np.float64)
    with np.errstate(over='ignore', invalid='ignore'):
      finite = np.isfinite(np.square(points).sum(axis=1))
    points = np.where(finite[:, None], points, 0.0)
    offsets = points[:, None, :] - self.centres[labels]  # [n, k, d]
    with np.errstate(over='ignore'):
      distances = np.sqrt(np.square(offsets).sum(axis=2))
    component = np.argmin(distances, axis=1)
    index = np.arange(len(points))
    residuals = offsets[index, component]
    norms = distances[index, component]
    scale = _SHRINK / np.maximum(norms, self.radius)  # of an infinite norm: 0
    return component, residuals * scale[:, None]


def add(left: Sums, right: Sums) -> Sums:
  """Returns the sums of two disjoint sets of users."""
  return {name: left[name] + right[name] for name in left}


def steps_of(name: str) -> float:
  """Returns the L2 sensitivity of a query in grid steps (add-or-remove)."""
  return SCATTER_STEPS if name == 'scatter' else COUNT_STEPS


def _add_by_cell(total: np.ndarray, cell: np.ndarray, steps: np.ndarray):
  """Adds integer rows [n, d] to their cells [C, d], exactly."""
  order = np.argsort(cell, kind='stable')
  cells, starts = np.unique(cell[order], return_index=True)
  total[cells] += np.add.reduceat(steps[order], starts, axis=0)
