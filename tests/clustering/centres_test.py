"""Shrinking centres: nearer to the truth, exact in the limits."""

import numpy as np

from tff_dpemb.clustering import centres as centres_lib

C, DIM = 10, 40


def world(seed, deviation):
  """Centres that vary as the within-class covariance does, plus noise."""
  rng = np.random.default_rng(seed)
  spectrum = np.exp(-np.arange(DIM) / 6)
  truth = rng.normal(size=(C, DIM)) * np.sqrt(spectrum) + 0.5
  noisy = truth + rng.normal(size=truth.shape) * deviation
  return truth, noisy, np.diag(spectrum)


def test_error_falls():
  before, after = 0.0, 0.0
  for seed in range(20):
    truth, noisy, covariance = world(seed, 0.3)
    shrunk = centres_lib.shrink(noisy, np.full(C, 0.09), np.ones(C), covariance)
    before += np.square(noisy - truth).sum()
    after += np.square(shrunk.centres - truth).sum()
  assert after < 0.5 * before


def test_signal_is_estimated_without_bias():
  # Mean of 200 estimates of tau = trace: standard error about 2 %.
  found = []
  for seed in range(200):
    _, noisy, covariance = world(seed, 0.2)
    found.append(
      centres_lib.shrink(
        noisy, np.full(C, 0.04), np.linspace(1, 3, C), covariance
      ).signal
    )
  truth = np.trace(world(0, 0.0)[2])
  assert abs(np.mean(found) / truth - 1) < 0.1


def test_without_noise_nothing_moves():
  truth, _, covariance = world(0, 0.0)
  shrunk = centres_lib.shrink(truth, np.full(C, 1e-15), np.ones(C), covariance)
  np.testing.assert_allclose(shrunk.centres, truth, atol=1e-6)
  assert shrunk.kept > 0.999


def test_pure_noise_collapses_to_the_grand_mean():
  rng = np.random.default_rng(0)
  noisy = rng.normal(size=(C, DIM))
  shrunk = centres_lib.shrink(noisy, np.full(C, 4.0), np.ones(C), np.eye(DIM))
  assert shrunk.signal == 0 and shrunk.kept == 0
  np.testing.assert_allclose(shrunk.centres, np.tile(noisy.mean(0), (C, 1)))


def test_one_centre_or_no_weight_is_left_alone():
  one = np.ones((1, 3))
  assert (
    centres_lib.shrink(one, np.ones(1), np.ones(1), np.eye(3)).centres is one
  )
  two = np.ones((2, 3))
  assert (
    centres_lib.shrink(two, np.ones(2), np.zeros(2), np.eye(3)).centres is two
  )
