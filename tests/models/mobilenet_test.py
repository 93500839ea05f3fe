"""MobileNetV2: its published size, its shapes, and that it can be trained."""

import numpy as np
import pytest
import tensorflow as tf

from tff_dpemb import config
from tff_dpemb.models import embedding_model

_MODEL = config.ModelConfig(backbone='mobilenet_v2')


def test_it_has_the_weights_of_the_reference():
  """2 387 840: arXiv 2211.10844's MobileNetV2 with GroupNorm at 224 px."""
  backbone = embedding_model.build_backbone(_MODEL, (224, 224, 3))
  assert backbone.count_params() == 2_387_840


def test_it_has_the_weights_of_keras_but_for_the_statistics():
  backbone = embedding_model.build_backbone(_MODEL, (96, 96, 3))
  keras = tf.keras.applications.MobileNetV2(
    (96, 96, 3), include_top=False, weights=None
  )
  ours = [tuple(weight.shape) for weight in backbone.trainable_weights[:-2]]
  theirs = [tuple(weight.shape) for weight in keras.trainable_weights]
  assert ours == theirs


@pytest.mark.parametrize('size, last', [(64, 2), (65, 3), (224, 7)])
def test_strides_halve_the_image_five_times(size, last):
  backbone = embedding_model.build_backbone(_MODEL, (size, size, 3))
  assert backbone.get_layer('last_relu').output_shape[1:] == (last, last, 1280)
  assert backbone.output_shape == (None, 128)


def test_lifted_it_equals_keras_in_value_and_gradient():
  shape = (32, 32, 3)
  backbone = embedding_model.build_backbone(_MODEL, shape)
  pure = embedding_model.lift(backbone)
  images = np.random.default_rng(0).normal(size=[2, *shape]).astype(np.float32)

  @tf.function
  def forward(weights, images):
    embeddings = pure.apply(weights, images)
    return embeddings, tf.gradients(tf.reduce_sum(embeddings**2), weights)

  weights = [tf.constant(v.numpy()) for v in backbone.trainable_variables]
  embeddings, gradients = forward(weights, images)
  with tf.GradientTape() as tape:
    expected = backbone(images)
    loss = tf.reduce_sum(expected**2)
  np.testing.assert_allclose(embeddings, expected, rtol=1e-3, atol=1e-4)
  for ours, theirs in zip(
    gradients, tape.gradient(loss, backbone.trainable_variables), strict=True
  ):
    scale = np.abs(theirs).max() + 1e-3
    np.testing.assert_allclose(ours / scale, theirs / scale, atol=1e-3)
