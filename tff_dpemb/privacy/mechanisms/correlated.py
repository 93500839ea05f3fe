"""Strategies: how noise is correlated over rounds.

A matrix mechanism (arXiv 2202.08312) adds y = C^-1 z to the sums x of rounds
0..n-1, with z independent Gaussians and C, the *strategy*, lower triangular:
x + y reveals exactly what C x + z reveals. Later noise cancels part of the
earlier, so that running totals, which are what training adds up, are more
accurate than with independent noise. No sampling is assumed.

`correlated_sensitivity` says how far one user moves C x; that needs C to have
no negative entry, which all strategies here keep to.
"""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import linalg
from scipy import signal

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import noise_stream

MOST_ROUNDS = 4096  # The tables of a stream are m x m numbers a round.
MOST_BANDS = 32
MOST_BUFFERS = 5


class _Strategy:
  kind: str

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return {'kind': self.kind} | {
      name: list(value) if isinstance(value, tuple) else value
      for name, value in vars(self).items()
    }


@dataclasses.dataclass(frozen=True)
class Tree(_Strategy):
  """Binary-tree aggregation (DP-FTRL, arXiv 2103.00039).

  Round t = 1..n draws the noise of the one node that it completes and that
  running totals use: rounds (t - 2^l, t], l the trailing zeros of t. The
  running total up to t is the sum of the nodes of t's binary digits, so its
  noise has variance popcount(t). Rows of C are the nodes, entries 0 or 1.
  """

  kind = 'tree'
  is_toeplitz = False

  def matrix(self, rounds: int) -> np.ndarray:
    """Returns C, float64 [rounds, rounds]."""
    check_rounds(rounds)
    found = np.zeros((rounds, rounds))
    for last in range(1, rounds + 1):
      found[last - 1, last - (last & -last) : last] = 1.0
    return found

  def stream(self, rounds: int) -> noise_stream.NoiseStream:
    """Returns the tables; buffer l holds the newest node of level l."""
    check_rounds(rounds)
    levels = max(1, rounds.bit_length() - 1)
    read = np.zeros((rounds, levels))
    fresh = np.zeros((rounds, levels))
    keep = np.zeros((rounds, levels, levels))
    for t in range(rounds):
      level = ((t + 1) & -(t + 1)).bit_length() - 1  # Trailing zeros.
      read[t, :level] = 1.0
      fresh[t, level : level + 1] = 1.0  # The highest node is never replaced.
      kept = np.arange(level + 1, levels)
      keep[t, kept, kept] = 1.0
    return noise_stream.NoiseStream(read, keep, np.zeros_like(read), fresh)

  def prefix_variances(self, rounds: int) -> np.ndarray:
    """Returns the variance of each running total's noise, z of variance 1."""
    return np.array([(t + 1).bit_count() for t in range(rounds)], np.float64)

  def column_sum(
    self, offset: int, separation: int, times: int, rounds: int
  ) -> np.ndarray:
    """Returns the sum of C's columns offset, offset + separation, ..."""
    found = np.zeros(rounds)
    nodes = offset + 1 + separation * np.arange(times)
    nodes = nodes[nodes <= rounds]
    while len(nodes):  # A node's parent is the next node that contains it.
      np.add.at(found, nodes - 1, 1.0)
      nodes = nodes + (nodes & -nodes)
      nodes = nodes[nodes <= rounds]
    return found


