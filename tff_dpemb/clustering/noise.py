"""Where the release's noise comes from.

Production draws OpenDP's exact discrete Gaussian (rejection sampling on
integers from the operating system's randomness; Canonne, Kamath and Steinke,
arXiv 2004.00010). The seeded source is for tests: what it makes is marked as
not certifiable.
"""

import dataclasses
import functools
from typing import Protocol

import numpy as np

from tff_dpemb.clustering import queries

# Total variation between a Gaussian rounded to integers and the discrete
# Gaussian of equal scale s is below _DISTANCE / s^2 (the leading term of
# Euler-Maclaurin is E|x^2 - 1| / 48 = 0.0202).
_DISTANCE = 0.05


class NoiseSource(Protocol):
  """Draws integer noise."""

  @property
  def certifiable(self) -> bool:
    """Returns whether it may be released."""

  @property
  def description(self) -> str:
    """Returns what manifest and certificate say about the source."""

  def draw(self, scale: float, size: int) -> np.ndarray:
    """Returns [size] int64 of standard deviation `scale`, independent."""


@dataclasses.dataclass(frozen=True)
class DiscreteGaussian:
  """OpenDP's integer discrete Gaussian. Unseeded, on purpose."""

  certifiable: bool = dataclasses.field(default=True, init=False)
  description: str = dataclasses.field(
    default='OpenDP integer discrete Gaussian, operating-system randomness',
    init=False,
  )

  def draw(self, scale: float, size: int) -> np.ndarray:
    if size == 0:
      return np.zeros(0, np.int64)
    return np.asarray(_measurement(scale)([0] * size), np.int64)


@dataclasses.dataclass(frozen=True)
class SeededGaussian:
  """Rounded Gaussian from a fixed seed: tests only, never certifiable."""

  seed: int
  certifiable: bool = dataclasses.field(default=False, init=False)
  description: str = dataclasses.field(
    default='rounded Gaussian from a fixed seed (test)', init=False
  )
  _rng: np.random.Generator = dataclasses.field(init=False, repr=False)

  def __post_init__(self):
    rng = np.random.Generator(np.random.Philox(self.seed))
    object.__setattr__(self, '_rng', rng)

  def draw(self, scale: float, size: int) -> np.ndarray:
    return np.rint(self._rng.standard_normal(size) * scale).astype(np.int64)


def add_noise(
  sums: queries.Sums, multipliers: dict[str, float], *, source: NoiseSource
) -> queries.Sums:
  """Returns the noisy integer sums of one pass. The release starts here.

  The noise of a query has standard deviation multiplier x sensitivity. A
  scatter matrix stays symmetric: its upper triangle gets the noise, off the
  diagonal 1/sqrt(2) of it, which is isotropic for the Frobenius norm (an
  entry off the diagonal counts twice there).

  Args:
    sums: Output of `Query.sums_of`.
    multipliers: Noise multiplier of each query in `sums`.
    source: Where the noise is drawn; called in a fixed order.
  """
  noisy = {}
  for name in sorted(sums):
    scale = multipliers[name] * queries.steps_of(name)
    value = sums[name]
    if name != 'scatter':
      noisy[name] = value + source.draw(scale, value.size).reshape(value.shape)
      continue
    matrices, dim, _ = value.shape
    result = value.copy()
    rows, columns = np.triu_indices(dim, 1)
    diagonal = np.arange(dim)
    for i in range(matrices):
      result[i, diagonal, diagonal] += source.draw(scale, dim)
      result[i, rows, columns] += source.draw(scale / np.sqrt(2), len(rows))
      result[i, columns, rows] = result[i, rows, columns]
    noisy[name] = result
  return noisy


def distance_to_gaussian(scale: float, coordinates: int) -> float:
  """Returns a bound on the total variation to a rounded Gaussian vector.

  A rounded Gaussian on integer-valued queries is post-processing of the
  Gaussian mechanism, so delta of the discrete one exceeds the Gaussian's by at
  most (1 + e^epsilon) times this distance. `scale` is in grid steps, >= 2.
  """
  return coordinates * _DISTANCE / scale**2


@functools.lru_cache(maxsize=64)
def _measurement(scale: float):
  import opendp.prelude as dp  # Slow to import.

  dp.enable_features('contrib')
  space = (dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=dp.f64))
  return space >> dp.m.then_gaussian(scale=scale)
