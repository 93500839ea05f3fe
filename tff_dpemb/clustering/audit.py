"""Canaries through the clustering release: does its noise hide one user?

Each trial is a whole release of a small data set, with or without one more
user whose embedding an attacker chose; a fair coin says which. The attacker
knows everything else and the plan, and sees the noisy sums of every pass, which
is what is published and all that is: the mixture follows from them.

Two scores: the likelihood ratio of the two worlds, which nothing can beat; and
the largest similarity of the canary with points sampled from the mixture, which
is what a reader of a synthetic set has.

The other users are public ones, so that an audit reads no private data and
costs no budget.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.clustering import queries
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.audit import bounds

_SAMPLES = 64  # points of the canary's class that its similarity is taken with


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
  """Scores of trials [R], higher for 'in', and which were in.

  Attributes:
    inside: Whether the canary was in the data: a fair coin each.
    likelihood: Log likelihood ratio of the two worlds.
    similarity: Largest cosine with sampled points; -1 if nothing of the
      canary's class was released.
    moved: How far the canary moved the sums, in units of the joint noise, by
      trial: at most 1 / plan.noise_multiplier.
  """

  inside: np.ndarray
  likelihood: np.ndarray
  similarity: np.ndarray
  moved: np.ndarray


def claim_of_plan(plan: plan_lib.ClusteringPlan) -> bounds.Claim:
  """Returns what a clustering plan proves, given the encoder."""
  found = accountant.guarantee_of_event(
    plan.event(),
    delta=plan.delta,
    adjacency=guarantee.Adjacency.ADD_OR_REMOVE_ONE,
    cross_check=False,
  )
  return bounds.Claim(found.epsilon, plan.delta, mu=found.mu_gdp)


def run_trials(
  plan: plan_lib.ClusteringPlan,
  projection: projection_lib.Projection,
  embeddings: np.ndarray,
  labels: np.ndarray,
  users: np.ndarray,
  *,
  trials: int,
  source: noise.NoiseSource,
  rng: np.random.Generator,
  on_trial: Callable[[int], None] = lambda done: None,
) -> Trials:
  """Returns the scores of `trials` releases.

  Args:
    plan: What is audited.
    projection: As of the release.
    embeddings: [n, D] of the other users, PUBLIC here.
    labels: [n] labels of the plan's classes.
    users: [n] users.
    trials: Number of releases, at least 1.
    source: Where the noise is drawn.
    rng: Of coins, classes and directions of canaries, and of samples.
    on_trial: Called with the number of finished trials.

  Raises:
    ClusteringError: No other user, or `trials` is not positive.
  """
  if trials < 1:
    raise errors.ClusteringError(f'trials must be >= 1, got {trials}.')
  if not len(embeddings):
    raise errors.ClusteringError('an audit must have other users, got none.')
  points = projection.project(embeddings)
  indices = mixture_lib.class_indices(labels, plan.classes)
  _, users = np.unique(users, return_inverse=True)
  rows = []
  for done in range(trials):
    inside = bool(rng.random() < 0.5)
    where = int(rng.integers(len(plan.classes)))
    direction = rng.standard_normal(projection.dim)
    # The longest embedding along it; the projection bounds it as any other.
    embedding = projection.basis @ direction
    canary = projection.project((embedding / np.linalg.norm(embedding))[None])
    trial = _Trial(plan, points, indices, users, canary, where, source)
    rows.append((inside, *trial.run(projection, inside=inside, rng=rng)))
    on_trial(done + 1)
  columns = [np.asarray(column) for column in zip(*rows, strict=True)]
  return Trials(*columns)


class _Trial:
  """One release and what an attacker makes of it."""

  def __init__(self, plan, points, indices, users, canary, where, source):
    self._plan = plan
    self._points, self._indices, self._users = points, indices, users
    self._canary, self._where = canary, where
    self._source = source

  def run(
    self,
    projection: projection_lib.Projection,
    *,
    inside: bool,
    rng: np.random.Generator,
  ) -> tuple[float, float, float]:
    """Returns (log likelihood ratio, similarity, how far it moved the sums)."""
    ratio, moved = 0.0, 0.0
    others: queries.Sums = {}
    own: queries.Sums = {}

    def accumulate(i: int, query: queries.Query) -> queries.Sums:
      del i
      nonlocal others, own
      others = query.sums_of(self._points, self._indices, self._users)
      own = query.sums_of(self._canary, np.array([self._where]), np.array([0]))
      return queries.add(others, own) if inside else others

    def release(i: int, sums: queries.Sums) -> queries.Sums:
      nonlocal ratio, moved
      multipliers = self._plan.passes[i].multipliers
      noisy = noise.add_noise(sums, multipliers, source=self._source)
      for name, multiplier in multipliers.items():
        # Off the diagonal of a scatter the noise is 1/sqrt(2) of it and every
        # entry is there twice: the sum over the matrix is right for both.
        scale = multiplier * queries.steps_of(name)
        shift = own[name] / scale
        seen = (noisy[name] - others[name]) / scale
        ratio += float((shift * seen).sum() - 0.5 * np.square(shift).sum())
        moved += float(np.square(shift).sum())
      return noisy

    try:
      found = mixture_lib.fit(
        self._plan, projection, accumulate=accumulate, release=release
      )
    except errors.NothingToRelease:
      return ratio, -1.0, float(np.sqrt(moved))
    return ratio, self._similarity(found, rng), float(np.sqrt(moved))

  def _similarity(
    self, found: mixture_lib.Mixture, rng: np.random.Generator
  ) -> float:
    label = self._plan.classes[self._where]
    if label not in found.classes:
      return -1.0
    sample = found.sample(found.classes.index(label), _SAMPLES, rng=rng)
    own = self._canary[0] / max(np.linalg.norm(self._canary[0]), 1e-12)
    norms = np.maximum(np.linalg.norm(sample, axis=1), 1e-12)
    return float(np.max(sample @ own / norms))
