"""Tests of tff_dpemb.export.signature; TensorFlow is not imported."""

import numpy as np
import pytest

from tff_dpemb.artifacts import documents
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
    signature.build_signature(shape, dim)


def test_json_round_trip():
  expected = signature.build_signature((28, 24, 1), 16)
  content = expected.to_json()
  assert signature.Signature.from_json(content) == expected
  assert set(content['saved_model']) == {
    'embed_uint8',
    'embed_bytes',
    'serving_default',
  }
  images = content['tflite']['embed_uint8']['input']
  assert images['shape'] == [None, 28, 24, 1]


def test_states_what_the_graph_cannot_do():
  decoding = signature.build_signature((28, 24, 1), 16).to_json()['decoding']
  assert decoding['exif_orientation'] == 'ignored'
  assert decoding['size_limit'] == 'none'
  assert decoding['formats'] == ['PNG', 'JPEG']
  assert (decoding['max_difference'], decoding['max_mean_difference']) == (
    1,
    0.01,
  )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'image_shape': [1, 2]}, 'image_shape'),
    ({'image_shape': [28, 24, 2]}, 'must have 1 or 3 channels, got 2'),
    ({'embedding_dim': 0}, 'embedding_dim must be >= 1, got 0'),
    ({'embedding_dim': 17}, 'must state the calls of image_shape'),
    ({'tflite': {}}, 'must state the calls of image_shape'),
    ({'decoding': {'exif_orientation': 'applied'}}, 'exif_orientation must be'),
  ],
)
def test_malformed_json_is_refused(changes, message):
  content = signature.build_signature((28, 24, 1), 16).to_json()
  with pytest.raises(documents.DocumentError, match=message):
    signature.Signature.from_json(content | changes)


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
    signature.build_signature((28, 24, 1), 4).check_images(images)
