"""The two networks in Keras with a linear softmax head, for any environment."""

import tensorflow as tf

from tff_dpemb.models import lenet
from tff_dpemb.models import mobilenet


def build(work):
  """Returns float32 images [N, H, W, C] -> logits [N, classes]."""
  builders = {
    'lenet': lenet.build_lenet,
    'mobilenet_v2': mobilenet.build_mobilenet_v2,
  }
  backbone = builders[work.model](work.image_shape, work.embedding_dim)
  head = tf.keras.layers.Dense(work.classes, use_bias=False, name='head')
  return tf.keras.Model(backbone.input, head(backbone.output))
