"""A two-layer net on embeddings, in NumPy: trains in seconds, no framework.

One hidden ReLU layer and a softmax, Adam with decoupled weight decay. It is
the consumer's view of a synthetic set and the same net is trained on real
embeddings for comparison.
"""

import dataclasses

import numpy as np

from tff_dpemb.clustering import errors

_WEIGHT_DECAY = 1e-4
_LEARNING_RATE = 3e-3
_BATCH = 128


@dataclasses.dataclass(frozen=True, eq=False)
class TwoLayerNet:
  """Weights of a trained net; inputs are scaled by sqrt(D)."""

  classes: np.ndarray
  hidden: np.ndarray
  hidden_bias: np.ndarray
  output: np.ndarray
  output_bias: np.ndarray

  def predict(self, embeddings: np.ndarray) -> np.ndarray:
    """Returns the predicted label of each row [n]."""
    inputs = _scaled(embeddings)
    hidden = np.maximum(inputs @ self.hidden + self.hidden_bias, 0.0)
    logits = hidden @ self.output + self.output_bias
    return self.classes[np.argmax(logits, axis=1)]


def train(
  embeddings: np.ndarray,
  labels: np.ndarray,
  *,
  hidden_units: int,
  epochs: int,
  seed: int = 0,
) -> TwoLayerNet:
  """Returns the net trained on embeddings [n, D] and labels [n].

  Raises:
    ClusteringError: No rows, or shapes disagree.
  """
  embeddings, labels = np.asarray(embeddings), np.asarray(labels)
  if embeddings.ndim != 2 or not len(embeddings):
    raise errors.ClusteringError(
      f'embeddings must be [n >= 1, D], got {list(embeddings.shape)}.'
    )
  if labels.shape != (len(embeddings),):
    raise errors.ClusteringError(
      f'labels must be [{len(embeddings)}], got {list(labels.shape)}.'
    )
  rng = np.random.Generator(np.random.Philox(seed))
  classes, targets = np.unique(labels, return_inverse=True)
  inputs = _scaled(embeddings)
  dim = inputs.shape[1]
  weights = [
    rng.standard_normal((dim, hidden_units)) * np.sqrt(2.0 / dim),
    np.zeros(hidden_units),
    rng.standard_normal((hidden_units, len(classes)))
    * np.sqrt(1.0 / hidden_units),
    np.zeros(len(classes)),
  ]
  weights = [w.astype(np.float32) for w in weights]
  first = [np.zeros_like(w) for w in weights]
  second = [np.zeros_like(w) for w in weights]
  step, total = 0, epochs * max(1, -(-len(inputs) // _BATCH))
  for _ in range(epochs):
    order = rng.permutation(len(inputs))
    for start in range(0, len(order), _BATCH):
      batch = order[start : start + _BATCH]
      gradients = _gradients(weights, inputs[batch], targets[batch])
      step += 1
      rate = _LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / total))
      for i, gradient in enumerate(gradients):
        first[i] = 0.9 * first[i] + 0.1 * gradient
        second[i] = 0.999 * second[i] + 0.001 * gradient**2
        update = first[i] / (1 - 0.9**step)
        update /= np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8
        weights[i] = weights[i] - rate * (update + _WEIGHT_DECAY * weights[i])
  return TwoLayerNet(classes, *weights)


def _scaled(embeddings: np.ndarray) -> np.ndarray:
  inputs = np.asarray(embeddings, np.float32)
  return inputs * np.float32(np.sqrt(inputs.shape[1]))


def _gradients(weights, inputs, targets):
  hidden = np.maximum(inputs @ weights[0] + weights[1], 0.0)
  logits = hidden @ weights[2] + weights[3]
  logits -= logits.max(axis=1, keepdims=True)
  error = np.exp(logits)
  error /= error.sum(axis=1, keepdims=True)
  error[np.arange(len(targets)), targets] -= 1.0
  error /= len(targets)
  back = (error @ weights[2].T) * (hidden > 0)
  return [
    inputs.T @ back,
    back.sum(axis=0),
    hidden.T @ error,
    error.sum(axis=0),
  ]
