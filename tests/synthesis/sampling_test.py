"""Samples follow the mixture, and the same seed gives the same set."""

import numpy as np
import pytest

from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.synthesis import sampling

D, DIM = 10, 3


def released():
  centres = np.zeros((2, 2, DIM))
  centres[0, 0, 0], centres[0, 1, 0], centres[1, :, 1] = 0.5, -0.5, 0.4
  return mixture_lib.Mixture(
    classes=(4, 9),
    weights=np.array([[0.75, 0.25], [1.0, 0.0]]),
    centres=centres,
    covariances=np.stack([np.diag([1e-4, 4e-4, 1e-4])] * 2),
    noisy_users=np.array([40.0, 30.0]),
    outcomes=(),
    diagnostics={},
  )


def projection():
  rows = np.random.default_rng(0).normal(size=(200, D)) + 1
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  return projection_lib.fit(rows, DIM, quantile=1.0)


def test_set_has_the_asked_shape():
  embeddings, labels = sampling.sample(
    released(), projection(), examples_per_class=30, seed=1
  )
  assert embeddings.shape == (60, D) and embeddings.dtype == np.float32
  assert labels.tolist() == [4] * 30 + [9] * 30
  np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)


def test_points_have_weights_centres_and_covariance():
  points = released().sample(0, 20_000, rng=np.random.default_rng(0))
  right = points[:, 0] > 0
  # Standard errors: .003 of the share, 1e-4 of a mean.
  assert abs(right.mean() - 0.75) < 0.02
  assert abs(points[right, 0].mean() - 0.5) < 1e-3
  assert points[:, 1].std() == pytest.approx(0.02, rel=0.05)


def test_seed_decides():
  args = (released(), projection())
  first = sampling.sample(*args, examples_per_class=5, seed=1)[0]
  again = sampling.sample(*args, examples_per_class=5, seed=1)[0]
  other = sampling.sample(*args, examples_per_class=5, seed=2)[0]
  np.testing.assert_array_equal(first, again)
  assert (first != other).any()


def test_seed_of_a_release_is_fixed():
  assert sampling.seed_of('a') == sampling.seed_of('a')
  assert sampling.seed_of('a') != sampling.seed_of('b')


def test_no_example_is_refused():
  with pytest.raises(errors.ClusteringError, match='examples_per_class'):
    sampling.sample(released(), projection(), examples_per_class=0, seed=1)
