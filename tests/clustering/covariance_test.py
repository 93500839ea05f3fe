"""Noisy covariances become positive definite at any amount of noise."""

import numpy as np
import pytest

from tff_dpemb.clustering import covariance


def noise(dim, scale, seed):
  rng = np.random.default_rng(seed)
  upper = np.triu(rng.normal(size=(dim, dim)) * scale / np.sqrt(2), 1)
  return upper + upper.T + np.diag(rng.normal(size=dim) * scale)


@pytest.mark.parametrize('scale', [0.0, 1e-3, 0.1, 10.0, 1e6])
def test_result_is_positive_definite_and_can_be_sampled(scale):
  dim = 24
  truth = np.diag(np.linspace(0.1, 2, dim)) / dim
  for seed in range(5):
    repaired = covariance.repair(
      truth + noise(dim, scale, seed),
      np.eye(dim) / dim,
      noise_energy=scale**2 * dim * (dim + 1) / 2,
    )
    assert np.linalg.eigvalsh(repaired.matrix).min() >= repaired.floor * 0.99
    assert np.isfinite(np.linalg.cholesky(repaired.matrix)).all()
    assert 0 <= repaired.shrinkage <= 1


def test_without_noise_nothing_changes():
  matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
  repaired = covariance.repair(matrix, np.eye(2), noise_energy=0.0)
  np.testing.assert_allclose(repaired.matrix, matrix)
  assert repaired.floored == 0 and repaired.shrinkage == 0


def test_pure_noise_gives_the_public_target():
  target = np.diag([1.0, 2.0, 3.0])
  repaired = covariance.repair(np.zeros((3, 3)), target, noise_energy=1e4)
  np.testing.assert_allclose(repaired.matrix, target)
  assert repaired.shrinkage == 1


def test_negative_eigenvalues_are_floored_and_counted():
  repaired = covariance.repair(
    np.diag([4.0, -1.0, -2.0]), np.eye(3), noise_energy=0.0
  )
  assert repaired.floored == 2
  assert repaired.floor > 0


def test_shrinking_helps():
  # Distance to the truth, averaged over 20 noisy copies, must fall.
  dim, scale = 20, 0.03
  truth = np.diag(np.linspace(0.5, 1.5, dim)) / dim
  raw, fixed = 0.0, 0.0
  for seed in range(20):
    noisy = truth + noise(dim, scale, seed)
    energy = scale**2 * dim * (dim + 1) / 2
    repaired = covariance.repair(noisy, np.eye(dim) / dim, noise_energy=energy)
    raw += np.square(noisy - truth).sum()
    fixed += np.square(repaired.matrix - truth).sum()
  assert fixed < 0.2 * raw


def test_values_that_are_not_finite_count_as_zero():
  matrix = np.array([[np.nan, np.inf], [-np.inf, 1.0]])
  repaired = covariance.repair(matrix, np.eye(2), noise_energy=0.1)
  assert np.isfinite(repaired.matrix).all()
