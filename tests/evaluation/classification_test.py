"""Accuracies, chance and intervals by hand."""

import numpy as np
import pytest

from tff_dpemb.evaluation import classification

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 0])
USERS = np.array([5, 5, 6, 7, 7, 8, 8, 9])


def test_figures_by_hand():
  synthetic = np.array([0, 0, 0, 1, 0, 2, 0, 0])  # 6 of 8
  comparison = classification.compare(
    synthetic, LABELS, LABELS, USERS, declared_classes=4
  )
  assert comparison.accuracy.value == 0.75
  assert comparison.accuracy_on_real.value == 1.0
  assert comparison.chance == 0.5
  assert comparison.uniform_chance == 0.25
  assert comparison.share_of_real == 0.5
  assert (comparison.examples, comparison.identities) == (8, 5)
  found = comparison.to_json()
  assert found['accuracy_on_real']['restricted']
  # Both come from private data without noise.
  assert found['restricted'] == ['accuracy_on_real', 'share_of_real']
  assert set(found['restricted']) <= found.keys()


def test_interval_is_over_users_not_images():
  rng = np.random.default_rng(0)
  right = rng.random(40) < 0.7
  labels = np.zeros(40, int)
  one_each = classification.accuracy(
    np.where(right, 0, 1), labels, np.arange(40)
  )
  ten_each = classification.accuracy(
    np.repeat(np.where(right, 0, 1), 10),
    np.repeat(labels, 10),
    np.repeat(np.arange(40), 10),
  )
  # Ten copies of each image tell no more.
  assert ten_each.low == pytest.approx(one_each.low)
  assert ten_each.high == pytest.approx(one_each.high)


def test_interval_covers():
  # 95 % intervals of 300 draws of 60 users: at least 260 cover (p < 1e-5
  # of fewer if each covers with .92).
  rng = np.random.default_rng(1)
  covered = 0
  for _ in range(300):
    right = rng.random(60) < 0.6
    found = classification.accuracy(
      np.where(right, 0, 1), np.zeros(60, int), np.arange(60)
    )
    covered += found.low <= 0.6 <= found.high
  assert covered >= 255


def test_one_user_tells_nothing():
  found = classification.accuracy(np.zeros(5), np.zeros(5), np.zeros(5))
  assert (found.value, found.low, found.high) == (1.0, 0.0, 1.0)


def test_real_data_no_better_than_chance():
  guess = np.full(8, 1)
  comparison = classification.compare(
    guess, guess, LABELS, USERS, declared_classes=3
  )
  assert comparison.share_of_real == 0.0


@pytest.mark.parametrize(
  'predicted, labels, users, message',
  [
    (np.zeros(0), np.zeros(0), np.zeros(0), 'n >= 1'),
    (np.zeros(2), np.zeros(3), np.zeros(3), r'must be \[3\]'),
    (np.zeros(3), np.zeros(3), np.zeros(2), r'must be \[3\]'),
  ],
)
def test_wrong_shapes_are_refused(predicted, labels, users, message):
  with pytest.raises(classification.EvaluationError, match=message):
    classification.accuracy(predicted, labels, users)
