"""Backbones, their pure twins, and what may not be trained."""

import numpy as np
import pytest
import tensorflow as tf

from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.models import embedding_model

_SHAPE = (28, 28, 1)


@pytest.mark.parametrize(
  'name, parameters', [('lenet', 453_632), ('lenet_small', 214_080)]
)
def test_backbone_has_the_published_number_of_weights(name, parameters):
  """453 632 is the reference LeNet of arXiv 2211.10844's EMNIST runs."""
  backbone = embedding_model.build_backbone(
    config.ModelConfig(backbone=name), _SHAPE
  )
  assert backbone.count_params() == parameters
  assert embedding_model.lift(backbone).num_parameters == parameters


def test_lifted_backbone_equals_keras_in_value_and_gradient():
  backbone = embedding_model.build_backbone(config.ModelConfig(), _SHAPE)
  pure = embedding_model.lift(backbone)
  images = np.random.default_rng(0).normal(size=[5, *_SHAPE]).astype(np.float32)
  weights = [variable.numpy() for variable in backbone.trainable_variables]

  @tf.function
  def forward(weights, images):
    embeddings = pure.apply(weights, images)
    return embeddings, tf.gradients(tf.reduce_sum(embeddings**2), weights)

  # Other weights than the model's own: nothing may be baked into the graph.
  scaled = [2.0 * weight for weight in weights]
  embeddings, gradients = forward([tf.constant(w) for w in scaled], images)
  embedding_model.set_weights(
    backbone, dict(zip(pure.names, scaled, strict=True))
  )
  with tf.GradientTape() as tape:
    expected = backbone(images)
    loss = tf.reduce_sum(expected**2)
  np.testing.assert_allclose(embeddings, expected, rtol=1e-5, atol=1e-5)
  for ours, theirs in zip(
    gradients, tape.gradient(loss, backbone.trainable_variables), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
  'name, shape', [('lenet', _SHAPE), ('mobilenet_v2', (32, 32, 3))]
)
def test_bfloat16_layers_keep_float32_weights_and_embeddings(name, shape):
  model = config.ModelConfig(backbone=name)
  exact = embedding_model.build_backbone(model, shape)
  mixed = embedding_model.build_backbone(
    model, shape, precision='mixed_bfloat16'
  )
  assert tf.keras.mixed_precision.global_policy().name == 'float32'
  pure = embedding_model.lift(mixed)
  assert pure.names == embedding_model.lift(exact).names
  weights = list(embedding_model.get_weights(exact).values())
  images = np.random.default_rng(0).uniform(-1, 1, [6, *shape])
  images = images.astype(np.float32)

  @tf.function
  def forward(weights, images):
    embeddings = pure.apply(weights, images)
    return embeddings, tf.gradients(tf.reduce_sum(embeddings**2), weights)

  embeddings, gradients = forward([tf.constant(w) for w in weights], images)
  assert embeddings.dtype == tf.float32
  assert {gradient.dtype for gradient in gradients} == {tf.float32}
  expected = exact(images).numpy()
  cosines = np.sum(
    tf.math.l2_normalize(embeddings, 1) * tf.math.l2_normalize(expected, 1), 1
  )
  assert cosines.min() > 0.99
  assert np.abs(embeddings - expected).max() > 1e-4  # Really in bfloat16.


def test_frozen_weights_are_constants_of_the_lifted_graph():
  backbone = embedding_model.build_backbone(config.ModelConfig(), _SHAPE)
  backbone.get_layer('conv1').trainable = False
  pure = embedding_model.lift(backbone)
  assert pure.names == embedding_model.weight_names(backbone)
  assert not any('conv1' in name for name in pure.names)


def test_batch_normalization_is_refused_by_name():
  images = tf.keras.Input(_SHAPE)
  hidden = tf.keras.layers.BatchNormalization(name='stem_bn')(images)
  model = tf.keras.Model(images, tf.keras.layers.Flatten()(hidden))
  with pytest.raises(embedding_model.ModelError, match="'stem_bn'"):
    embedding_model.check_backbone(model)


def test_weights_round_trip_by_name(tmp_path):
  backbone = embedding_model.build_backbone(config.ModelConfig(), _SHAPE)
  weights = embedding_model.get_weights(backbone)
  embedding_model.save_weights(tmp_path / 'weights.npz', weights)
  loaded = embedding_model.load_weights(tmp_path / 'weights.npz')
  assert list(loaded) == list(weights)
  other = embedding_model.build_backbone(config.ModelConfig(), _SHAPE)
  embedding_model.set_weights(other, loaded)
  for name, value in embedding_model.get_weights(other).items():
    np.testing.assert_array_equal(value, weights[name])


def test_weights_of_another_shape_are_refused():
  backbone = embedding_model.build_backbone(config.ModelConfig(), _SHAPE)
  weights = embedding_model.get_weights(backbone)
  weights['conv1/bias'] = np.zeros([3], np.float32)
  with pytest.raises(embedding_model.ModelError, match='conv1/bias'):
    embedding_model.set_weights(backbone, weights)


def test_a_damaged_weights_file_is_one_clear_error(tmp_path):
  (tmp_path / 'weights.npz').write_bytes(b'not a zip file')
  with pytest.raises(storage.ArtifactError, match='damaged'):
    embedding_model.load_weights(tmp_path / 'weights.npz')


def test_embed_returns_unit_norm_and_handles_no_images():
  backbone = embedding_model.build_backbone(config.ModelConfig(), _SHAPE)
  images = np.random.default_rng(0).integers(0, 256, [7, *_SHAPE], np.uint8)
  embeddings = embedding_model.embed(backbone, images, batch_size=3)
  np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
  assert embedding_model.embed(backbone, images[:0]).shape == (0, 128)


def test_a_backbone_comes_back_from_its_file(tmp_path):
  settings = config.ModelConfig(embedding_dim=8)
  backbone = embedding_model.build_backbone(settings, _SHAPE)
  path = tmp_path / 'weights.npz'
  embedding_model.save_weights(path, embedding_model.get_weights(backbone))
  again = embedding_model.load_backbone(settings, _SHAPE, path)
  images = np.random.default_rng(0).integers(0, 256, [3, *_SHAPE])
  np.testing.assert_array_equal(
    embedding_model.embed(again, images.astype(np.uint8)),
    embedding_model.embed(backbone, images.astype(np.uint8)),
  )
