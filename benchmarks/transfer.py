"""A round of 23.8 million parameters: how much of it is not local training."""

import statistics
import time
from typing import Any

import numpy as np

from benchmarks import rounds
from benchmarks import runner

_IMAGE_SHAPE = (64, 64, 3)
_SIZES = [32] * 8
_ROUNDS = 3
_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))  # of ResNet-50


def measure() -> list[runner.Measure]:
  """Runs the default recipe on a ResNet-50 in one worker."""
  from tff_dpemb.training import process
  from tff_dpemb.training.execution import executors
  from tff_dpemb.training.execution.workers import messages

  backbone = _build_resnet()
  parameters = sum(int(np.prod(v.shape)) for v in backbone.trainable_variables)
  iterative = rounds.build_process(
    backbone, virtual_clients=32, noise_multiplier=0.5
  )
  data = rounds.clients(
    _SIZES, image_shape=_IMAGE_SHAPE, rng=np.random.default_rng(0)
  )
  times = []
  with executors.local(concurrent_calls=2):
    state = iterative.initialize()
    for turn in range(_ROUNDS + 1):
      state, _ = iterative.next(process.with_fresh_noise(state), data)
      last = executors.last_round()
      if turn and last is not None:
        times.append(last)
  parts = {
    name: statistics.median(getattr(t, name) for t in times)
    for name in ('total', 'ship', 'train', 'aggregate', 'server')
  }
  outside = statistics.median(1 - t.train / t.total for t in times)
  return [
    runner.noted('parameters', parameters),
    runner.at_most(
      'share of a round outside local training',
      100 * outside,
      target=15,
      unit='%',
    ),
    *(
      runner.noted(f'{name}, median', value, unit='s')
      for name, value in parts.items()
    ),
    *_measure_encoding(state.weights, messages.encode),
  ]


def _measure_encoding(weights, encode) -> list[runner.Measure]:
  """Our encoding of the weights against TFF's, in turns."""
  import tensorflow_federated as tff

  weights_type = tff.types.to_type([(w.dtype.type, w.shape) for w in weights])
  ours, theirs = [], []
  for _ in range(5):
    start = time.monotonic()
    encode(weights)
    ours.append(time.monotonic() - start)
    start = time.monotonic()
    value, _ = tff.framework.serialize_value(list(weights), weights_type)
    value.SerializeToString()
    theirs.append(time.monotonic() - start)
  return [
    runner.noted('encoding the weights', statistics.median(ours), unit='s'),
    runner.noted("the same by TFF's own", statistics.median(theirs), unit='s'),
  ]


def _build_resnet() -> Any:
  """Returns ResNet-50 (arXiv 1512.03385) with GroupNorm, to 128 dimensions."""
  import tensorflow as tf

  from tff_dpemb.models import embedding_model
  from tff_dpemb.models import layers

  def convolve(values, filters, size, stride=1, relu=True):
    values = tf.keras.layers.Conv2D(
      filters, size, stride, 'same', use_bias=False
    )(values)
    values = layers.GroupNormalization(32)(values)
    return tf.keras.layers.ReLU()(values) if relu else values

  inputs = tf.keras.Input(_IMAGE_SHAPE)
  values = convolve(inputs, 64, 7, 2)
  values = tf.keras.layers.MaxPool2D(3, 2, 'same')(values)
  for stage, (filters, blocks) in enumerate(_BLOCKS):
    for block in range(blocks):
      stride = 2 if stage and not block else 1
      short = values
      if not block:
        short = convolve(values, 4 * filters, 1, stride, relu=False)
      values = convolve(values, filters, 1)
      values = convolve(values, filters, 3, stride)
      values = convolve(values, 4 * filters, 1, relu=False)
      values = tf.keras.layers.ReLU()(values + short)
  values = tf.keras.layers.GlobalAveragePooling2D()(values)
  values = tf.keras.layers.Dense(128, use_bias=False)(values)
  outputs = tf.keras.layers.UnitNormalization()(values)
  model = tf.keras.Model(inputs, outputs)
  embedding_model.check_backbone(model)
  return model
