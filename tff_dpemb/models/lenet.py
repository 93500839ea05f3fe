"""LeNet backbones for 28 x 28 images, as used for EMNIST in arXiv 2211.10844.

Two 5 x 5 convolutions, each followed by 2 x 2 max pooling, and one dense layer
to the embedding. No normalisation layer, hence no state that training updates
besides the trainable weights.
"""

import tensorflow as tf


def build_lenet(
  image_shape: tuple[int, int, int],
  embedding_dim: int,
  *,
  filters: tuple[int, int] = (32, 64),
) -> tf.keras.Model:
  """Returns a LeNet: float32 [N, H, W, C] in [-1, 1] -> float32 [N, D].

  The embedding is not normalised here. With 28 x 28 x 1 images and D = 128 the
  default has 453 632 weights; `filters=(16, 32)` has 214 080.
  """
  images = tf.keras.Input(shape=image_shape, name='images')
  hidden = images
  for index, width in enumerate(filters):
    hidden = tf.keras.layers.Conv2D(
      width, 5, padding='same', activation='relu', name=f'conv{index + 1}'
    )(hidden)
    hidden = tf.keras.layers.MaxPooling2D(2, name=f'pool{index + 1}')(hidden)
  hidden = tf.keras.layers.Flatten(name='flatten')(hidden)
  embedding = tf.keras.layers.Dense(embedding_dim, name='embedding')(hidden)
  return tf.keras.Model(images, embedding, name='lenet')
