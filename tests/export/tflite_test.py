"""Tests of tff_dpemb.export.tflite."""

import numpy as np
import pytest

from tff_dpemb.export import registry
from tff_dpemb.export import signature


@pytest.mark.parametrize('batch_size', [1, 4, 3])
def test_dynamic_batch_embeds_as_the_saved_model(
  published, random_images, batch_size
):
  export = registry.open_export(published.path)
  images = random_images(7)
  actual = export.lite_model().embed(images, batch_size=batch_size)
  expected = export.embed(images)
  assert actual.dtype == np.float32
  assert (actual * expected).sum(axis=1).min() >= 0.9999


def test_grey_images(build_conv, random_images, tmp_path):
  from tff_dpemb.export import saved_model
  from tff_dpemb.export import tflite

  model = build_conv((9, 9, 1), dim=5)
  saved_model.write(model, tmp_path / 'model', image_shape=(9, 9, 1))
  tflite.write(tmp_path / 'model', tmp_path / 'model.tflite')
  lite = tflite.load(tmp_path / 'model.tflite')
  assert lite.image_shape == (9, 9, 1)
  assert lite.embedding_dim == 5
  images = random_images(4, (9, 9, 1))
  expected = saved_model.load(tmp_path / 'model').embed(images)
  np.testing.assert_allclose(lite.embed(images), expected, atol=1e-5)
  assert lite.embed(images[:0]).shape == (0, 5)


def test_uses_builtin_operators_only(published):
  import tensorflow as tf

  interpreter = tf.lite.Interpreter(str(published.path / registry.TFLITE))
  names = {op['op_name'] for op in interpreter._get_ops_details()}
  assert names
  assert not [name for name in names if name.startswith(('Flex', 'CUSTOM'))]


def test_operator_without_builtin_is_refused(tmp_path):
  import tensorflow as tf

  from tff_dpemb.export import saved_model
  from tff_dpemb.export import tflite

  images = tf.keras.Input((4, 4, 1))
  inverse = tf.keras.layers.Lambda(
    lambda x: tf.linalg.inv(tf.squeeze(x, -1) + 9 * tf.eye(4))
  )(images)
  outputs = tf.keras.layers.Dense(3)(tf.keras.layers.Flatten()(inverse))
  saved_model.write(
    tf.keras.Model(images, outputs), tmp_path / 'm', image_shape=(4, 4, 1)
  )
  with pytest.raises(
    signature.ExportError, match='builtin operators only'
  ) as e:
    tflite.write(tmp_path / 'm', tmp_path / 'm.tflite')
  assert '\n' not in str(e.value)
  assert not (tmp_path / 'm.tflite').exists()


def test_not_a_tflite_file(tmp_path):
  from tff_dpemb.export import tflite

  (tmp_path / 'x.tflite').write_bytes(b'no')
  with pytest.raises(signature.ExportError, match='embedding TFLite model'):
    tflite.load(tmp_path / 'x.tflite')
