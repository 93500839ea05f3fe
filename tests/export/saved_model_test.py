"""Tests of tff_dpemb.export.saved_model."""

import io
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from tff_dpemb import images
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


# Pictures that differ in how hard they are on a filter: {name: of a size}.
_PICTURES = {
  'photograph': lambda rng, height, width: np.asarray(
    PIL.Image.fromarray(
      rng.integers(0, 256, [height // 8 + 2, width // 8 + 2, 3], np.uint8)
    ).resize((width, height), PIL.Image.Resampling.BICUBIC)
  ),
  'noise': lambda rng, height, width: rng.integers(
    0, 256, [height, width, 3], np.uint8
  ),
  'black and white': lambda rng, height, width: (
    255 * rng.integers(0, 2, [height, width, 3], np.uint8)
  ),
}


def _upright_files(image, rng):
  """Returns the picture in the forms that the graph reads."""
  opacity = rng.integers(0, 256, image.shape[:2], np.uint8)
  deep = (image[..., 0].astype(np.uint16) << 8) + opacity
  paletted = PIL.Image.fromarray(image).quantize(64)
  file = io.BytesIO()
  paletted.save(file, 'PNG', transparency=bytes(range(0, 256, 4)))
  cmyk = io.BytesIO()
  PIL.Image.fromarray(image).convert('CMYK').save(cmyk, 'JPEG')
  return {
    'PNG': _encode(image, 'PNG'),
    'PNG, transparent': _encode(np.dstack([image, opacity]), 'PNG'),
    'PNG, grey': _encode(image[..., 0], 'PNG'),
    'PNG, grey, transparent': _encode(
      np.dstack([image[..., 0], opacity]), 'PNG'
    ),
    'PNG, 16 bits': _encode(deep, 'PNG'),
    'PNG, palette, transparent': file.getvalue(),
    'JPEG': _encode(image, 'JPEG', quality=90),
    'JPEG, progressive': _encode(image, 'JPEG', progressive=True),
    'JPEG, full colour': _encode(image, 'JPEG', subsampling=0),
    'JPEG, grey': _encode(image[..., 0], 'JPEG'),
    'JPEG, CMYK': cmyk.getvalue(),
  }


@pytest.mark.parametrize('image_shape', [(28, 28, 1), (32, 24, 3)])
def test_decodes_as_the_one_decoder_to_the_stated_bound(image_shape):
  import tensorflow as tf

  from tff_dpemb.export import saved_model

  decode = tf.function(
    lambda content: saved_model.decode_image(content, image_shape=image_shape),
    input_signature=[tf.TensorSpec([], tf.string)],
  )
  stated = signature.build_signature(image_shape, 8).decoding
  rng = np.random.default_rng(0)
  worst = {'max': 0, 'mean': 0.0}
  sizes = [(28, 28), (9, 11), (60, 49), (130, 97), (300, 450), (11, 260)]
  for height, width in sizes:
    for name, make in _PICTURES.items():
      files = _upright_files(make(rng, height, width), rng)
      for kind, content in files.items():
        expected = images.decode(content, image_shape).astype(int)
        off = np.abs(decode(content).numpy() - expected)
        case = f'{kind} of {name} {height} x {width}'
        assert off.max() <= stated.max_difference, case
        assert off.mean() <= stated.max_mean_difference, case
        worst['max'] = max(worst['max'], off.max())
        worst['mean'] = max(worst['mean'], off.mean())
  # The statement is no looser than it has to be.
  assert worst['max'] == stated.max_difference
  assert worst['mean'] > stated.max_mean_difference / 10


def test_transparency_is_laid_on_black(loaded, random_images):
  image = random_images(1)[0]
  alpha = np.full([*image.shape[:2], 1], 7, np.uint8)
  encoded = _encode(np.concatenate([image, alpha], axis=2), 'PNG')
  on_black = np.rint(image * (7 / 255)).astype(np.uint8)
  np.testing.assert_array_equal(
    loaded.embed_bytes([encoded]), loaded.embed(on_black[np.newaxis])
  )


def test_the_graph_ignores_the_orientation_as_it_states(loaded, random_images):
  image = random_images(1)[0]
  exif = PIL.Image.Exif()
  exif[0x0112] = 3  # Upside down.
  encoded = _encode(image, 'PNG', exif=exif)
  upright = images.decode(encoded, image.shape)
  np.testing.assert_array_equal(upright, np.rot90(image, 2))
  np.testing.assert_array_equal(
    loaded.embed_bytes([encoded]), loaded.embed(image[np.newaxis])
  )


@pytest.mark.parametrize('form', ['GIF', 'BMP', 'WEBP', 'TIFF', 'PPM'])
def test_other_formats_are_refused_as_stated(loaded, random_images, form):
  with pytest.raises(signature.ExportError, match='PNG or JPEG'):
    loaded.embed_bytes([_encode(random_images(1)[0], form)])


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
