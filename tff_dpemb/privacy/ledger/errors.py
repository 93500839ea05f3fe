"""What a ledger refuses, and whether anything was charged.

LedgerError                     refused; nothing was charged
  LedgerDamagedError            edited, truncated or replaced
  LedgerUnavailableError        not reached, or busy; nothing was charged
    LedgerOutcomeUnknownError   lost while committing: it may be charged
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
