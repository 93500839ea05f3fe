"""Streams of noise: two rounds by hand, and restarts."""

import numpy as np

from tff_dpemb.privacy.mechanisms import noise_stream


def _half_of_the_last(rounds):
  """y_t = z_t - y_t-1 / 2: one buffer that keeps the last y."""
  ones = np.ones((rounds, 1))
  return noise_stream.NoiseStream(
    read=0.5 * ones,
    keep=np.zeros((rounds, 1, 1)),
    write_noise=ones,
    write_fresh=0 * ones,
  )


def test_by_hand():
  stream = _half_of_the_last(4)
  assert (stream.rounds, stream.buffers) == (4, 1)
  found = stream.noise(np.array([[8.0, 0.0], [0.0, 4.0], [0.0, 0.0]]))
  np.testing.assert_array_equal(found, [[8, 0], [-4, 4], [2, -2]])


def test_fresh_noise_and_kept_buffers_by_hand():
  """S_t+1 = S_t / 2 + z_t is read: y_t = z_t - S_t."""
  ones = np.ones((3, 1))
  stream = noise_stream.NoiseStream(
    ones, 0.5 * np.ones((3, 1, 1)), 0 * ones, ones
  )
  found = stream.noise(np.array([4.0, 2.0, 1.0]))
  # S: 0, 4, 4.
  np.testing.assert_array_equal(found, [4, -2, -3])


def test_a_restart_forgets_the_buffers():
  stream = _half_of_the_last(2).restarted(5, 2)
  found = stream.noise(np.array([8.0, 0.0, 0.0, 0.0, 6.0]))
  np.testing.assert_array_equal(found, [8, -4, 0, 0, 6])
  assert stream.rounds == 5
  whole = _half_of_the_last(3)
  assert whole.restarted(3, 0) is whole