class _Toeplitz(_Strategy):
  """Strategies whose C has c_t on its t-th diagonal, 1 = c_0 >= c_1 >= .. >= 0.

  The sum of columns o, o + b, ... is that of 0, b, ... moved down by o rows, so
  a user of phase 0 is the worst: any other phase loses rows (and times). That
  also holds against every other pattern with gaps of at least b (arXiv
  2405.13763, theorem 2, for non-increasing c).
  """

  is_toeplitz = True

  def coefficients(self, rounds: int) -> np.ndarray:
    """Returns c_0 .. c_n-1, float64 [rounds]."""
    raise NotImplementedError

  def matrix(self, rounds: int) -> np.ndarray:
    """Returns C, float64 [rounds, rounds]."""
    check_rounds(rounds)
    return linalg.toeplitz(self.coefficients(rounds), np.zeros(rounds))

  def prefix_variances(self, rounds: int) -> np.ndarray:
    """Returns the variance of each running total's noise, z of variance 1."""
    coefficients = np.trim_zeros(self.coefficients(rounds), 'b')
    # Running totals of C^-1's first column: 1 / ((1 - x) c(x)) as a series.
    return np.cumsum(signal.lfilter([1.0], coefficients, np.ones(rounds)) ** 2)

  def column_sum(
    self, offset: int, separation: int, times: int, rounds: int
  ) -> np.ndarray:
    """Returns the sum of C's columns offset, offset + separation, ..."""
    size = rounds - offset
    if size <= 0:
      return np.zeros(rounds)
    found = spaced_sum(self.coefficients(size), separation, times)
    return np.concatenate([np.zeros(offset), found])


@dataclasses.dataclass(frozen=True)
class Banded(_Toeplitz):
  """The first `bands` coefficients of (1 - x)^-1/2, in a Toeplitz matrix.

  The square root of the matrix of running totals is the best factorisation up
  to a constant; cut to bands it is that for repeated participation with gaps
  of at least `bands` (arXiv 2306.08153, 2405.13763). One band is independent
  noise.

  Attributes:
    bands: In [1, 32]; bands - 1 tensors of the model's size are kept.
  """

  bands: int

  kind = 'banded'

  def __post_init__(self):
    checks.whole('bands', self.bands, 1, MOST_BANDS)

  def coefficients(self, rounds: int) -> np.ndarray:
    """Returns c_0 .. c_n-1: c_k = c_k-1 (2k - 1) / 2k, 0 from `bands` on."""
    found = np.zeros(rounds)
    size = min(self.bands, rounds)
    steps = np.arange(1, size)
    found[:size] = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / steps]))
    return found

  def stream(self, rounds: int) -> noise_stream.NoiseStream:
    """Returns the tables; buffer i holds the noise y of i + 1 rounds ago."""
    check_rounds(rounds)
    size = max(1, self.bands - 1)
    read = np.zeros(size)
    read[: self.bands - 1] = self.coefficients(self.bands)[1:]
    shape = (rounds, size)
    return noise_stream.NoiseStream(
      np.broadcast_to(read, shape).copy(),
      np.broadcast_to(np.eye(size, k=-1), (rounds, size, size)).copy(),
      np.broadcast_to(np.eye(size)[0], shape).copy(),
      np.zeros(shape),
    )


