"""Layers that train under user-level DP and convert to TensorFlow Lite."""

import tensorflow as tf


class GroupNormalization(tf.keras.layers.Layer):
  """Normalises groups of channels of each image (arXiv 1803.08494, section 3).

  In value it is Keras' own layer of that name, and no statistic of the data is
  kept: nothing leaves a virtual client but trained weights. Unlike Keras' own
  layer it converts to TensorFlow Lite with a batch size that may change
  (tensorflow issue 57554): it works on tensors of rank 4 and below alone, whose
  only unknown dimension is the batch.

  [N, H, W, C] -> [N, H, W, C] of the layer's compute dtype; H, W and C must be
  known. Means and variances are float32 in any case: 8 bits of mantissa, as
  bfloat16 has, lose them.
  """

  def __init__(self, groups: int, *, epsilon: float = 1e-3, **kwargs):
    """Makes the layer.

    Args:
      groups: G; it must divide the number of channels.
      epsilon: Added to the variance.
      **kwargs: Of `tf.keras.layers.Layer`.

    Raises:
      ValueError: `groups` or `epsilon` is not positive.
    """
    super().__init__(**kwargs)
    if groups < 1:
      raise ValueError(f'groups must be >= 1, got {groups}.')
    if not epsilon > 0:
      raise ValueError(f'epsilon must be > 0, got {epsilon}.')
    self.groups = groups
    self.epsilon = epsilon

  def build(self, input_shape):
    channels = input_shape[-1]
    if len(input_shape) != 4 or None in tuple(input_shape)[1:]:
      raise ValueError(
        'the input must have shape [N, H, W, C] with H, W and C known, got'
        f' {tuple(input_shape)}.'
      )
    if channels % self.groups:
      raise ValueError(
        f'groups must divide the {channels} channels, got {self.groups}.'
      )
    self.gamma = self.add_weight(
      'gamma', [channels], initializer='ones', experimental_autocast=False
    )
    self.beta = self.add_weight(
      'beta', [channels], initializer='zeros', experimental_autocast=False
    )
    super().build(input_shape)

  def call(self, inputs):
    # Sums run over pixels first: along channels memory is contiguous, and what
    # is left to sum over a group is tiny.
    exact = tf.cast(inputs, tf.float32)
    mean = self._group_mean(exact)
    variance = self._group_mean(tf.math.squared_difference(exact, mean))
    scale = tf.math.rsqrt(variance + self.epsilon) * self.gamma
    shift = self.beta - mean * scale
    return inputs * tf.cast(scale, inputs.dtype) + tf.cast(shift, inputs.dtype)

  def _group_mean(self, values: tf.Tensor) -> tf.Tensor:
    """Returns the mean over pixels and groups, [N, 1, 1, C]."""
    channels = values.shape[-1]
    size = channels // self.groups
    by_channel = tf.reduce_mean(values, axis=[1, 2])
    grouped = tf.reshape(by_channel, [-1, self.groups, size])
    mean = tf.reduce_mean(grouped, axis=2, keepdims=True)
    return tf.reshape(tf.tile(mean, [1, 1, size]), [-1, 1, 1, channels])

  def get_config(self):
    return {
      **super().get_config(),
      'groups': self.groups,
      'epsilon': self.epsilon,
    }
