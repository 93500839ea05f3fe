"""From events to a Guarantee: the only place where epsilon is computed.

The privacy loss distribution (PLD) answers first and RDP cross-checks it. The
PLD grid is sized before it is built, so that low noise gives a coarser (still
pessimistic) answer quickly instead of an exhausted machine.

Convention: the noise multiplier in an event is noise / sensitivity *under the
stated adjacency*; a mechanism has doubled its sensitivity before it makes the
event. dp_accounting 0.6's PLD doubles a Gaussian's sensitivity by itself under
REPLACE_ONE while its RDP accountant does not (measured: 10 Gaussians of
multiplier 1 at delta 1e-5 give 46.2 and 19.1), so its REPLACE_ONE is never
asked for here.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import logging
import math
from collections.abc import Iterator

import numpy as np
from dp_accounting import dp_event
from dp_accounting import gaussian_mechanism
from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld import privacy_loss_mechanism
from dp_accounting.rdp import rdp_privacy_accountant

from tff_dpemb.privacy import events
from tff_dpemb.privacy import guarantee

FINE_GRID_POINTS = 6_000
COARSE_GRID_POINTS = 1_200
_FINEST_DISCRETISATION = 1e-4
# Composition by FFT works in float64 and cuts tails of mass 1e-15 a step: a
# smaller delta drowns in that error.
PLD_DELTA_FLOOR = 1e-11
_LARGEST_COUNT = 10**9
_WIDEST_DISCRETISATION = 50.0  # Beyond, e^width overflows inside the library.

_RELATIONS = {
  guarantee.Adjacency.ADD_OR_REMOVE_ONE: (
    privacy_accountant.NeighboringRelation.ADD_OR_REMOVE_ONE
  ),
  guarantee.Adjacency.REPLACE_ONE: (
    privacy_accountant.NeighboringRelation.REPLACE_ONE
  ),
  guarantee.Adjacency.ZERO_OUT: (
    privacy_accountant.NeighboringRelation.REPLACE_SPECIAL
  ),
}


def library_version() -> str:
  """Returns the name and version of the accounting library."""
  return f'dp-accounting {importlib.metadata.version("dp-accounting")}'


def guarantee_of_event(
  event: dp_event.DpEvent,
  *,
  delta: float,
  adjacency: guarantee.Adjacency,
  assumptions: tuple[str, ...] = (),
  grid_points: int = FINE_GRID_POINTS,
  cross_check: bool = True,
) -> guarantee.Guarantee:
  """Returns the (epsilon, delta) guarantee of an event.

  An event without noise, or that no accountant supports under `adjacency`,
  has epsilon `math.inf` (accountant 'none') and a warning that says why.

  Args:
    event: What was done; noise multipliers are noise / sensitivity under
      `adjacency`.
    delta: In (0, 1).
    adjacency: The relation that the sensitivities in the event refer to.
    assumptions: Sentences carried into the result.
    grid_points: Points of the PLD grid of one event; fewer is faster and
      gives a slightly larger epsilon.
    cross_check: Whether RDP is computed too.

  Raises:
    AccountingError: delta or a parameter of the event is out of range.
  """
  return guarantee_of_counts(
    events.flatten(event),
    delta=delta,
    adjacency=adjacency,
    assumptions=assumptions,
    grid_points=grid_points,
    cross_check=cross_check,
  )


def guarantee_of_counts(
  counts: events.Counts,
  *,
  delta: float,
  adjacency: guarantee.Adjacency,
  assumptions: tuple[str, ...] = (),
  grid_points: int = FINE_GRID_POINTS,
  cross_check: bool = True,
) -> guarantee.Guarantee:
  """Returns the guarantee of counted events (`events.flatten`, `merge`)."""
  if not (isinstance(delta, (int, float)) and 0 < delta < 1):
    raise guarantee.AccountingError(f'delta must be in (0, 1), got {delta}.')
  for _, count in counts:
    if count > _LARGEST_COUNT:
      raise guarantee.AccountingError(
        f'an event must occur at most {_LARGEST_COUNT} times, got {count}.'
      )
  key = tuple((events.canonical_text(leaf), count) for leaf, count in counts)
  found = _answer(key, delta, adjacency, grid_points, cross_check)
  return dataclasses.replace(found, assumptions=assumptions + found.assumptions)


@functools.lru_cache(maxsize=1024)
def _answer(
  key: tuple[tuple[str, int], ...],
  delta: float,
  adjacency: guarantee.Adjacency,
  grid_points: int,
  cross_check: bool,
) -> guarantee.Guarantee:
  """Returns the guarantee of (event text, times) pairs."""
  counts = tuple((events.from_json(json.loads(text)), n) for text, n in key)
  result = functools.partial(
    guarantee.Guarantee, delta=delta, adjacency=adjacency
  )
  if not counts:
    return result(0.0, accountant='PLD')
  if any(isinstance(leaf, dp_event.NonPrivateDpEvent) for leaf, _ in counts):
    reason = 'A step had no noise, so nothing is guaranteed.'
    return result(math.inf, accountant='none', warnings=(reason,))
  rdp_epsilon = _rdp_epsilon(counts, adjacency, delta) if cross_check else None
  rho = _zcdp_rho(counts)
  multiplier = events.gaussian_multiplier(events.compose(counts))
  if multiplier is not None:
    # Exact: arXiv 1805.06530, theorem 8.
    epsilon = float(gaussian_mechanism.get_epsilon_gaussian(multiplier, delta))
    return result(
      epsilon,
      accountant='analytic Gaussian',
      cross_check=rdp_epsilon,
      mu_gdp=1 / multiplier,
      zcdp_rho=rho,
      warnings=_compare(epsilon, rdp_epsilon, 1e-9),
    )

  if not _pld_supports(counts, adjacency):
    why = 'the PLD does not know every event'
  elif delta < PLD_DELTA_FLOOR:
    why = f'delta is below {PLD_DELTA_FLOOR:g}, where the PLD is not exact'
  else:
    grid = _discretisation(counts, grid_points)
    epsilon = _pld_epsilon(counts, grid, delta)
    if math.isfinite(epsilon):
      note = (
        f'The PLD grid was widened to {grid:.3g} to answer in seconds; epsilon'
        ' is rounded up by it.'
      )
      return result(
        epsilon,
        accountant='PLD',
        cross_check=rdp_epsilon,
        discretisation=grid,
        zcdp_rho=rho,
        assumptions=(note,) if grid > _FINEST_DISCRETISATION else (),
        warnings=_compare(epsilon, rdp_epsilon, grid),
      )
    why = 'the PLD has no finite answer'

  if rdp_epsilon is None:
    rdp_epsilon = _rdp_epsilon(counts, adjacency, delta)
  if rdp_epsilon is None:
    names = sorted({type(leaf).__name__ for leaf, _ in counts})
    reason = (
      f'No accountant supports {", ".join(names)} together under'
      f' {adjacency.value}, so nothing is guaranteed.'
    )
    return result(math.inf, accountant='none', warnings=(reason,))
  return result(
    rdp_epsilon,
    accountant='RDP',
    zcdp_rho=rho,
    assumptions=(f'RDP is the accountant, because {why}.',),
  )


def max_count(
  base: events.Counts,
  event: dp_event.DpEvent,
  *,
  epsilon: float,
  delta: float,
  adjacency: guarantee.Adjacency,
  limit: int = 1000,
) -> int:
  """Returns how often `event` may follow `base` with at most `epsilon`.

  Returns 0 if even one more is too much, and `limit` if that many still fit.
  """

  def fits(count: int, grid_points: int = COARSE_GRID_POINTS) -> bool:
    found = guarantee_of_counts(
      events.merge((*base, (event, count))),
      delta=delta,
      adjacency=adjacency,
      grid_points=grid_points,
      cross_check=False,
    )
    return found.epsilon <= epsilon

  # A coarse grid rounds epsilon up, so what fits there fits.
  if fits(limit):
    return limit
  low, step = 0, 1
  while low + step < limit and fits(low + step):
    low += step
    step *= 2
  high = min(low + step, limit)
  while high - low > 1:
    middle = (low + high) // 2
    if fits(middle):
      low = middle
    else:
      high = middle
  while low < limit and fits(low + 1, FINE_GRID_POINTS):
    low += 1
  return low


@dataclasses.dataclass(frozen=True)
class _Gaussian:
  """A Gaussian that sees each user with a probability."""

  noise_multiplier: float
  probability: float


def _pld_leaf(leaf: dp_event.DpEvent) -> _Gaussian | None:
  if isinstance(leaf, dp_event.GaussianDpEvent):
    return _Gaussian(leaf.noise_multiplier, 1.0)
  if isinstance(leaf, dp_event.PoissonSampledDpEvent) and isinstance(
    leaf.event, dp_event.GaussianDpEvent
  ):
    return _Gaussian(leaf.event.noise_multiplier, leaf.sampling_probability)
  return None


def _gaussians(counts: events.Counts) -> list[tuple[_Gaussian, int]]:
  found = [(_pld_leaf(leaf), count) for leaf, count in counts]
  return [(leaf, count) for leaf, count in found if leaf is not None]


def _pld_supports(
  counts: events.Counts, adjacency: guarantee.Adjacency
) -> bool:
  for leaf, _ in counts:
    gaussian = _pld_leaf(leaf)
    if gaussian is None:
      return False
    if (
      gaussian.probability < 1 and adjacency is guarantee.Adjacency.REPLACE_ONE
    ):
      return False
  return True


def _discretisation(counts: events.Counts, grid_points: int) -> float:
  """Returns a grid width that gives no event more than `grid_points`.

  The grid of T composed steps grows as sqrt(T), so beyond 1e5 steps the single
  step gets fewer points.
  """
  steps = sum(count for _, count in counts)
  if steps > 10**5:
    grid_points = max(1000, int(grid_points * math.sqrt(10**5 / steps)))
  widest = 0.0
  for gaussian, _ in _gaussians(counts):
    for kind in (
      privacy_loss_mechanism.AdjacencyType.ADD,
      privacy_loss_mechanism.AdjacencyType.REMOVE,
    ):
      bounds = privacy_loss_mechanism.GaussianPrivacyLoss(
        gaussian.noise_multiplier,
        sampling_prob=gaussian.probability,
        adjacency_type=kind,
      ).connect_dots_bounds()
      widest = max(widest, bounds.epsilon_upper - bounds.epsilon_lower)
  return max(_FINEST_DISCRETISATION, widest / grid_points)


@functools.lru_cache(maxsize=32)
def _leaf_pld(
  noise_multiplier: float, probability: float, discretisation: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
  return privacy_loss_distribution.from_gaussian_mechanism(
    noise_multiplier,
    sampling_prob=probability,
    value_discretization_interval=discretisation,
  )


def _compose_pld(
  counts: events.Counts, discretisation: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
  total = None
  for gaussian, count in _gaussians(counts):
    part = _leaf_pld(
      gaussian.noise_multiplier, gaussian.probability, discretisation
    ).self_compose(count)
    total = part if total is None else total.compose(part)
  return total


def _pld_epsilon(
  counts: events.Counts, discretisation: float, delta: float
) -> float:
  """Returns epsilon by PLD; infinite where the library cannot tell."""
  if discretisation > _WIDEST_DISCRETISATION:
    return math.inf
  try:
    composed = _compose_pld(counts, discretisation)
    return float(composed.get_epsilon_for_delta(delta))
  except (ArithmeticError, ValueError):
    return math.inf  # RDP then answers.


@functools.lru_cache(maxsize=256)
def _leaf_rdp(
  event_text: str, adjacency: guarantee.Adjacency
) -> tuple[float, ...] | None:
  leaf = events.from_json(json.loads(event_text))
  accountant = rdp_privacy_accountant.RdpAccountant(
    neighboring_relation=_RELATIONS[adjacency]
  )
  if not accountant.supports(leaf):
    return None
  with _quiet():
    accountant.compose(leaf)
  return tuple(accountant.rdp)


def _rdp_epsilon(
  counts: events.Counts, adjacency: guarantee.Adjacency, delta: float
) -> float | None:
  """Returns epsilon by RDP, or None if it does not know every event."""
  orders = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
  total = np.zeros(len(orders))
  for leaf, count in counts:
    values = _leaf_rdp(events.canonical_text(leaf), adjacency)
    if values is None:
      return None
    total = total + count * np.asarray(values)
  epsilon, _ = rdp_privacy_accountant.compute_epsilon(orders, total, delta)
  return float(epsilon)


def _zcdp_rho(counts: events.Counts) -> float | None:
  """Returns rho of zCDP if each event is a Gaussian, a tree or zCDP itself."""
  rho = 0.0
  for leaf, count in counts:
    if isinstance(leaf, dp_event.GaussianDpEvent):
      rho += count / (2 * leaf.noise_multiplier**2)
    elif isinstance(leaf, dp_event.ZCDpEvent) and leaf.xi == 0:
      rho += count * leaf.rho
    elif isinstance(leaf, dp_event.SingleEpochTreeAggregationDpEvent):
      steps = leaf.step_counts
      largest = steps if isinstance(steps, int) else max(steps)
      depth = math.ceil(math.log2(largest + 1))
      rho += count * depth / (2 * leaf.noise_multiplier**2)
    else:
      return None
  return rho


def _compare(
  epsilon: float, rdp_epsilon: float | None, tolerance: float
) -> tuple[str, ...]:
  if rdp_epsilon is None or rdp_epsilon >= epsilon - tolerance:
    return ()
  return (
    f'RDP gives {rdp_epsilon:.6g}, below the {epsilon:.6g} of the accountant'
    f' by more than its discretisation ({tolerance:.3g}): the larger one is'
    ' stated; find out why before it is published.',
  )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides the notes on RDP orders that do not converge and are left out."""

  def keep(record: logging.LogRecord) -> bool:
    return 'failed to converge' not in str(record.msg)

  logger = logging.getLogger('absl')
  logger.addFilter(keep)
  try:
    yield
  finally:
    logger.removeFilter(keep)
