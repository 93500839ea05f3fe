"""From events to a Guarantee: the only place where epsilon is computed.

The privacy loss distribution (PLD) answers first and RDP cross-checks it. The
PLD grid is sized before it is built (`loss_distribution`), so that low noise or
a million rounds give a coarser (still pessimistic) answer in seconds instead of
an exhausted machine; where RDP is below such an answer, it is the accountant.

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
from typing import NamedTuple

import numpy as np
from dp_accounting import dp_event
from dp_accounting import gaussian_mechanism
from dp_accounting import privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.accounting import loss_distribution

_LARGEST_COUNT = 10**9

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
  grid_points: int = loss_distribution.FINE_GRID_POINTS,
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
  grid_points: int = loss_distribution.FINE_GRID_POINTS,
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
  found = _answer(_Question(key, delta, adjacency, grid_points, cross_check))
  return dataclasses.replace(found, assumptions=assumptions + found.assumptions)


class _Question(NamedTuple):
  """What an answer depends on."""

  texts: tuple[tuple[str, int], ...]  # events as canonical text, times
  delta: float
  adjacency: guarantee.Adjacency
  grid_points: int
  cross_check: bool


@functools.lru_cache(maxsize=1024)
def _answer(question: _Question) -> guarantee.Guarantee:
  try:
    return _compute(question)
  except ArithmeticError as error:
    reason = f'The accountants cannot represent this event ({error}).'
    return guarantee.Guarantee(
      math.inf,
      delta=question.delta,
      adjacency=question.adjacency,
      accountant='none',
      warnings=(reason,),
    )


def _compute(question: _Question) -> guarantee.Guarantee:
  texts, delta, adjacency, grid_points, cross_check = question
  counts = tuple((events.from_json(json.loads(text)), n) for text, n in texts)
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

  leaves = distribution_leaves(counts, adjacency)
  if leaves is None:
    why = 'the PLD does not know every event'
  elif delta < loss_distribution.DELTA_FLOOR:
    least = loss_distribution.DELTA_FLOOR
    why = f'delta is below {least:g}, where the PLD is not exact'
  else:
    grid = loss_distribution.choose_grid(leaves, grid_points)
    composed = loss_distribution.compose(leaves, grid)
    epsilon = math.inf if composed is None else composed.epsilon(delta)
    if grid.is_coarse and rdp_epsilon is None:
      rdp_epsilon = _rdp_epsilon(counts, adjacency, delta)
    better = rdp_epsilon is not None and rdp_epsilon < epsilon
    if math.isfinite(epsilon) and not (grid.is_coarse and better):
      note = (
        f'The PLD grid was widened to {grid.width:.3g} to answer in seconds;'
        ' epsilon is rounded up by it.'
      )
      return result(
        epsilon,
        accountant='PLD',
        cross_check=rdp_epsilon,
        discretisation=grid.width,
        zcdp_rho=rho,
        assumptions=(note,) if grid.is_coarse else (),
        warnings=_compare(epsilon, rdp_epsilon, grid.rounding),
      )
    why = (
      f'the PLD grid would be {grid.width:.3g} wide to answer in seconds, which'
      ' gives more'
      if math.isfinite(epsilon)
      else 'the PLD has no finite answer'
    )

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

  def fits(
    count: int, grid_points: int = loss_distribution.COARSE_GRID_POINTS
  ) -> bool:
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
  while low < limit and fits(low + 1, loss_distribution.FINE_GRID_POINTS):
    low += 1
  return low


def distribution_leaves(
  counts: events.Counts, adjacency: guarantee.Adjacency, *, users: int = 1
) -> loss_distribution.Counts | None:
  """Returns the events as leaves of a loss distribution, or None.

  None if one is no Gaussian, or is Poisson-sampled under replace-one.

  Args:
    counts: From `events.flatten`.
    adjacency: Relation that the events' sensitivities refer to.
    users: Size of a group that comes or goes together: of k users, each
      sampled by itself, j are there with a binomial probability and move the
      sum by up to j sensitivities (arXiv 2401.10294).
  """
  found: list[tuple[loss_distribution.Leaf, int]] = []
  for leaf, count in counts:
    if isinstance(leaf, dp_event.GaussianDpEvent):
      alone = loss_distribution.Leaf(leaf.noise_multiplier / users, (0.0, 1.0))
      found.append((alone, count))
    elif (
      isinstance(leaf, dp_event.PoissonSampledDpEvent)
      and isinstance(leaf.event, dp_event.GaussianDpEvent)
      and adjacency is not guarantee.Adjacency.REPLACE_ONE
    ):
      shares = _binomial(users, float(leaf.sampling_probability))
      multiplier = float(leaf.event.noise_multiplier)
      found.append((loss_distribution.Leaf(multiplier, shares), count))
    else:
      return None
  return tuple(found)


def _binomial(users: int, probability: float) -> tuple[float, ...]:
  return tuple(
    math.comb(users, number)
    * probability**number
    * (1 - probability) ** (users - number)
    for number in range(users + 1)
  )


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
