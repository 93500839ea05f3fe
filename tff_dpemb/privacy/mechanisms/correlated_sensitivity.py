"""How far one user moves correlated sums, and how noisy their totals are.

A user takes part in the rounds of one pattern and moves the sum of
each by a vector of norm at most 1 (in units of `sensitivity_multiple`). With
x = sum over the pattern of e_t g_t, ||C x||^2 = sum_ts (C^T C)_ts <g_t, g_s>.
**Where no entry of C is negative** this is largest when all g_t are equal unit
vectors, and then is the squared norm of the sum of C's columns at the pattern.
All strategies here are of that kind. The vectors may depend on what was
released before (arXiv 2202.08312, theorem 2.1), the pattern may not: it comes
from a hash of the user alone.
"""

import dataclasses
import functools
import math

import numpy as np

from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import samplers


@dataclasses.dataclass(frozen=True)
class Sensitivity:
  """How far one user moves C x, in units of a round's own sensitivity.

  Attributes:
    whole: L2 norm over all rounds.
    row: Largest move of one row: what a round that is drawn again reveals.
    times: How often a user takes part at most.
  """

  whole: float
  row: float
  times: int


@functools.lru_cache(maxsize=256)
def sensitivity(
  strategy: correlated.Strategy,
  rounds: int,
  *,
  participation: samplers.Participation,
  restart_every: int = 0,
) -> Sensitivity:
  """Returns the exact sensitivity: the largest over all phases.

  A restart makes C block-diagonal, so squares add up over the segments.

  Raises:
    PlanError: There are more than 4096 rounds.
  """
  correlated.check_rounds(rounds)
  length = min(rounds, restart_every or rounds)
  gap = participation.min_separation

  @functools.cache
  def columns(offset: int, times: int, size: int) -> tuple[float, float]:
    found = strategy.column_sum(offset, gap, times, size)
    return float(found @ found), float(found.max())

  @functools.cache
  def first_columns(times: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    found = strategy.column_sum(0, gap, times, size)
    return np.cumsum(found**2), np.maximum.accumulate(found)

  # Without restarts, phase 0 of a Toeplitz matrix is the worst (see there).
  toeplitz = strategy.is_toeplitz
  phases = 1 if toeplitz and length == rounds else min(gap, rounds)
  square, row = 0.0, 0.0
  for phase in range(phases):
    pattern = participation.pattern(phase, rounds)
    segments, counts = np.unique(pattern // length, return_counts=True)
    starts = np.cumsum(counts) - counts
    total = 0.0
    for segment, times, start in zip(
      segments.tolist(), counts.tolist(), starts.tolist(), strict=True
    ):
      offset = int(pattern[start]) - segment * length
      size = min(length, rounds - segment * length)
      if toeplitz:
        squares, largest = first_columns(times, size)
        part = float(squares[size - offset - 1])
        highest = float(largest[size - offset - 1])
      else:
        part, highest = columns(offset, times, size)
      total += part
      row = max(row, highest)
    square = max(square, total)
  return Sensitivity(math.sqrt(square), row, participation.most(rounds))


@dataclasses.dataclass(frozen=True)
class Error:
  """Noise of running totals for one unit of guarantee (the smaller the better).

  Standard deviations of the running totals' noise, times the sensitivity:
  noise that a noise multiplier of 1 / sensitivity leaves, in clip norms.

  Attributes:
    largest: The worst round's.
    rms: Root mean square over rounds.
  """

  largest: float
  rms: float


def error(
  strategy: correlated.Strategy,
  rounds: int,
  *,
  participation: samplers.Participation,
  restart_every: int = 0,
) -> Error:
  """Returns the error of a strategy; `Banded(1)` is independent noise."""
  length = min(rounds, restart_every or rounds)
  one = strategy.prefix_variances(length)
  t = np.arange(rounds)
  variances = (t // length) * one[-1] + one[t % length]
  scale = sensitivity(
    strategy, rounds, participation=participation, restart_every=restart_every
  ).whole
  return Error(
    scale * math.sqrt(variances.max()), scale * math.sqrt(variances.mean())
  )
