"""Figures with an interval over identities, and the checks they share.

Images of one identity are not independent, so every interval here is over
identities: a delete-one-identity jackknife (Efron and Stein, "The jackknife
estimate of variance", Annals of Statistics 9, 1981).
"""

import dataclasses
import math
import statistics

import numpy as np

_NORM_TOLERANCE = 1e-2


class EvaluationError(ValueError):
  """Input from which a figure cannot be computed."""


@dataclasses.dataclass(frozen=True)
class Interval:
  """A figure in [0, 1] with the ends of its interval over identities."""

  value: float
  low: float
  high: float

  def __post_init__(self):
    if not 0 <= self.low <= self.value <= self.high <= 1:
      raise EvaluationError(
        'interval must satisfy 0 <= low <= value <= high <= 1, got'
        f' {self.low}, {self.value}, {self.high}.'
      )

  def to_json(self) -> dict[str, float]:
    """Returns the interval as a mapping that JSON can hold."""
    return dataclasses.asdict(self)


def jackknife_interval(
  value: float, leave_one_out: np.ndarray, *, confidence: float
) -> Interval:
  """Returns the normal interval of a figure from its delete-one values.

  The standard error is sqrt((g - 1) / g * sum((v_i - mean(v))^2)) for the g
  delete-one values v. The ends are cut to [0, 1]. With fewer than two values,
  or a value that is not finite (what is left has no pairs), nothing is known
  and the interval is [0, 1].

  Args:
    value: The figure on all identities.
    leave_one_out: float [identities], the figure without each identity.
    confidence: Two-sided level in (0, 1).
  """
  check_confidence(confidence)
  leave_one_out = np.asarray(leave_one_out, np.float64)
  count = leave_one_out.size
  if count < 2 or not np.isfinite(leave_one_out).all():
    return Interval(value, 0.0, 1.0)
  squares = float(np.sum((leave_one_out - leave_one_out.mean()) ** 2))
  error = math.sqrt((count - 1) / count * squares)
  margin = statistics.NormalDist().inv_cdf(0.5 + confidence / 2) * error
  return Interval(value, max(0.0, value - margin), min(1.0, value + margin))


def check_confidence(confidence: float) -> None:
  """Raises EvaluationError unless `confidence` is in (0, 1)."""
  if not 0 < confidence < 1:
    raise EvaluationError(f'confidence must be in (0, 1), got {confidence}.')


def check_embeddings(name: str, embeddings: np.ndarray) -> np.ndarray:
  """Returns float32 [n, D] rows, re-normalised in float64 to unit L2 norm.

  Raises:
    EvaluationError: Not a non-empty finite matrix, or a row is not unit-norm.
  """
  embeddings = np.asarray(embeddings)
  if embeddings.ndim != 2 or 0 in embeddings.shape:
    raise EvaluationError(
      f'{name} must be a non-empty matrix [n, embedding_dim], got shape'
      f' {embeddings.shape}.'
    )
  wide = embeddings.astype(np.float64)
  bad = int(np.count_nonzero(~np.isfinite(wide).all(axis=1)))
  if bad:
    raise EvaluationError(
      f'{name} must be finite, got NaN or Inf in {bad} of {len(wide)} rows;'
      ' the model has diverged or is damaged.'
    )
  norms = np.linalg.norm(wide, axis=1, keepdims=True)
  bad = int(np.count_nonzero(np.abs(norms - 1) > _NORM_TOLERANCE))
  if bad:
    raise EvaluationError(
      f'{name} must have unit L2 norm, got {bad} of {len(wide)} rows with'
      ' another norm; divide each row by its norm.'
    )
  return (wide / norms).astype(np.float32)


def check_identities(
  identities: np.ndarray, *, count: int
) -> tuple[np.ndarray, int]:
  """Returns identities as int64 codes 0..g-1 [n], and g.

  Raises:
    EvaluationError: The length is not `count`, there is only one identity, or
      no identity has two images.
  """
  identities = np.asarray(identities)
  if identities.shape != (count,):
    raise EvaluationError(
      f'identities must have shape ({count},), one for each embedding, got'
      f' {identities.shape}.'
    )
  _, codes, sizes = np.unique(
    identities, return_inverse=True, return_counts=True
  )
  if sizes.size < 2:
    raise EvaluationError(
      'evaluation needs at least 2 identities, got 1: without a second one'
      ' there are no different-identity pairs; hold out more identities.'
    )
  if sizes.max() < 2:
    raise EvaluationError(
      'evaluation needs an identity with at least 2 images, got'
      f' {sizes.size} identities with one image each; add images.'
    )
  return codes.astype(np.int64), int(sizes.size)
