"""Tests of tff_dpemb.export.signature; TensorFlow is not imported."""

import numpy as np
import pytest

from tff_dpemb.export import signature


@pytest.mark.parametrize(
  ('shape', 'dim', 'message'),
  [
    ((28, 28), 8, 'image_shape must be'),
    ((28, 0, 1), 8, 'image_shape must be'),
    ((28, 28, 4), 8, '1 or 3 channels, got 4'),
    ((28, 28, 1), 0, 'embedding_dim must be >= 1, got 0'),
  ],
)
def test_refuses_shapes(shape, dim, message):
  with pytest.raises(signature.ExportError, match=message):
    signature.Signature(shape, dim)


def test_json_round_trip():
  expected = signature.Signature((28, 24, 1), 16)
  content = expected.to_json()
  assert signature.signature_from_json(content) == expected
  assert set(content['saved_model']) == {
    'embed_uint8',
    'embed_bytes',
    'serving_default',
  }
  images = content['tflite']['embed_uint8']['input']
  assert images['shape'] == [None, 28, 24, 1]


def test_malformed_json_is_refused():
  with pytest.raises(signature.ExportError, match='damaged'):
    signature.signature_from_json({'image_shape': [1, 2]})


@pytest.mark.parametrize(
  'images',
  [
    np.zeros([2, 28, 28, 1], np.float32),
    np.zeros([2, 28, 24, 3], np.uint8),
    np.zeros([28, 24, 1], np.uint8),
  ],
)
def test_check_images_names_the_expected_shape(images):
  with pytest.raises(signature.ExportError, match=r'uint8 \[N, 28, 24, 1\]'):
    signature.Signature((28, 24, 1), 4).check_images(images)
