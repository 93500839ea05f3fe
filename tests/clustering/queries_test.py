"""Sensitivities by brute force on neighbours, exactness, hostile rows."""

import numpy as np
import pytest

from tff_dpemb.clustering import errors
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import queries

CLASSES, DIM, RADIUS = 3, 4, 0.7
PASS = plan_lib.Pass(name='all', counts=2.0, sums=1.0, scatter=1.5)


def query(components=1, scatter='pooled', seed=0):
  rng = np.random.default_rng(seed)
  centres = rng.normal(size=(CLASSES, components, DIM)) * 0.3
  return queries.Query(centres=centres, radius=RADIUS, scatter=scatter)


def distance(left, right):
  """Returns how far two sums are apart, in units of the noise of `PASS`."""
  total = 0.0
  for name, z in PASS.multipliers.items():
    change = (left[name] - right[name]) / queries.steps_of(name)
    total += float(np.square(change).sum()) / z**2
  return total**0.5


def change(q, with_user, without):
  """Returns each query's L2 change / sensitivity and the joint one."""
  left, right = q.sums_of(*with_user), q.sums_of(*without)
  single = {
    name: np.linalg.norm((left[name] - right[name]).astype(np.float64))
    / queries.steps_of(name)
    for name in left
  }
  joint = distance(left, right)
  return single, joint * PASS.noise_multiplier


@pytest.mark.parametrize('components', [1, 3])
@pytest.mark.parametrize('scatter', ['pooled', 'per_class'])
def test_random_neighbours_stay_within_the_bound(components, scatter):
  rng = np.random.default_rng(1)
  q = query(components, scatter)
  for _ in range(200):
    rows = rng.integers(2, 30)
    points = rng.normal(size=(rows, DIM)) * 10.0 ** rng.integers(-3, 4)
    labels = rng.integers(-1, CLASSES, rows)
    users = rng.integers(0, 4, rows)
    rest = users != 0
    single, joint = change(
      q, (points, labels, users), (points[rest], labels[rest], users[rest])
    )
    assert max(single.values()) <= 1
    assert joint <= 1


@pytest.mark.parametrize('rows', [1, 2, 3, 7, 12])
def test_worst_case_reaches_the_bound(rows):
  # All rows of one user, far away on one side of one class.
  q = query()
  points = np.zeros((rows, DIM))
  points[:, 0] = 1e6
  single, joint = change(
    q,
    (points, np.zeros(rows, int), np.zeros(rows, int)),
    (points[:0], np.zeros(0, int), np.zeros(0, int)),
  )
  assert all(0.99 <= value <= 1 for value in single.values())
  assert 0.99 <= joint <= 1


def test_user_in_several_classes_is_bounded_over_all_jointly():
  q = query()
  points = np.full((6, DIM), 100.0)
  labels = np.array([0, 0, 1, 1, 2, 2])
  sums = q.sums_of(points, labels, np.zeros(6, int))
  assert sums['counts'].sum() <= queries.COUNT_STEPS
  assert np.linalg.norm(sums['sums'] / queries.COUNT_STEPS) <= 1


def test_many_equal_rows_weigh_as_one_user():
  q = query()
  one = q.sums_of(np.ones((1, DIM)), np.array([1]), np.array([7]))
  many = q.sums_of(np.ones((100, DIM)), np.full(100, 1), np.full(100, 7))
  for name in one:
    np.testing.assert_allclose(
      many[name] / queries.steps_of(name),
      one[name] / queries.steps_of(name),
      atol=1e-3,
    )


def test_hostile_rows_count_as_the_zero_point():
  q = query()
  rows = np.full((4, DIM), 0.0)
  labels, users = np.zeros(4, int), np.arange(4)
  expected = q.sums_of(rows, labels, users)
  hostile = np.array([[np.nan] * 4, [np.inf] * 4, [1e300] * 4, [0.0] * 4])
  got = q.sums_of(hostile, labels, users)
  for name in got:
    np.testing.assert_array_equal(got[name], expected[name])


def test_sums_do_not_depend_on_order_or_blocks():
  rng = np.random.default_rng(3)
  points = rng.normal(size=(50, DIM))
  labels, users = rng.integers(-1, 4, 50), rng.integers(0, 9, 50)
  q = query(components=2)
  whole = q.sums_of(points, labels, users)
  declared = (labels >= 0) & (labels < CLASSES)
  rows = np.bincount(users[declared], minlength=9)
  order = rng.permutation(50)
  total = q.zero()
  for block in np.array_split(order, 7):  # Users lie in several blocks.
    part = q.sums_of(
      points[block], labels[block], users[block], rows_of_user=rows
    )
    total = queries.add(total, part)
  for name in whole:
    np.testing.assert_array_equal(total[name], whole[name])


def test_values_by_hand():
  # Two users of class 0: rows (.3, 0) and (.1, 0); and (0, -.2).
  q = queries.Query(centres=np.zeros((1, 1, 2)), radius=1.0, scatter='pooled')
  sums = q.sums_of(
    np.array([[0.3, 0.0], [0.1, 0.0], [0.0, -0.2]]),
    np.zeros(3, int),
    np.array([5, 5, 6]),
  )
  np.testing.assert_allclose(sums['counts'] / queries.COUNT_STEPS, [2.0])
  np.testing.assert_allclose(
    sums['sums'] / queries.COUNT_STEPS, [[0.2, -0.2]], atol=1e-9
  )
  np.testing.assert_allclose(
    sums['scatter'][0] / queries.SCATTER_STEPS,
    [[0.05, 0], [0, 0.04]],
    atol=1e-5,
  )


def test_no_row_gives_zero():
  q = query()
  empty = q.sums_of(np.zeros((0, DIM)), np.zeros(0, int), np.zeros(0, int))
  assert all(not value.any() for value in empty.values())


@pytest.mark.parametrize(
  'points, labels, message',
  [
    (np.zeros((2, DIM + 1)), np.zeros(2), r'points must be \[n, 4\]'),
    (np.zeros((2, DIM)), np.zeros(3), r'labels \[n\]'),
  ],
)
def test_wrong_shapes_are_refused(points, labels, message):
  with pytest.raises(errors.ClusteringError, match=message):
    query().sums_of(points, labels, np.zeros(len(points), int))


@pytest.mark.parametrize('radius', [0.0, -1.0, np.nan, np.inf])
def test_wrong_radius_is_refused(radius):
  with pytest.raises(errors.ClusteringError, match='radius must be finite'):
    queries.Query(centres=np.zeros((1, 1, 2)), radius=radius)
