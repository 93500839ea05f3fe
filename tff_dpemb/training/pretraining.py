"""Public pretraining: centralised, on images that nobody has to protect."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tff_dpemb import config
from tff_dpemb.models import embedding_model

_MAX_BYTES = 4 * 2**30
_STEPS_PER_CALL = 25


class PretrainingError(ValueError):
  """Public data that pretraining cannot use."""


@dataclasses.dataclass(frozen=True)
class PretrainingResult:
  """What pretraining did: steps, and the mean loss of the last ones."""

  steps: int
  loss: float
  identities: int
  examples: int


def pretrain(
  backbone: tf.keras.Model,
  pretraining: config.PretrainingConfig,
  *,
  images: np.ndarray,
  labels: np.ndarray,
  head_scale: float,
  seed: int = 0,
  on_progress: Callable[[int, float], None] = lambda steps, loss: None,
) -> PretrainingResult:
  """Trains `backbone` in place with a cosine softmax over all identities.

  Adam with a linear decay of the learning rate to zero; batches are drawn with
  replacement.

  Args:
    backbone: Changed in place.
    pretraining: Steps, batch size and learning rate.
    images: uint8 [n, H, W, C], public.
    labels: int32 [n] in 0 .. K - 1.
    head_scale: Scale of the cosines.
    seed: Of batches and head; public, so a fixed seed is harmless.
    on_progress: Called with the steps done and the mean loss of the last ones.

  Raises:
    PretrainingError: Fewer than two identities, or more than 4 GiB of images.
  """
  classes = int(labels.max()) + 1 if len(labels) else 0
  if classes < 2:
    raise PretrainingError(
      f'the public store must hold at least 2 identities, got {classes}.'
    )
  if images.nbytes > _MAX_BYTES:
    raise PretrainingError(
      f'public images must take at most {_MAX_BYTES} bytes in memory, got'
      f' {images.nbytes}; make a smaller public store.'
    )
  generator = tf.random.Generator.from_seed(seed)
  head = tf.Variable(
    0.1 * generator.normal([int(backbone.output_shape[-1]), classes])
  )
  schedule = tf.keras.optimizers.schedules.PolynomialDecay(
    pretraining.learning_rate, pretraining.steps, end_learning_rate=0.0
  )
  optimizer = tf.keras.optimizers.Adam(schedule)
  variables = [*backbone.trainable_variables, head]
  optimizer.build(variables)
  all_images = tf.constant(images)
  all_labels = tf.constant(labels, tf.int32)

  def step():
    rows = generator.uniform(
      [pretraining.batch_size], maxval=len(images), dtype=tf.int32
    )
    batch = embedding_model.normalise(tf.gather(all_images, rows))
    with tf.GradientTape() as tape:
      logits = embedding_model.cosine_logits(
        backbone(batch, training=True), head, scale=head_scale
      )
      loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
          tf.gather(all_labels, rows), logits
        )
      )
    optimizer.apply_gradients(
      zip(tape.gradient(loss, variables), variables, strict=True)
    )
    return loss

  @tf.function
  def run(steps):
    total = tf.constant(0.0)
    for _ in tf.range(steps):
      total += step()
    return total / tf.cast(steps, tf.float32)

  done, loss = 0, float('nan')
  while done < pretraining.steps:
    steps = min(_STEPS_PER_CALL, pretraining.steps - done)
    loss = float(run(tf.constant(steps)))
    done += steps
    on_progress(done, loss)
  if not np.isfinite(loss):
    raise PretrainingError(
      f'pretraining.learning_rate {pretraining.learning_rate} must be smaller:'
      ' the loss is not finite.'
    )
  return PretrainingResult(done, loss, classes, len(images))
