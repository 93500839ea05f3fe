"""The two-layer net learns what a line cannot, and its gradient is right."""

import numpy as np
import pytest

from tff_dpemb.clustering import errors
from tff_dpemb.synthesis import classifier


def ring(n, seed):
  """Two classes on the unit circle that no line separates: opposite arcs."""
  rng = np.random.default_rng(seed)
  angles = rng.uniform(0, 2 * np.pi, n)
  labels = np.where(np.sin(2 * angles) > 0, 3, 8)
  return np.stack([np.cos(angles), np.sin(angles)], axis=1), labels


def test_learns_a_class_that_is_not_linear():
  net = classifier.train(*ring(1500, 0), hidden_units=32, epochs=40)
  x, labels = ring(1000, 1)
  assert (net.predict(x) == labels).mean() > 0.93
  assert set(net.predict(x)) == {3, 8}


def test_gradient_is_the_derivative():
  rng = np.random.default_rng(0)
  x, targets = rng.normal(size=(6, 4)), rng.integers(0, 3, 6)
  weights = [rng.normal(size=shape) for shape in ((4, 5), (5,), (5, 3), (3,))]

  def loss():
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    logits = hidden @ weights[2] + weights[3]
    log_sum = np.log(np.exp(logits).sum(axis=1))
    return (log_sum - logits[np.arange(6), targets]).mean()

  gradients = classifier._gradients(weights, x, targets)
  for weight, gradient in zip(weights, gradients):
    index = (0,) * weight.ndim
    weight[index] += 1e-6
    high = loss()
    weight[index] -= 2e-6
    low = loss()
    weight[index] += 1e-6
    assert gradient[index] == pytest.approx((high - low) / 2e-6, abs=1e-6)


def test_same_seed_gives_the_same_net():
  data = ring(100, 0)
  nets = [
    classifier.train(*data, hidden_units=4, epochs=2, seed=s) for s in (1, 1, 2)
  ]
  np.testing.assert_array_equal(nets[0].hidden, nets[1].hidden)
  assert (nets[0].hidden != nets[2].hidden).any()


def test_one_class_is_always_predicted():
  net = classifier.train(np.eye(3), np.full(3, 6), hidden_units=2, epochs=1)
  assert net.predict(np.eye(3)).tolist() == [6, 6, 6]


@pytest.mark.parametrize(
  'x, labels, message',
  [
    (np.zeros((0, 2)), np.zeros(0), 'n >= 1'),
    (np.zeros((3, 2)), np.zeros(2), r'labels must be \[3\]'),
  ],
)
def test_wrong_shapes_are_refused(x, labels, message):
  with pytest.raises(errors.ClusteringError, match=message):
    classifier.train(x, labels, hidden_units=2, epochs=1)
