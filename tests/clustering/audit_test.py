"""The audit of the clustering release finds what is broken, and only that."""

import dataclasses

import numpy as np
import pytest

from tff_dpemb.clustering import audit as clustering_audit
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.privacy.audit import bounds

_CLASSES, _DIM, _USERS = 3, 6, 90


@dataclasses.dataclass(frozen=True)
class _Weaker:
  """Noise of a fraction of the scale that was asked for."""

  inner: noise.SeededGaussian
  share: float
  certifiable: bool = False
  description: str = 'too weak (test)'

  def draw(self, scale, size):
    return self.inner.draw(scale * self.share, size)


@pytest.fixture(scope='module', name='world')
def _world():
  """Returns (plan, projection, embeddings, labels, users)."""
  rng = np.random.default_rng(0)
  labels = np.arange(_USERS) % _CLASSES
  embeddings = rng.standard_normal([_CLASSES, 16])[labels]
  embeddings += 0.4 * rng.standard_normal([_USERS, 16])
  embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
  plan = plan_lib.build(
    tuple(range(_CLASSES)), epsilon=2.0, delta=1e-5, projection_dim=_DIM
  )
  projection = projection_lib.fit(embeddings, _DIM, public_labels=labels)
  return plan, projection, embeddings, labels, np.arange(_USERS)


def _audit(world, source, *, trials=400, seed=0):
  plan = world[0]
  found = clustering_audit.run_trials(
    *world, trials=trials, source=source, rng=np.random.default_rng(seed)
  )
  result = bounds.audit(
    found.likelihood[found.inside],
    found.likelihood[~found.inside],
    claim=clustering_audit.claim_of_plan(plan),
    coins=True,
  )
  return found, result


def test_the_canary_moves_the_sums_by_almost_what_is_accounted(world):
  """Never more than 1 / noise_multiplier; the attack is the worst case."""
  most = 1 / world[0].noise_multiplier
  found, _ = _audit(world, noise.SeededGaussian(0), trials=50)
  assert found.moved.max() <= most * (1 + 1e-6)
  assert found.moved.mean() >= 0.95 * most


def test_the_likelihood_ratio_has_the_deviation_of_its_gaussians(world):
  """N(+-m^2/2, m^2) in and out: standardised means within 5 sigma."""
  found, _ = _audit(world, noise.SeededGaussian(1))
  for inside, sign in ((True, 1), (False, -1)):
    chosen = found.inside == inside
    moved = found.moved[chosen]
    z = (found.likelihood[chosen] - sign * moved**2 / 2) / moved
    assert abs(z.mean()) < 5 / np.sqrt(chosen.sum())
    assert 0.8 < z.std() < 1.2


def test_the_exact_noise_is_consistent(world):
  """The production noise; a false alarm has at most 5 %, in fact far less."""
  found, result = _audit(world, noise.DiscreteGaussian(), trials=200)
  assert result.verdict == bounds.CONSISTENT
  assert (found.similarity >= -1).all() and (found.similarity <= 1).all()


def test_a_third_of_the_noise_is_a_violation(world):
  _, result = _audit(world, _Weaker(noise.SeededGaussian(2), 1 / 3))
  assert result.verdict == bounds.VIOLATION
  assert result.lower_bound > result.claim.epsilon


def test_a_user_without_its_bound_is_a_violation(world, monkeypatch):
  """The norm bound of a row is taken ten times too wide: sums move by 10."""
  from tff_dpemb.clustering import queries

  honest = queries.Query.sums_of

  def unbounded(self, points, labels, users, **options):
    sums = honest(self, points, labels, users, **options)
    return sums if len(points) > 1 else {n: 10 * v for n, v in sums.items()}

  monkeypatch.setattr(queries.Query, 'sums_of', unbounded)
  found, result = _audit(world, noise.SeededGaussian(3), trials=200)
  assert found.moved.mean() > 5 / world[0].noise_multiplier
  assert result.verdict == bounds.VIOLATION


def test_bad_input(world):
  plan, projection, embeddings, labels, users = world
  arguments = {
    'trials': 1,
    'source': noise.SeededGaussian(0),
    'rng': np.random.default_rng(0),
  }
  with pytest.raises(errors.ClusteringError, match='other users, got none'):
    clustering_audit.run_trials(
      plan, projection, embeddings[:0], labels[:0], users[:0], **arguments
    )
  with pytest.raises(errors.ClusteringError, match='trials must be >= 1'):
    clustering_audit.run_trials(*world, **(arguments | {'trials': 0}))