@dataclasses.dataclass(frozen=True)
class Blt(_Toeplitz):
  """Buffered linear Toeplitz matrix (arXiv 2408.08868).

  c_t = sum_i weights_i decays_i^(t - 1) for t >= 1: with a handful of buffers,
  each an exponentially weighted sum of past noise, it comes close to the best
  Toeplitz strategy for any number of rounds.

  Attributes:
    decays: theta, at most five numbers in (0, 1), all different.
    weights: omega, as many numbers > 0, of sum c_1 <= 1.
  """

  decays: tuple[float, ...]
  weights: tuple[float, ...]

  kind = 'blt'

  def __post_init__(self):
    for name in ('decays', 'weights'):
      values = getattr(self, name)
      if not (
        isinstance(values, tuple)
        and 1 <= len(values) <= MOST_BUFFERS
        and all(checks.is_number(value) for value in values)
      ):
        raise guarantee.PlanError(
          f'{name} must be 1 to {MOST_BUFFERS} finite numbers, got {values!r}.'
        )
    if not all(0 < value < 1 for value in self.decays) or len(
      set(self.decays)
    ) != len(self.decays):
      raise guarantee.PlanError(
        f'decays must be different and in (0, 1), got {self.decays}.'
      )
    if not (
      len(self.weights) == len(self.decays)
      and min(self.weights) > 0
      and math.fsum(self.weights) <= 1
    ):
      raise guarantee.PlanError(
        f'weights must be {len(self.decays)} numbers > 0 of sum <= 1, got'
        f' {self.weights}.'
      )

  def coefficients(self, rounds: int) -> np.ndarray:
    """Returns c_0 .. c_n-1; positive and falling."""
    powers = np.power.outer(np.array(self.decays), np.arange(rounds - 1))
    return np.concatenate([[1.0], self.weights @ powers])

  def stream(self, rounds: int) -> noise_stream.NoiseStream:
    """Returns the tables: S_t+1 = decays S_t + y_t, read with the weights."""
    check_rounds(rounds)
    size = len(self.decays)
    shape = (rounds, size)
    return noise_stream.NoiseStream(
      np.broadcast_to(np.array(self.weights), shape).copy(),
      np.broadcast_to(np.diag(self.decays), (rounds, size, size)).copy(),
      np.ones(shape),
      np.zeros(shape),
    )


Strategy = Tree | Banded | Blt


def strategy_from_json(content: dict[str, Any]) -> Strategy:
  """Inverse of a strategy's `to_json`.

  Raises:
    PlanError: The kind is unknown, or a value is missing or breaks a rule.
  """
  try:
    match content['kind']:
      case 'tree':
        return Tree()
      case 'banded':
        return Banded(content['bands'])
      case 'blt':
        return Blt(tuple(content['decays']), tuple(content['weights']))
      case kind:
        raise guarantee.PlanError(
          f"strategy must be 'tree', 'banded' or 'blt', got {kind!r}."
        )
  except KeyError as error:
    raise guarantee.PlanError(f'a strategy must have {error}.') from error
  except TypeError as error:
    raise guarantee.PlanError(
      f'a strategy must hold numbers, got {content!r}.'
    ) from error


def stream(
  strategy: Strategy, rounds: int, *, restart_every: int = 0
) -> noise_stream.NoiseStream:
  """Returns the tables of `rounds` rounds, restarts inside."""
  segment = min(rounds, restart_every or rounds)
  tables = strategy.stream(segment)
  return tables.restarted(rounds, segment) if segment < rounds else tables


def matrix(
  strategy: Strategy, rounds: int, *, restart_every: int = 0
) -> np.ndarray:
  """Returns C [rounds, rounds], block-diagonal where the noise restarts."""
  segment = min(rounds, restart_every or rounds)
  whole, rest = divmod(rounds, segment)
  blocks = [strategy.matrix(segment)] * whole
  if rest:
    blocks.append(strategy.matrix(rest))
  return linalg.block_diag(*blocks)


def spaced_sum(
  coefficients: np.ndarray, separation: int, times: int
) -> np.ndarray:
  """Returns sum over j < times of `coefficients` moved down by j separations.

  Args:
    coefficients: float64 [n].
    separation: Rows that each is moved further.
    times: How many there are, at least 1.

  Returns:
    float64 [n].
  """
  size = len(coefficients)
  blocks = -(-size // separation)
  padded = np.zeros(blocks * separation)
  padded[:size] = coefficients
  total = np.cumsum(padded.reshape(blocks, separation), axis=0)
  if times < blocks:
    total[times:] -= total[:-times].copy()
  return total.reshape(-1)[:size]


def check_rounds(rounds: int) -> None:
  """Raises PlanError unless there are 1 to 4096 rounds."""
  if rounds < 1 or rounds > MOST_ROUNDS:
    raise guarantee.PlanError(
      f'rounds must be in [1, {MOST_ROUNDS}] with correlated noise, got'
      f' {rounds}; use independent noise for longer runs.'
    )
