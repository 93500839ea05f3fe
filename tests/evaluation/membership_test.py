"""Membership inference: features by hand, attacks that find what is there."""

import numpy as np
import pytest
from sklearn import linear_model
from sklearn import metrics

from tff_dpemb.evaluation import interval
from tff_dpemb.evaluation import membership


def _users(rng, count, spread, dim=8, images=4):
  centres = rng.standard_normal([count, 1, dim])
  rows = centres + spread * rng.standard_normal([count, images, dim])
  rows /= np.linalg.norm(rows, axis=2, keepdims=True)
  return rows.reshape(-1, dim)


def test_features_by_hand():
  """User 0: cosines 0, .6, .8; user 1: 1; user 2 has one image only."""
  embeddings = np.array(
    [[1, 0], [0, 1], [0.6, 0.8], [-1, 0], [-1, 0], [0, 1]], float
  )
  users = np.array([0, 0, 0, 1, 1, 2])
  found = membership.user_features(embeddings, users)
  assert found.shape == (2, 4)
  cosines = np.array([0, 0.6, 0.8])
  np.testing.assert_allclose(
    found[0, :3], [cosines.mean(), 0, cosines.std()], atol=1e-6
  )
  np.testing.assert_allclose(found[1, :3], [1, 1, 0], atol=1e-6)
  # Mean (1.6, 1.8) of user 0 against (-1, 0).
  np.testing.assert_allclose(found[:, 3], -1.6 / np.hypot(1.6, 1.8), atol=1e-6)


def test_auc_by_hand():
  """Pairs of {1, 2, 3} and {0, 2}: 4.5 of 6 in order (one tie)."""
  found = membership.auc_interval(
    np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0]), confidence=0.95
  )
  assert found.value == pytest.approx(4.5 / 6)
  assert 0 <= found.low < found.value < found.high <= 1


def test_auc_equals_that_of_scikit_learn():
  rng = np.random.default_rng(0)
  one, other = rng.normal(0.4, 1, 200).round(1), rng.normal(0, 1, 300).round(1)
  found = membership.auc_interval(one, other, confidence=0.9)
  expected = metrics.roc_auc_score(
    np.repeat([1, 0], [200, 300]), np.concatenate([one, other])
  )
  assert found.value == pytest.approx(expected)


def test_interval_covers():
  """200 draws of the same two Gaussians, AUC .638: 90 % are to cover it.

  168 or fewer of 200 have probability below 0.5 % then; the seed is fixed.
  """
  rng = np.random.default_rng(0)
  truth = 0.63816  # Phi(.5 / sqrt 2)
  covered = 0
  for _ in range(200):
    found = membership.auc_interval(
      rng.normal(0.5, 1, 100), rng.normal(0, 1, 100), confidence=0.9
    )
    covered += found.low <= truth <= found.high
  assert covered > 168


def test_members_that_are_closer_together_are_found():
  rng = np.random.default_rng(0)
  embeddings = np.concatenate([_users(rng, 100, 0.3), _users(rng, 100, 0.6)])
  features = membership.user_features(embeddings, np.repeat(np.arange(200), 4))
  report = membership.attack(features, np.arange(200) < 100, rng=rng)
  assert report.strongest.auc.low > 0.8
  by_name = {attack.name: attack for attack in report.attacks}
  assert by_name['logistic regression'].advantage > 0.5
  assert by_name[membership.FEATURES[0]].advantage > 0.5
  # Deviation of cosines is larger for non-members: found with its sign.
  assert by_name[membership.FEATURES[2]].auc.value < 0.5
  assert by_name[membership.FEATURES[2]].advantage > 0.2
  assert report.to_json()['members'] == 100


def test_exchangeable_users_are_not_told_apart():
  """AUC intervals at 99.9 %: all five hold 1/2 but for 0.5 %."""
  rng = np.random.default_rng(1)
  embeddings = _users(rng, 400, 0.4)
  features = membership.user_features(embeddings, np.repeat(np.arange(400), 4))
  report = membership.attack(
    features, rng.random(400) < 0.5, rng=rng, confidence=0.999
  )
  for attack in report.attacks[:-1]:
    assert attack.auc.low <= 0.5 <= attack.auc.high
    assert abs(attack.advantage) < 0.2


def test_logistic_regression_is_that_of_scikit_learn():
  """Balanced, standardised, the same ridge: the same scores."""
  rng = np.random.default_rng(2)
  x = rng.standard_normal([300, 3]) * [1, 5, 0.1]
  y = x[:, 0] + rng.standard_normal(300) > 0.8
  ours = membership._fit(x, y)(x)
  standard = (x - x.mean(axis=0)) / x.std(axis=0)
  # sklearn: C times the *sum* of losses + |w|^2 / 2, weights of mean 1.
  model = linear_model.LogisticRegression(
    C=1 / (300 * 1e-2), class_weight='balanced', tol=1e-10, max_iter=1000
  ).fit(standard, y)
  np.testing.assert_allclose(ours, model.decision_function(standard), atol=1e-4)


@pytest.mark.parametrize('members', [3, 97])
def test_too_few_users(members):
  with pytest.raises(interval.EvaluationError, match='at least 5 users each'):
    membership.attack(
      np.zeros([100, 4]),
      np.arange(100) < members,
      rng=np.random.default_rng(0),
    )


def test_users_of_one_image_are_no_users():
  with pytest.raises(interval.EvaluationError, match='2 images or more, got 0'):
    membership.user_features(np.eye(3), np.arange(3))
