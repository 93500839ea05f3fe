"""Budgets and guarantees as values, and epsilon where JSON has no infinity."""

import json
import math

import pytest

from tff_dpemb.privacy import guarantee

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize(
  ('epsilon', 'content', 'text'),
  [
    (0.0, 0.0, '0'),
    (1.23456, 1.23456, '1.235'),
    (math.inf, None, 'no guarantee'),
  ],
)
def test_epsilon_in_json_and_for_people(epsilon, content, text):
  found = guarantee.epsilon_to_json(epsilon)
  assert found == content
  assert guarantee.epsilon_from_json(found) == epsilon
  assert json.loads(json.dumps(found, allow_nan=False)) == content
  assert guarantee.epsilon_text(epsilon) == text


@pytest.mark.parametrize(
  ('epsilon', 'delta', 'message'),
  [
    (0.0, 1e-5, 'epsilon must be finite and > 0, got 0.0'),
    (math.inf, 1e-5, 'epsilon must be finite'),
    (math.nan, 1e-5, 'epsilon must be finite'),
    (1.0, 0.0, r'delta must be in \(0, 1\), got 0.0'),
    (1.0, 1.0, 'delta must be in'),
    (1.0, math.nan, 'delta must be in'),
  ],
)
def test_budgets_that_cannot_be_are_refused(epsilon, delta, message):
  with pytest.raises(guarantee.PrivacyError, match=message):
    guarantee.Budget(epsilon, delta)


def test_a_guarantee_says_of_what_it_is():
  found = guarantee.Guarantee(2.5, delta=1e-6, adjacency=_ADD_REMOVE)
  assert found.is_private
  assert found.describe() == (
    'epsilon 2.5 at delta 1e-06 (user level, add-or-remove-one-user, PLD)'
  )


def test_none_is_called_none():
  found = guarantee.Guarantee(math.inf, delta=1e-6, adjacency=_ADD_REMOVE)
  assert not found.is_private
  assert found.describe() == 'no guarantee (user level, add-or-remove-one-user)'


def test_errors_are_of_one_family():
  for error in (guarantee.PlanError, guarantee.AccountingError):
    assert issubclass(error, guarantee.PrivacyError)
    assert issubclass(error, ValueError)
