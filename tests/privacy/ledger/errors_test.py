"""Errors say whether anything was charged, and what a command ends with."""

import pytest

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import errors


@pytest.mark.parametrize(
  ('error', 'base', 'exit_code'),
  [
    (errors.LedgerError, guarantee.PrivacyError, None),
    (errors.LedgerDamagedError, errors.LedgerError, 5),
    (errors.LedgerUnavailableError, errors.LedgerError, 75),
    # Run again: counted twice is legal, not counted is not.
    (errors.LedgerOutcomeUnknownError, errors.LedgerUnavailableError, 75),
    (errors.BudgetExceededError, errors.LedgerError, 4),
    (errors.LeaseError, errors.LedgerError, None),
  ],
)
def test_the_hierarchy_and_exit_codes(error, base, exit_code):
  assert error.__base__ is base
  assert getattr(error, 'exit_code', None) == exit_code


def test_a_refusal_says_what_is_left():
  error = errors.BudgetExceededError('too much', left=0.25)
  assert error.left == 0.25
  assert str(error) == 'too much'
