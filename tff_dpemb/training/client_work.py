"""Local fine-tuning of one virtual client (arXiv 2211.10844, section 3).

`head_first`: a fresh cosine-softmax head is fitted on *cached* embeddings with
the backbone frozen (one forward pass instead of one a step), then the backbone
is trained with that head frozen. `joint`: head and backbone in every step.
Either way only the difference of the aggregated weights leaves; the head and
everything else that was computed stays here.

The work is a function of tensors, not of a `tf.data` sequence: one trace
serves every client size, and the same graph runs in any executor.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from tff_dpemb.models import embedding_model


@dataclasses.dataclass(frozen=True)
class LocalTuning:
  """How a virtual client trains. Learning rates are of momentum SGD."""

  mode: Literal['head_first', 'joint']
  aggregate_head: bool  # A global head: trained jointly and aggregated.
  num_classes: int  # Of the global head; a local head has one per identity.
  head_scale: float
  head_steps: int
  head_learning_rate: float
  head_momentum: float
  backbone_epochs: int
  batch_size: int
  backbone_learning_rate: float
  backbone_momentum: float


class ClientData(
  collections.namedtuple('ClientData', ['images', 'labels', 'seed'])
):
  """What one virtual client holds in a round.

  images: uint8 [n, H, W, C]; n may differ by client and may be 0.
  labels: int32 [n]; 0 .. k - 1 within the client, or global with a global head.
  seed: int32 [2]; of the head's initialisation and the order of examples.
  """


def client_update(
  pure: embedding_model.PureBackbone,
  tuning: LocalTuning,
  weights: Sequence[tf.Tensor],
  data: ClientData,
) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
  """Returns the update (weights before - after) and local metrics.

  A client without images returns zeros. The update is not bounded here: that
  is the aggregator's duty, whatever comes out of this function.

  Args:
    pure: The backbone.
    tuning: The recipe.
    weights: The broadcast weights: the backbone's, then the global head
      [D, num_classes] if `tuning.aggregate_head`.
    data: See `ClientData`.

  Returns:
    The update, like `weights`; and metrics `loss_sum`, `correct`, `examples`
    of the trained model on the client's own data (private, never released).
  """
  weights = [tf.convert_to_tensor(weight) for weight in weights]

  def work():
    return _train(pure, tuning, weights, data)

  def rest():
    zeros = [tf.zeros_like(weight) for weight in weights]
    return zeros, {
      'loss_sum': tf.constant(0.0),
      'correct': tf.constant(0.0),
      'examples': tf.constant(0.0),
    }

  return tf.cond(tf.shape(data.labels)[0] > 0, work, rest)


def _train(pure, tuning, weights, data):
  images = embedding_model.normalise(data.images)
  labels = data.labels
  if tuning.aggregate_head:
    backbone, head = weights[:-1], weights[-1]
  else:
    backbone = weights
    classes = tf.reduce_max(labels) + 1
    head = 0.1 * tf.random.stateless_normal(
      tf.stack([pure.embedding_dim, classes]), data.seed
    )
  if tuning.mode == 'head_first':
    embeddings = pure.apply(backbone, images)
    head = _fit_head(tuning, embeddings, labels, head)
  trains_head = tuning.mode == 'joint'
  backbone, head = _fit_backbone(
    pure, tuning, images, labels, backbone, head, data.seed, trains_head
  )
  logits = embedding_model.cosine_logits(
    pure.apply(backbone, images), head, scale=tuning.head_scale
  )
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
  metrics = {
    'loss_sum': tf.reduce_sum(losses),
    'correct': tf.reduce_sum(tf.cast(hits, tf.float32)),
    'examples': tf.cast(tf.shape(labels)[0], tf.float32),
  }
  after = [*backbone, head] if tuning.aggregate_head else backbone
  return [x - y for x, y in zip(weights, after, strict=True)], metrics


def _fit_head(tuning, embeddings, labels, head):
  """Full-batch momentum steps on fixed embeddings [n, D]."""

  def step(index, head, velocity):
    logits = embedding_model.cosine_logits(
      embeddings, head, scale=tuning.head_scale
    )
    loss = tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    )
    (gradient,) = tf.gradients(loss, [head])
    velocity = tuning.head_momentum * velocity + gradient
    return index + 1, head - tuning.head_learning_rate * velocity, velocity

  return tf.while_loop(
    lambda index, *_: index < tuning.head_steps,
    step,
    (0, head, tf.zeros_like(head)),
    parallel_iterations=1,
  )[1]


def _fit_backbone(
  pure, tuning, images, labels, backbone, head, seed, trains_head
):
  """Mini-batch momentum steps; the last batch of an epoch may be short."""
  examples = tf.shape(labels)[0]
  size = tuning.batch_size
  steps_per_epoch = (examples + size - 1) // size
  order = tf.concat(
    [
      tf.random.experimental.stateless_shuffle(
        tf.range(examples), seed + tf.constant([0, epoch + 1])
      )
      for epoch in range(tuning.backbone_epochs)
    ],
    axis=0,
  )
  variables = [*backbone, head] if trains_head else list(backbone)
  velocities = [tf.zeros_like(variable) for variable in variables]
  rates = [tuning.backbone_learning_rate] * len(backbone)
  momenta = [tuning.backbone_momentum] * len(backbone)
  if trains_head:
    rates.append(tuning.head_learning_rate)
    momenta.append(tuning.head_momentum)

  def step(index, variables, velocities):
    epoch = index // steps_per_epoch
    start = (index - epoch * steps_per_epoch) * size
    stop = tf.minimum(start + size, examples)
    rows = order[epoch * examples + start : epoch * examples + stop]
    weights = variables[: len(backbone)]
    batch_head = variables[-1] if trains_head else head
    logits = embedding_model.cosine_logits(
      pure.apply(weights, tf.gather(images, rows)),
      batch_head,
      scale=tuning.head_scale,
    )
    loss = tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.gather(labels, rows), logits
      )
    )
    gradients = tf.gradients(loss, variables)
    velocities = [
      momentum * velocity + tf.convert_to_tensor(gradient)
      for momentum, velocity, gradient in zip(
        momenta, velocities, gradients, strict=True
      )
    ]
    variables = [
      variable - rate * velocity
      for variable, rate, velocity in zip(
        variables, rates, velocities, strict=True
      )
    ]
    return index + 1, variables, velocities

  _, variables, _ = tf.while_loop(
    lambda index, *_: index < steps_per_epoch * tuning.backbone_epochs,
    step,
    (0, variables, velocities),
    parallel_iterations=1,
  )
  if trains_head:
    return variables[:-1], variables[-1]
  return variables, head
