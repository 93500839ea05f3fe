"""Tests of tff_dpemb.export.saved_model."""

import io
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from tff_dpemb.export import registry
from tff_dpemb.export import signature


def _encode(image, form, **options):
  file = io.BytesIO()
  PIL.Image.fromarray(image.squeeze()).save(file, form, **options)
  return file.getvalue()


@pytest.fixture(scope='module')
def loaded(published):
  from tff_dpemb.export import saved_model

  return saved_model.load(published.path / registry.SAVED_MODEL)


def test_embeds_as_the_live_model(loaded, conv_model, random_images):
  images = random_images(5)
  hidden = conv_model(images.astype(np.float32) / 127.5 - 1).numpy()
  expected = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
  np.testing.assert_allclose(loaded.embed(images), expected, atol=1e-5)


def test_batches_of_any_size(loaded, random_images):
  images = random_images(300)  # More than one internal batch.
  together = loaded.embed(images)
  assert together.shape == (300, 8)
  assert together.dtype == np.float32
  np.testing.assert_allclose(
    together[299:], loaded.embed(images[299:]), atol=1e-6
  )
  assert loaded.embed(images[:0]).shape == (0, 8)
  np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_lossless_bytes_embed_as_their_pixels(loaded, random_images):
  images = random_images(3)
  encoded = [_encode(image, 'PNG') for image in images]
  np.testing.assert_array_equal(
    loaded.embed_bytes(encoded), loaded.embed(images)
  )


def test_transparency_is_dropped(loaded, random_images):
  image = random_images(1)[0]
  alpha = np.full([*image.shape[:2], 1], 7, np.uint8)
  encoded = _encode(np.concatenate([image, alpha], axis=2), 'PNG')
  np.testing.assert_array_equal(
    loaded.embed_bytes([encoded]), loaded.embed(image[np.newaxis])
  )


def test_undecodable_bytes_are_refused(loaded):
  with pytest.raises(signature.ExportError, match='encoded must hold PNG'):
    loaded.embed_bytes([b'not an image'])


def test_wrong_shape_is_refused(loaded):
  with pytest.raises(signature.ExportError, match=r'uint8 \[N, 12, 10, 3\]'):
    loaded.embed(np.zeros([1, 10, 12, 3], np.uint8))


def test_not_a_saved_model(tmp_path):
  from tff_dpemb.export import saved_model

  with pytest.raises(signature.ExportError, match='embedding SavedModel'):
    saved_model.load(tmp_path)


def test_backbone_of_another_shape_is_refused(conv_model, tmp_path):
  from tff_dpemb.export import saved_model

  with pytest.raises(signature.ExportError, match='image_shape must be'):
    saved_model.write(conv_model, tmp_path / 'a', image_shape=(12, 12, 3))


def test_model_built_before_a_tf1_graph_can_be_exported(
  build_conv, random_images, tmp_path
):
  """Building layers in a TF 1 graph, as TFF does, breaks earlier models."""
  import tensorflow as tf

  from tff_dpemb.export import saved_model

  model = build_conv(seed=3)
  images = random_images(2)
  hidden = model(images.astype(np.float32) / 127.5 - 1).numpy()
  expected = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
  with tf.Graph().as_default():
    tf.keras.layers.Dense(2)(
      tf.keras.layers.Conv2D(1, 3)(tf.zeros([1, 4, 4, 1]))
    )
  with pytest.raises(ValueError, match='invalid state'):
    model(images.astype(np.float32))
  saved_model.write(model, tmp_path / 'model', image_shape=(12, 10, 3))
  actual = saved_model.load(tmp_path / 'model').embed(images)
  np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_loads_without_this_package(published, random_images):
  """Plain TensorFlow in a fresh process: fixed names, cosine 1."""
  images = random_images(4)
  expected = registry.open_export(published.path).embed(images)
  program = f"""
import numpy as np, sys, tensorflow as tf
model = tf.saved_model.load({str(published.path / 'saved_model')!r})
images = np.random.default_rng(1).integers(0, 256, [4, 12, 10, 3], np.uint8)
for name in ('embed_uint8', 'serving_default'):
  outputs = model.signatures[name](images=images)
  np.save(sys.argv[1] + name, outputs['embedding'])
assert 'tff_dpemb' not in sys.modules
"""
  target = str(published.path.parent / 'out-')
  subprocess.run(
    [sys.executable, '-c', program, target],
    check=True,
    capture_output=True,
    cwd='/',
    timeout=90,
  )
  for name in ('embed_uint8', 'serving_default'):
    actual = np.load(f'{target}{name}.npy')
    assert (expected * actual).sum(axis=1).min() >= 1 - 1e-6
