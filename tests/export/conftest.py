"""Fixtures of the export tests: one tiny model, published once."""

import os

import numpy as np
import pytest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

IMAGE_SHAPE = (12, 10, 3)


@pytest.fixture(scope='session')
def random_images():
  """Returns a function: count -> uint8 [count, H, W, C]."""

  def make(count, image_shape=IMAGE_SHAPE, *, seed=1):
    return np.random.default_rng(seed).integers(
      0, 256, [count, *image_shape], dtype=np.uint8
    )

  return make


@pytest.fixture(scope='session')
def build_conv():
  """Returns a function that makes a small backbone with given weights."""

  def build(image_shape=IMAGE_SHAPE, *, seed=0, dim=8):
    import tensorflow as tf

    images = tf.keras.Input(image_shape)
    hidden = tf.keras.layers.Conv2D(6, 3, activation='relu')(images)
    hidden = tf.keras.layers.MaxPooling2D(2)(hidden)
    hidden = tf.keras.layers.Flatten()(hidden)
    model = tf.keras.Model(images, tf.keras.layers.Dense(dim)(hidden))
    rng = np.random.default_rng(seed)
    model.set_weights(
      [
        rng.normal(0, 0.3, weight.shape).astype(np.float32)
        for weight in model.weights
      ]
    )
    return model

  return build


@pytest.fixture(scope='session')
def conv_model(build_conv):
  return build_conv()


@pytest.fixture(scope='session')
def published(tmp_path_factory, conv_model, random_images):
  """One published version, for tests that only read it."""
  from tff_dpemb.export import manifest
  from tff_dpemb.export import registry

  return registry.publish(
    tmp_path_factory.mktemp('faces') / 'export',
    conv_model,
    image_shape=IMAGE_SHAPE,
    parity_images=random_images(16),
    min_cosine=0.9999,
    certificate={'schema': 'test', 'simulation': False},
    extra=manifest.Extra(run='faces', config_digest='ab' * 32),
    name='faces',
  )
