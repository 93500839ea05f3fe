"""Tests of tff_dpemb.export.parity."""

import numpy as np
import pytest

from tff_dpemb.export import registry
from tff_dpemb.export import signature


@pytest.mark.parametrize(
  ('actual', 'expected_cosine'),
  [
    ([[2.0, 0.0], [0.0, 3.0]], 1.0),
    ([[1.0, 0.0], [1.0, 1.0]], 0.5**0.5),
    ([[1.0, 0.0], [0.0, -1.0]], -1.0),
    ([[1.0, 0.0], [0.0, 0.0]], 0.0),
    ([[np.nan, 0.0], [0.0, 1.0]], -1.0),
    ([[np.inf, 0.0], [0.0, 1.0]], -1.0),
  ],
)
def test_min_cosine(actual, expected_cosine):
  from tff_dpemb.export import parity

  got = parity.min_cosine(np.eye(2, dtype=np.float32), np.array(actual))
  assert got == pytest.approx(expected_cosine, abs=1e-7)


def test_no_rows_is_refused():
  from tff_dpemb.export import parity

  with pytest.raises(signature.ExportError, match='N >= 1'):
    parity.min_cosine(np.zeros([0, 2]), np.zeros([0, 2]))


def test_published_export_is_at_parity(published, conv_model, random_images):
  from tff_dpemb.export import parity

  result = parity.measure(
    conv_model,
    random_images(6, seed=8),
    saved_model_directory=published.path / registry.SAVED_MODEL,
    tflite_path=published.path / registry.TFLITE,
  )
  assert result.num_images == 6
  assert result.min_cosine >= 0.9999
  assert result.min_cosine == min(
    result.saved_model, result.saved_model_bytes, result.tflite
  )


def test_another_model_is_far_below(published, build_conv, random_images):
  from tff_dpemb.export import parity

  result = parity.measure(
    build_conv(seed=5),
    random_images(6),
    saved_model_directory=published.path / registry.SAVED_MODEL,
    tflite_path=published.path / registry.TFLITE,
  )
  assert max(result.saved_model, result.saved_model_bytes, result.tflite) < 0.99
