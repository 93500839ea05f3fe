"""The public projection: bounds for every input, exact blocks, and back."""

import numpy as np
import pytest

from tff_dpemb.clustering import errors
from tff_dpemb.clustering import projection as projection_lib

D, DIM = 12, 5


def public(n=300, seed=0):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(n, D)) * np.linspace(2, 0.2, D) + 0.5
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_points_are_bounded_for_every_input():
  projection = projection_lib.fit(public(), DIM)
  rng = np.random.default_rng(1)
  rows = rng.normal(size=(50, D)) * 10.0 ** rng.integers(-3, 200, (50, 1))
  rows[0], rows[1], rows[2] = np.nan, np.inf, 1e200
  points = projection.project(rows)
  assert np.isfinite(points).all()
  assert np.linalg.norm(points, axis=1).max() <= projection.radius * (1 + 1e-9)
  np.testing.assert_array_equal(points[:3], 0.0)


def test_rows_do_not_depend_on_their_block():
  projection = projection_lib.fit(public(), DIM)
  rows = public(200, seed=2).astype(np.float32)
  whole = projection.project(rows)
  for size in (1, 7, 64):
    blocks = [
      projection.project(rows[i : i + size]) for i in range(0, 200, size)
    ]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def test_it_is_pca():
  rows = public()
  projection = projection_lib.fit(rows, DIM)
  centred = rows - rows.mean(axis=0)
  expected = np.linalg.svd(centred / np.sqrt(len(rows)))[1] ** 2
  np.testing.assert_allclose(projection.variances, expected[:DIM], rtol=1e-6)
  np.testing.assert_allclose(
    projection.basis.T @ projection.basis, np.eye(DIM), atol=1e-6
  )


def test_back_projection_is_unit_norm_and_inverts():
  rows = public()
  projection = projection_lib.fit(rows, D, quantile=1.0)  # Nothing is lost.
  points = projection.project(rows)
  back = projection.back_project(points, rng=np.random.default_rng(0))
  np.testing.assert_allclose(back, rows, atol=1e-5)
  assert back.dtype == np.float32


def test_back_projection_fills_the_rest_with_public_variation():
  rows = public(2000)
  projection = projection_lib.fit(rows, 2)
  back = projection.back_project(
    projection.project(rows), rng=np.random.default_rng(0)
  )
  assert back.std(axis=0) == pytest.approx(rows.std(axis=0), rel=0.3)


def test_classes_shrink_the_bound_within():
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 3, 500)
  rows = np.eye(D)[labels] + rng.normal(size=(500, D)) * 0.05
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  projection = projection_lib.fit(rows, 4, public_labels=labels)
  assert projection.within_radius < 0.5 * projection.radius
  assert np.trace(projection.within) < 0.1 * projection.variances.sum()


@pytest.mark.parametrize(
  'rows, dim, message',
  [
    (np.ones((1, 3)), 2, 'n >= 2'),
    (np.full((5, 3), np.nan), 2, 'at least 2 finite rows'),
    (np.ones((5, 3)), 2, 'must differ from each other'),
    (np.eye(3), 4, r'projection_dim must be in \[1, 3\]'),
    (np.eye(3), 0, r'projection_dim must be in \[1, 3\]'),
  ],
)
def test_unusable_public_sets_are_refused(rows, dim, message):
  with pytest.raises(errors.ClusteringError, match=message):
    projection_lib.fit(rows, dim)


def test_wrong_dimension_is_refused():
  projection = projection_lib.fit(public(), DIM)
  with pytest.raises(errors.ClusteringError, match=r'must be \[n, 12\]'):
    projection.project(np.zeros((2, D + 1)))


def test_arrays_round_trip():
  projection = projection_lib.fit(public(), DIM)
  arrays = projection.to_arrays()
  copy = projection_lib.from_arrays(arrays)
  assert copy.digest() == projection.digest()
  rows = public(20, seed=5)
  np.testing.assert_array_equal(copy.project(rows), projection.project(rows))
  del arrays['within']
  with pytest.raises(errors.ClusteringError, match=r'must be of arrays \['):
    projection_lib.from_arrays(arrays)
