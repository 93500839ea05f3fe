"""What `evaluate` writes of an embedding, and raw pixels as one."""

import json

import numpy as np
import pytest

from tff_dpemb.evaluation import figures
from tff_dpemb.evaluation import retrieval
from tff_dpemb.evaluation import verification


def test_figures_are_those_of_verification_and_retrieval():
  rng = np.random.default_rng(0)
  embeddings = rng.normal(size=[40, 6])
  embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
  identities = np.arange(40) // 4
  found = figures.measure(
    embeddings, identities, false_accept_rates=(0.1, 0.01), confidence=0.9
  )
  assert json.loads(json.dumps(found)) == found
  pairs = verification.verification_report(
    embeddings, identities, false_accept_rates=(0.1, 0.01), confidence=0.9
  )
  neighbours = retrieval.retrieval_report(
    embeddings, identities, confidence=0.9
  )
  assert (found['identities'], found['pairs']) == (10, 40 * 39 // 2)
  assert found['recall_at_far'] == {
    '0.1': pairs.recall_at_far[0.1].to_json(),
    '0.01': pairs.recall_at_far[0.01].to_json(),
  }
  assert len(found['roc']) == len(pairs.roc)
  assert found['recall_at_1'] == neighbours.recall_at[1].to_json()
  assert (
    found['mean_average_precision']
    == neighbours.mean_average_precision.to_json()
  )


def test_pixels_have_unit_norm_and_no_mean():
  images = np.array([[[[0], [4]], [[4], [8]]], [[[7], [7]], [[7], [7]]]])
  found = figures.pixel_embeddings(images.astype(np.uint8))
  half = 0.5**0.5
  np.testing.assert_allclose(found[0], [-half, 0, 0, half], atol=1e-7)
  np.testing.assert_array_equal(found[1], [1, 0, 0, 0])  # Blank.
  assert found.dtype == np.float32


def test_a_brighter_picture_is_the_same_picture():
  rng = np.random.default_rng(0)
  images = rng.integers(0, 100, [3, 4, 5, 1]).astype(np.uint8)
  assert figures.pixel_embeddings(images + np.uint8(50)) == pytest.approx(
    figures.pixel_embeddings(images), abs=1e-6
  )
