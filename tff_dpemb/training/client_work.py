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

_EMBEDDED_AT_ONCE = 128
# Not TensorFlow's own 'gradients': by that name its memory optimizer recomputes
# activations, which costs time and breaks fused convolutions apart.
_BACKWARD = 'backward'


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
    of the last epoch's steps, each batch measured as its step saw it: before
    that step (private, never released). They cost no pass of their own.
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
  if tuning.aggregate_head:
    backbone, head = weights[:-1], weights[-1]
  else:
    backbone = weights
    classes = tf.reduce_max(data.labels) + 1
    head = 0.1 * tf.random.stateless_normal(
      tf.stack([pure.embedding_dim, classes]), data.seed
    )
  if tuning.mode == 'head_first':
    embeddings = _embed(pure, backbone, data.images)
    head = fit_head(tuning, embeddings, data.labels, head)
  trained, metrics = fit_backbone(
    pure, tuning, data, backbone, head, trains_head=tuning.mode == 'joint'
  )
  after = trained if tuning.aggregate_head else trained[: len(backbone)]
  return [x - y for x, y in zip(weights, after, strict=True)], metrics


def _embed(pure, backbone, images):
  """Returns embeddings [n, D], n > 0, a chunk of images at a time.

  Activations of one chunk are alive at a time, however many images a client
  holds; a chunk is large enough to keep every core busy.
  """
  examples = tf.shape(images)[0]
  chunks = (examples + _EMBEDDED_AT_ONCE - 1) // _EMBEDDED_AT_ONCE

  def embed_chunk(index, parts):
    start = index * _EMBEDDED_AT_ONCE
    chunk = images[start : start + _EMBEDDED_AT_ONCE]
    embeddings = pure.apply(backbone, embedding_model.normalise(chunk))
    return index + 1, parts.write(index, embeddings)

  parts = tf.TensorArray(
    tf.float32,
    size=chunks,
    element_shape=[None, pure.embedding_dim],
    infer_shape=False,
  )
  _, parts = tf.while_loop(
    lambda index, _: index < chunks,
    embed_chunk,
    (0, parts),
    parallel_iterations=1,
  )
  return parts.concat()


def fit_head(tuning, embeddings, labels, head):
  """Returns the head [D, k] after full-batch momentum steps.

  Args:
    tuning: The recipe.
    embeddings: Of the client's images, by the frozen backbone [n, D].
    labels: int32 [n], each < k.
    head: The head to start from [D, k].
  """

  def step(index, head, velocity):
    logits = embedding_model.cosine_logits(
      embeddings, head, scale=tuning.head_scale
    )
    loss = tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    )
    (gradient,) = tf.gradients(loss, [head], name=_BACKWARD)
    velocity = tuning.head_momentum * velocity + gradient
    return index + 1, head - tuning.head_learning_rate * velocity, velocity

  return tf.while_loop(
    lambda index, *_: index < tuning.head_steps,
    step,
    (0, head, tf.zeros_like(head)),
    parallel_iterations=1,
  )[1]


def fit_backbone(pure, tuning, data, backbone, head, *, trains_head):
  """Trains the backbone, and the head if `trains_head`, in small batches.

  The last batch of an epoch may be short, which is cheaper than a padded one:
  kernels for its shape are made once for each of the `batch_size` shapes there
  can be, and are then kept.

  Returns:
    The backbone, then the head if it is trained; and the metrics.
  """
  examples = tf.shape(data.labels)[0]
  size = tuning.batch_size
  steps_per_epoch = (examples + size - 1) // size
  steps = steps_per_epoch * tuning.backbone_epochs
  order = tf.concat(
    [
      tf.random.experimental.stateless_shuffle(
        tf.range(examples), data.seed + tf.constant([0, epoch + 1])
      )
      for epoch in range(tuning.backbone_epochs)
    ],
    axis=0,
  )
  variables = [*backbone, head] if trains_head else list(backbone)
  rates = [tuning.backbone_learning_rate] * len(backbone)
  momenta = [tuning.backbone_momentum] * len(backbone)
  if trains_head:
    rates.append(tuning.head_learning_rate)
    momenta.append(tuning.head_momentum)

  def step(index, variables, velocities, loss_sum, correct):
    epoch = index // steps_per_epoch
    start = (index - epoch * steps_per_epoch) * size
    stop = tf.minimum(start + size, examples)
    rows = order[epoch * examples + start : epoch * examples + stop]
    labels = tf.gather(data.labels, rows)
    images = embedding_model.normalise(tf.gather(data.images, rows))
    logits = embedding_model.cosine_logits(
      pure.apply(variables[: len(backbone)], images),
      variables[-1] if trains_head else head,
      scale=tuning.head_scale,
    )
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    gradients = tf.gradients(tf.reduce_mean(losses), variables, name=_BACKWARD)
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
    hits = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
    is_last_epoch = index >= steps - steps_per_epoch
    loss_sum += tf.where(is_last_epoch, tf.reduce_sum(losses), 0.0)
    hit_sum = tf.reduce_sum(tf.cast(hits, tf.float32))
    correct += tf.where(is_last_epoch, hit_sum, 0.0)
    return index + 1, variables, velocities, loss_sum, correct

  velocities = [tf.zeros_like(variable) for variable in variables]
  _, variables, _, loss_sum, correct = tf.while_loop(
    lambda index, *_: index < steps,
    step,
    (0, variables, velocities, 0.0, 0.0),
    parallel_iterations=1,
  )
  return variables, {
    'loss_sum': loss_sum,
    'correct': correct,
    'examples': tf.cast(examples, tf.float32),
  }
