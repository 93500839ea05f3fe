"""The check of served look-ups against brute force."""

import numpy as np
import pytest

from launch import publish_stages

_GALLERY = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]], np.float32)


@pytest.mark.parametrize(
  'found, expected',
  [
    ([0, 1, 2], True),
    ([0, 2, 1], False),  # Wrong order.
    ([0, 1, 3], False),  # A farther item.
    ([0, 0, 1], False),  # One item twice.
  ],
)
def test_neighbours_must_be_those_of_brute_force(found, expected):
  query = np.array([1, 0], np.float32)
  assert publish_stages.agrees_with_exact(query, _GALLERY, found) is expected


def test_only_cosines_that_float32_cannot_tell_apart_may_change_places():
  query = np.array([1, 0], np.float32)
  near = np.array([[1, 0], [1 - 1e-7, 0], [1 - 1e-4, 0]], np.float64)
  assert publish_stages.agrees_with_exact(query, near, [1, 0, 2])
  assert not publish_stages.agrees_with_exact(query, near, [0, 2, 1])
