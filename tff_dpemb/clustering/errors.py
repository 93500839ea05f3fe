"""Errors of clustering and synthesis."""


class ClusteringError(ValueError):
  """A request or an input that breaks a rule of the clustering release."""


class NothingToRelease(ClusteringError):
  """No user, or no declared class, is left to describe."""

  exit_code = 3
