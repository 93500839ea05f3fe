"""GroupNorm against numbers worked out by hand, Keras, and TensorFlow Lite."""

import numpy as np
import pytest
import tensorflow as tf

from tff_dpemb.models import layers


def test_groups_are_normalised_as_worked_out_by_hand():
  """Group 1 holds 1, 3, 1, 3: mean 2, variance 1. Group 2 holds 0, 4, 8, 4."""
  image = np.array([[[[1, 3, 0, 4], [1, 3, 8, 4]]]], np.float32)
  layer = layers.GroupNormalization(2, epsilon=1e-12)
  result = layer(image).numpy()
  root = np.sqrt(8.0)  # of the variance (16 + 0 + 16 + 0) / 4 of group 2
  expected = [[-1, 1, -4 / root, 0], [-1, 1, 4 / root, 0]]
  np.testing.assert_allclose(result[0, 0], expected, atol=1e-6)


def test_value_and_gradients_equal_keras():
  rng = np.random.default_rng(0)
  images = rng.normal(3.0, 2.0, [3, 5, 4, 12]).astype(np.float32)
  weights = [rng.normal(size=[12]).astype(np.float32) for _ in range(2)]
  direction = rng.normal(size=images.shape).astype(np.float32)
  results = []
  for layer in (
    layers.GroupNormalization(3),
    tf.keras.layers.GroupNormalization(3),
  ):
    layer.build(images.shape)
    layer.set_weights(weights)
    inputs = tf.constant(images)
    with tf.GradientTape() as tape:
      tape.watch(inputs)
      output = layer(inputs)
      value = tf.reduce_sum(output * direction)
    gradients = tape.gradient(value, [inputs, *layer.trainable_weights])
    results.append([output, *gradients])
  for ours, keras in zip(*results, strict=True):
    np.testing.assert_allclose(ours, keras, rtol=1e-4, atol=1e-4)


def test_images_are_normalised_one_by_one():
  images = np.random.default_rng(1).normal(size=[4, 3, 3, 4])
  layer = layers.GroupNormalization(2)
  alone = [layer(images[i : i + 1].astype(np.float32)) for i in range(4)]
  together = layer(images.astype(np.float32))
  np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-6)


def test_it_converts_to_tensorflow_lite_for_any_batch():
  inputs = tf.keras.Input([6, 6, 8])
  model = tf.keras.Model(inputs, layers.GroupNormalization(2)(inputs))
  converter = tf.lite.TFLiteConverter.from_keras_model(model)
  interpreter = tf.lite.Interpreter(model_content=converter.convert())
  rng = np.random.default_rng(2)
  for batch in (1, 3):
    images = rng.normal(size=[batch, 6, 6, 8]).astype(np.float32)
    place = interpreter.get_input_details()[0]['index']
    interpreter.resize_tensor_input(place, images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, images)
    interpreter.invoke()
    result = interpreter.get_tensor(
      interpreter.get_output_details()[0]['index']
    )
    np.testing.assert_allclose(result, model(images), atol=1e-5)


def test_it_is_rebuilt_from_its_config():
  layer = layers.GroupNormalization(4, epsilon=0.5, name='norm')
  again = layers.GroupNormalization.from_config(layer.get_config())
  assert (again.groups, again.epsilon, again.name) == (4, 0.5, 'norm')


@pytest.mark.parametrize(
  'groups, epsilon, shape, message',
  [
    (0, 1e-3, (1, 2, 2, 4), 'groups must be >= 1, got 0'),
    (2, 0.0, (1, 2, 2, 4), 'epsilon must be > 0, got 0.0'),
    (3, 1e-3, (1, 2, 2, 4), 'groups must divide the 4 channels, got 3'),
    (2, 1e-3, (1, 2, 4), r'must have shape \[N, H, W, C\]'),
    (2, 1e-3, (1, None, 2, 4), 'with H, W and C known'),
  ],
)
def test_what_cannot_be_normalised_is_refused(groups, epsilon, shape, message):
  with pytest.raises(ValueError, match=message):
    layers.GroupNormalization(groups, epsilon=epsilon).build(shape)
