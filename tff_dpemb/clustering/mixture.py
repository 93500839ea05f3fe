"""User-level DP Gaussian mixture per class, by noisy Lloyd rounds.

One algorithm for both shells: `fit` is given a function that sums a query over
all users (NumPy over an array, or a Beam job) and one that releases the sums
(adds noise once). Everything after a release is post-processing.

Guarantee: user-level (epsilon, delta) of `plan`, add-or-remove one user.
Released: the noisy sums of every pass, hence the mixture. Class set, public
projection, radii, thresholds and shrinkage target are public.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_dpemb.clustering import centres as centres_lib
from tff_dpemb.clustering import covariance
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.clustering import queries

MINIMUM_USERS = 5.0  # a noisy class below this is dropped
_STDDEVS = 3.0  # ... as is one below this many deviations of its noise

Accumulate = Callable[[int, queries.Query], queries.Sums]
Release = Callable[[int, queries.Sums], queries.Sums]


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
  """A released mixture in the projected space.

  Attributes:
    classes: Public label of each kept class [K'].
    weights: Weight of each component within its class [K', k], rows sum to 1.
    centres: [K', k, d].
    covariances: [K', d, d], positive definite.
    noisy_users: Noisy number of users of each kept class [K'].
    outcomes: For each *declared* class: label, noisy users, 'kept' or
      'dropped', and the reason.
    diagnostics: Thresholds, shrinkage, floors: JSON values.
  """

  classes: tuple[int, ...]
  weights: np.ndarray
  centres: np.ndarray
  covariances: np.ndarray
  noisy_users: np.ndarray
  outcomes: tuple[dict[str, Any], ...]
  diagnostics: dict[str, Any]

  def sample(
    self, class_index: int, size: int, *, rng: np.random.Generator
  ) -> np.ndarray:
    """Returns [size, d] points of one class. Post-processing: no budget."""
    component = rng.choice(
      self.weights.shape[1], size=size, p=self.weights[class_index]
    )
    root = np.linalg.cholesky(self.covariances[class_index])
    normal = rng.standard_normal((size, root.shape[0]))
    return self.centres[class_index][component] + normal @ root.T


def fit(
  plan: plan_lib.ClusteringPlan,
  projection: projection_lib.Projection,
  *,
  accumulate: Accumulate,
  release: Release,
) -> Mixture:
  """Returns the mixture; asks `accumulate`, then `release`, once a pass.

  Args:
    plan: What is asked, pass by pass.
    projection: Public.
    accumulate: (index of the pass, its query) -> sums over all users. PRIVATE.
    release: (index of the pass, its sums) -> noisy sums.

  Raises:
    NothingToRelease: No declared class has enough users (after the release,
      which stays charged).
    ClusteringError: Plan and projection disagree.
  """
  if projection.dim != plan.projection_dim:
    raise errors.ClusteringError(
      f'projection must have dim {plan.projection_dim}, got {projection.dim}.'
    )
  classes, dim = len(plan.classes), plan.projection_dim
  centres = np.zeros((classes, 1, dim))
  users = np.zeros(classes)
  weights = np.ones((classes, 1))
  precision = np.zeros((classes, 1))  # 1 / variance of the centres so far
  scatter = None
  for i, step in enumerate(plan.passes):
    if i == 1 and plan.components_per_class > 1:
      centres = _spread(centres[:, 0], projection, plan.components_per_class)
    query = queries.Query(
      centres=centres,
      radius=projection.radius if i == 0 else projection.within_radius,
      counts=step.counts is not None,
      scatter='none' if step.scatter is None else plan.covariance,
    )
    noisy = release(i, accumulate(i, query))
    if step.counts is not None:
      counts = noisy['counts'].reshape(centres.shape[:2]) / queries.COUNT_STEPS
      if i == 0:
        users = counts.sum(axis=1)
      weights = _weights(counts, step.counts)
    per_cell = np.maximum(users[:, None] * weights, 1.0)
    shifts = noisy['sums'].reshape(centres.shape) / queries.COUNT_STEPS
    shifts = shifts * (query.radius / per_cell[:, :, None])
    deviation = step.sums * query.radius / per_cell
    fresh = deviation**-2
    if centres.shape[1] == 1:  # Earlier rounds measured the same centre.
      shifts *= (fresh / (fresh + precision))[:, :, None]
      fresh = fresh + precision
    precision = fresh
    if step.scatter is not None:
      scatter = _covariances(
        noisy['scatter'], query, step.scatter, users, weights, shifts
      )
    centres = _clip(centres + shifts, projection.radius)
  return _finish(
    plan, projection, centres, 1 / precision, weights, users, scatter
  )


def fit_array(
  plan: plan_lib.ClusteringPlan,
  projection: projection_lib.Projection,
  embeddings: np.ndarray,
  labels: np.ndarray,
  users: np.ndarray,
  *,
  source: noise.NoiseSource,
) -> Mixture:
  """Returns the mixture of one array of embeddings [n, D] (see `fit`).

  Args:
    plan: What is asked and what it costs.
    projection: Fitted on public embeddings.
    embeddings: [n, D] PRIVATE.
    labels: Public label of each row [n]; labels not in the plan are dropped.
    users: User of each row [n], any integers.
    source: Noise source.

  Raises:
    NothingToRelease: `embeddings` has no row, or as `fit`.
  """
  if not len(embeddings):
    raise errors.NothingToRelease('nothing to release: no embedding was given.')
  points = projection.project(embeddings)
  indices = class_indices(labels, plan.classes)

  def release(i, sums):
    return noise.add_noise(sums, plan.passes[i].multipliers, source=source)

  return fit(
    plan,
    projection,
    accumulate=lambda _, query: query.sums_of(points, indices, users),
    release=release,
  )


def class_indices(labels: np.ndarray, classes: Sequence[int]) -> np.ndarray:
  """Returns the position in `classes` of each label [n], -1 where absent."""
  labels = np.asarray(labels)
  order = np.argsort(classes)
  ordered = np.asarray(classes)[order]
  position = np.searchsorted(ordered, labels)
  position = np.minimum(position, len(ordered) - 1)
  return np.where(ordered[position] == labels, order[position], -1)


def threshold(plan: plan_lib.ClusteringPlan) -> float:
  """Returns the noisy number of users below which a class is dropped."""
  return max(MINIMUM_USERS, _STDDEVS * plan.passes[0].multipliers['counts'])


def _spread(
  means: np.ndarray, projection: projection_lib.Projection, components: int
) -> np.ndarray:
  """Returns starting centres [K, k, d]: class means plus public directions.

  Component j lies one public standard deviation from the mean along a public
  principal direction, in opposite pairs; no private data enters but the
  released means.
  """
  values, vectors = np.linalg.eigh(projection.within)
  axes = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1].T
  offsets = [
    axes[(j // 2) % len(axes)]
    * (1 if j % 2 == 0 else -1)
    * (1 + j // (2 * len(axes)))
    for j in range(components)
  ]
  return means[:, None, :] + np.asarray(offsets)


def _weights(counts: np.ndarray, deviation: float) -> np.ndarray:
  """Returns component weights [K, k]; noisy counts in the noise weigh zero."""
  if counts.shape[1] == 1:
    return np.ones(counts.shape)
  kept = np.where(counts >= deviation, counts, 0.0)
  empty = kept.sum(axis=1) <= 0
  kept[empty] = 1.0
  return kept / kept.sum(axis=1, keepdims=True)


def _covariances(
  noisy: np.ndarray,
  query: queries.Query,
  multiplier: float,
  users: np.ndarray,
  weights: np.ndarray,
  shifts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (noisy covariances [S, d, d], noise energy of each [S])."""
  dim = shifts.shape[2]
  unit = query.radius**2
  moments = noisy * (unit / queries.SCATTER_STEPS)
  present = np.maximum(users, 0.0)[:, None] * weights  # [K, k]
  correction = np.einsum('kc,kcd,kce->kde', present, shifts, shifts)
  totals = np.maximum(present.sum(axis=1), 1.0)
  if query.scatter == 'pooled':
    totals = np.maximum(totals.sum(keepdims=True), 1.0)
    correction = correction.sum(axis=0, keepdims=True)
  estimates = (moments - correction) / totals[:, None, None]
  # dim diagonal entries of variance s^2, dim (dim - 1) others of s^2 / 2.
  energy = (multiplier * unit / totals) ** 2 * dim * (dim + 1) / 2
  return estimates, energy


def _clip(centres: np.ndarray, radius: float) -> np.ndarray:
  norms = np.linalg.norm(centres, axis=-1, keepdims=True)
  return centres * np.minimum(1.0, radius / np.maximum(norms, 1e-12))


def _finish(
  plan, projection, centres, variances, weights, users, scatter
) -> Mixture:
  least = threshold(plan)
  keep = np.flatnonzero(users >= least)
  outcomes = []
  for index, label in enumerate(plan.classes):
    kept = bool(users[index] >= least)
    outcome = {
      'label': label,
      'noisy_users': float(users[index]),
      'outcome': 'kept' if kept else 'dropped',
    }
    if not kept:
      outcome['reason'] = f'noisy users below the threshold {least:.2f}'
    outcomes.append(outcome)
  if not len(keep):
    raise errors.NothingToRelease(
      f'nothing to release: none of the {len(plan.classes)} declared classes'
      f' has at least {least:.1f} users (noisy); declare larger classes or'
      ' raise epsilon. The release stays charged.'
    )
  repaired = [
    covariance.repair(matrix, projection.within, noise_energy=float(energy))
    for matrix, energy in zip(*scatter)
  ]
  of_class = [repaired[k if len(repaired) > 1 else 0] for k in keep]
  covariances = np.stack([item.matrix for item in of_class])
  shrunk = centres_lib.shrink(
    centres[keep].reshape(-1, plan.projection_dim),
    variances[keep].reshape(-1),
    (users[keep, None] * weights[keep]).reshape(-1),
    covariances.mean(axis=0),
  )
  return Mixture(
    classes=tuple(plan.classes[k] for k in keep),
    weights=weights[keep],
    centres=shrunk.centres.reshape(centres[keep].shape),
    covariances=covariances,
    noisy_users=users[keep],
    outcomes=tuple(outcomes),
    diagnostics={
      'user_threshold': least,
      'centres': {'signal': shrunk.signal, 'kept': shrunk.kept},
      'covariance': [
        {
          'shrinkage_to_public': item.shrinkage,
          'eigenvalue_floor': item.floor,
          'eigenvalues_floored': item.floored,
        }
        for item in repaired
      ],
    },
  )
