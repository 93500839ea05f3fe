"""Privacy loss distributions (PLD) of sampled Gaussians, at a known cost.

A grid of privacy losses is sized before anything is composed: each leaf gets a
number of points that its cost allows, and so does the composition, whose width
is bounded on a coarse grid first. So an answer takes a few seconds at most,
whatever noise, sampling, number of steps and mixture of them is asked about. A
wider grid gives a larger epsilon, never a smaller one.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld import privacy_loss_mechanism

FINE_GRID_POINTS = 6_000
COARSE_GRID_POINTS = 1_200
# Composition by FFT works in float64 and cuts tails of mass 1e-15 a step: a
# smaller delta drowns in that error.
DELTA_FLOOR = 1e-11
FINEST_GRID = 1e-4
_WIDEST_GRID = 50.0  # Beyond, e^width overflows inside the library.
_TAIL = 1e-15  # What the library cuts of a composition.
_SCOUT_POINTS = 400
# All leaves together cost some 25 us a point, of mixtures 1 ms, and the
# composition some 3 us. Times grid_points:
_LEAF_POINTS = 6.0
_MIXTURE_POINTS = 0.2
_COMPOSED_POINTS = 60.0
# Rounding a loss up to a grid of width h costs at most h^2 / 8 a step.
_ROUNDING = 0.005
_MOST_LEAVES = 100


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A Gaussian that sees a random number of units of sensitivity.

  Attributes:
    noise_multiplier: Standard deviation in units of one unit's sensitivity.
    shares: Probability of 0, 1, 2, ... units; they add up to 1. (0, 1) is a
      plain Gaussian, (1 - q, q) a Poisson-sampled one, a binomial distribution
      a group of users (arXiv 2401.10294).
  """

  noise_multiplier: float
  shares: tuple[float, ...]

  @property
  def is_mixture(self) -> bool:
    """Whether more than one unit may be there: many times as costly."""
    return len(self.shares) > 2

  def build(
    self, width: float
  ) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Returns the distribution on a grid of losses `width` apart."""
    if not self.is_mixture:
      return privacy_loss_distribution.from_gaussian_mechanism(
        self.noise_multiplier,
        sampling_prob=self.shares[1],
        value_discretization_interval=width,
      )
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
      self.noise_multiplier,
      sensitivities=range(len(self.shares)),
      sampling_probs=self.shares,
      value_discretization_interval=width,
    )

  def loss_range(self) -> float:
    """Returns the width of the interval that holds the losses."""
    widest = 0.0
    for kind in (
      privacy_loss_mechanism.AdjacencyType.ADD,
      privacy_loss_mechanism.AdjacencyType.REMOVE,
    ):
      if not self.is_mixture:
        loss = privacy_loss_mechanism.GaussianPrivacyLoss(
          self.noise_multiplier,
          sampling_prob=self.shares[1],
          adjacency_type=kind,
        )
      else:
        loss = privacy_loss_mechanism.MixtureGaussianPrivacyLoss(
          self.noise_multiplier,
          list(range(len(self.shares))),
          list(self.shares),
          adjacency_type=kind,
        )
      bounds = loss.connect_dots_bounds()
      widest = max(widest, bounds.epsilon_upper - bounds.epsilon_lower)
    return float(widest)


Counts = tuple[tuple[Leaf, int], ...]


@dataclasses.dataclass(frozen=True)
class Grid:
  """How finely losses are rounded up.

  Attributes:
    width: Distance of its points, in nats.
    is_coarse: Whether the cost, not the accuracy, decided.
    rounding: What all steps' rounding may add to epsilon, roughly.
  """

  width: float
  is_coarse: bool
  rounding: float


class Composed:
  """The distribution of a composition, to be asked for epsilon and delta."""

  def __init__(
    self, distribution: privacy_loss_distribution.PrivacyLossDistribution
  ):
    self._distribution = distribution

  def epsilon(self, delta: float) -> float:
    """Returns the least epsilon at delta; infinite where it cannot tell."""
    try:
      return float(self._distribution.get_epsilon_for_delta(delta))
    except (ArithmeticError, ValueError):
      return math.inf

  def deltas(self, epsilons: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns delta [n] at each epsilon."""
    found = self._distribution.get_delta_for_epsilon(np.asarray(epsilons))
    return np.asarray(found, dtype=np.float64)


def choose_grid(counts: Counts, grid_points: int = FINE_GRID_POINTS) -> Grid:
  """Returns a grid whose cost is bounded, whatever the leaves are.

  Args:
    counts: Leaves and how often each was run.
    grid_points: Scale of accuracy and cost.
  """
  steps = sum(count for _, count in counts)
  ranges = [leaf.loss_range() for leaf, _ in counts]
  accurate = max(ranges) / grid_points
  if grid_points >= FINE_GRID_POINTS:
    accurate = min(accurate, math.sqrt(8 * _ROUNDING / steps))
  mixtures = sum(
    width
    for (leaf, _), width in zip(counts, ranges, strict=True)
    if leaf.is_mixture
  )
  composed = sum(
    _composed_range(leaf, count, width)
    for (leaf, count), width in zip(counts, ranges, strict=True)
  )
  cheap = (
    max(
      sum(ranges) / _LEAF_POINTS,
      mixtures / _MIXTURE_POINTS,
      composed * len(counts) / _COMPOSED_POINTS,
    )
    / grid_points
  )
  width = max(FINEST_GRID, accurate, cheap)
  return Grid(
    width=width,
    is_coarse=cheap > max(FINEST_GRID, accurate),
    rounding=width + steps * width**2 / 8,
  )


def compose(counts: Counts, grid: Grid) -> Composed | None:
  """Returns the composition, or None where the library cannot."""
  if grid.width > _WIDEST_GRID or len(counts) > _MOST_LEAVES:
    return None
  return _compose(counts, grid.width)


@functools.lru_cache(maxsize=8)
def _compose(counts: Counts, width: float) -> Composed | None:
  total = None
  try:
    for leaf, count in counts:
      part = _leaf(leaf, width).self_compose(count)
      total = part if total is None else total.compose(part)
  except (ArithmeticError, ValueError):
    return None
  return None if total is None else Composed(total)


@functools.lru_cache(maxsize=32)
def _leaf(
  leaf: Leaf, width: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
  return leaf.build(width)


@functools.lru_cache(maxsize=256)
def _composed_range(leaf: Leaf, count: int, width: float) -> float:
  """Returns how wide the composed losses are, as the library will cut them."""
  if count == 1:
    return width
  points = _SCOUT_POINTS / 8 if leaf.is_mixture else _SCOUT_POINTS
  grid = max(width / points, FINEST_GRID)
  if grid > _WIDEST_GRID:
    return count * width
  distribution = leaf.build(grid)
  widest = 0
  for pmf in (distribution._pmf_remove, distribution._pmf_add):
    dense = pmf.to_dense_pmf()
    low, high = common.compute_self_convolve_bounds(dense._probs, count, _TAIL)
    widest = max(widest, high - low)
  return widest * grid
