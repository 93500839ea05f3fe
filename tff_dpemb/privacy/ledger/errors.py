"""What a ledger refuses, and whether anything was charged.

LedgerError                     refused; nothing was charged
  LedgerDamagedError            edited, truncated or replaced
  LedgerUnavailableError        not reached, or busy; nothing was charged
    LedgerOutcomeUnknownError   lost while committing: it may be charged
  BudgetExceededError           a draw that does not fit; it must not run
  LeaseError                    another process runs this (run, slot)
"""

from tff_dpemb.privacy import guarantee


class LedgerError(guarantee.PrivacyError):
  """Base of the ledger's errors: nothing was charged."""


class LedgerDamagedError(LedgerError):
  """The ledger is not what was written: edited, truncated or replaced."""

  exit_code = 5


class LedgerUnavailableError(LedgerError):
  """The database cannot be reached or is busy: nothing was charged."""

  exit_code = 75


class LedgerOutcomeUnknownError(LedgerUnavailableError):
  """The connection was lost during COMMIT: the entry may be charged or not.

  No noise may be drawn for it. Running again charges it (again): a draw that
  was counted twice is legal, one that was not counted is not.
  """


class BudgetExceededError(LedgerError):
  """A draw that would exceed the population's budget: it must not run.

  Attributes:
    left: Epsilon that is left at the budget's delta.
    exit_code: What a command ends with.
  """

  exit_code = 4

  def __init__(self, message: str, *, left: float):
    super().__init__(message)
    self.left = left


class LeaseError(LedgerError):
  """The lease is held by another, was lost, or its slot is complete."""
