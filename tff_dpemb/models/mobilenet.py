"""MobileNetV2 (arXiv 1801.04381, table 2) with GroupNorm instead of BatchNorm.

The backbone of arXiv 2211.10844 for photographs: two groups a normalisation,
then one dense layer to the embedding.
"""

import tensorflow as tf

from tff_dpemb.models import layers

_GROUPS = 2

# Expansion, output channels, repeats, stride of the first repeat.
_STAGES = (
  (1, 16, 1, 1),
  (6, 24, 2, 2),
  (6, 32, 3, 2),
  (6, 64, 4, 2),
  (6, 96, 3, 1),
  (6, 160, 3, 2),
  (6, 320, 1, 1),
)


def build_mobilenet_v2(
  image_shape: tuple[int, int, int], embedding_dim: int
) -> tf.keras.Model:
  """Returns a MobileNetV2: float32 [N, H, W, C] in [-1, 1] -> float32 [N, D].

  The embedding is not normalised here. With 3 colours and D = 128 it has
  2 387 840 weights, as the reference of arXiv 2211.10844.
  """
  images = tf.keras.Input(shape=image_shape, name='images')
  hidden = tf.keras.layers.Conv2D(
    32, 3, strides=2, padding='same', use_bias=False, name='stem_conv'
  )(images)
  hidden = _normalise_and_activate(hidden, 'stem')
  block = 0
  for expansion, channels, repeats, stride in _STAGES:
    for repeat in range(repeats):
      hidden = _inverted_residual(
        hidden,
        f'block{block}',
        expansion=expansion,
        channels=channels,
        stride=stride if repeat == 0 else 1,
      )
      block += 1
  hidden = tf.keras.layers.Conv2D(1280, 1, use_bias=False, name='last_conv')(
    hidden
  )
  hidden = _normalise_and_activate(hidden, 'last')
  hidden = tf.keras.layers.GlobalAveragePooling2D(name='pool')(hidden)
  embedding = tf.keras.layers.Dense(embedding_dim, name='embedding')(hidden)
  return tf.keras.Model(images, embedding, name='mobilenet_v2')


def _inverted_residual(inputs, name, *, expansion, channels, stride):
  """Expands, filters each channel, projects; adds the input where it fits."""
  hidden = inputs
  if expansion > 1:
    hidden = tf.keras.layers.Conv2D(
      expansion * inputs.shape[-1], 1, use_bias=False, name=f'{name}_expand'
    )(hidden)
    hidden = _normalise_and_activate(hidden, f'{name}_expand')
  hidden = tf.keras.layers.DepthwiseConv2D(
    3, strides=stride, padding='same', use_bias=False, name=f'{name}_depthwise'
  )(hidden)
  hidden = _normalise_and_activate(hidden, f'{name}_depthwise')
  hidden = tf.keras.layers.Conv2D(
    channels, 1, use_bias=False, name=f'{name}_project'
  )(hidden)
  hidden = layers.GroupNormalization(_GROUPS, name=f'{name}_project_norm')(
    hidden
  )
  if stride == 1 and inputs.shape[-1] == channels:
    hidden = tf.keras.layers.Add(name=f'{name}_add')([inputs, hidden])
  return hidden


def _normalise_and_activate(hidden, name):
  hidden = layers.GroupNormalization(_GROUPS, name=f'{name}_norm')(hidden)
  return tf.keras.layers.ReLU(6.0, name=f'{name}_relu')(hidden)
