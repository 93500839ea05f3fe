"""More than one epsilon: several deltas, groups of users, one Gaussian curve.

A single (epsilon, delta) hides how a guarantee goes on at other deltas (arXiv
2503.10945). Here are its profile, the Gaussian DP (mu-GDP) that bounds it, and
what it is for a group of users who come or go together.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting import dp_event
from scipy import special

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.accounting import loss_distribution

PROFILE_DELTAS = tuple(10.0**-power for power in range(2, 11))
# The group's mixture of Gaussians costs 1 ms a grid point; rounding is up.
GROUP_GRID_POINTS = 1_200
_GDP_POINTS = 1_000
_LARGEST_LOSS = 700.0  # exp of more overflows; it would protect nobody.
_GDP_FLOOR = 1e-10


@dataclasses.dataclass(frozen=True)
class GdpBound:
  """A Gaussian that reveals at least as much, down to a delta.

  Attributes:
    mu: For every delta in [least_delta, 1), epsilon is at most that of a
      Gaussian of sensitivity / noise = mu.
    least_delta: 0 where the bound is of the whole trade-off curve.
  """

  mu: float
  least_delta: float


def epsilons(
  event: dp_event.DpEvent,
  deltas: Sequence[float],
  *,
  adjacency: guarantee.Adjacency,
) -> list[guarantee.Guarantee]:
  """Returns the guarantee at each delta: the privacy profile.

  All of them hold together: they speak of one curve.
  """
  counts = events.flatten(event)
  return [
    accountant.guarantee_of_counts(
      counts, delta=delta, adjacency=adjacency, cross_check=False
    )
    for delta in deltas
  ]


def gdp_bound(
  event: dp_event.DpEvent, *, adjacency: guarantee.Adjacency
) -> GdpBound | None:
  """Returns a Gaussian that bounds the event's profile, or None.

  Unsampled Gaussians are one Gaussian: exact, on the whole curve. A
  Poisson-sampled one is under no curve better than the unsampled Gaussian's:
  far enough out, a user who was in every round shows. But down to a delta of
  1e-10 its profile is: that is found from the loss distribution, each delta
  rounded up to that of the grid point before. None if there is no noise, or
  another event than these, or a profile that the distribution cannot give.
  """
  counts = events.flatten(event)
  if not counts:
    return GdpBound(0.0, 0.0)
  multiplier = events.gaussian_multiplier(events.compose(counts))
  if multiplier is not None:
    return GdpBound(1 / multiplier, 0.0) if multiplier > 0 else None
  leaves = accountant.distribution_leaves(counts, adjacency)
  if leaves is None:
    return None
  return _gdp_bound(leaves)


@functools.lru_cache(maxsize=64)
def _gdp_bound(leaves: loss_distribution.Counts) -> GdpBound | None:
  composed = loss_distribution.compose(
    leaves, loss_distribution.choose_grid(leaves)
  )
  if composed is None:
    return None
  last = composed.epsilon(_GDP_FLOOR)
  if not 0 < last < _LARGEST_LOSS:  # Also refuses NaN.
    return None
  grid = np.linspace(0.0, last, _GDP_POINTS)
  # Between two points delta is at most that of the first one, and a Gaussian's
  # at least that of the second one.
  mu = _gaussian_mu(grid[1:], composed.deltas(grid[:-1]))
  return GdpBound(float(mu), _GDP_FLOOR) if math.isfinite(mu) else None


def group_guarantee(
  event: dp_event.DpEvent,
  *,
  users: int,
  delta: float,
  adjacency: guarantee.Adjacency,
) -> guarantee.Guarantee:
  """Returns the guarantee of `users` users who come (or go) together.

  Of a Gaussian they move the sum by up to that many sensitivities: exact. Of a
  Poisson-sampled Gaussian a binomial number of them is there: the loss
  distribution of that mixture. Of anything else, (epsilon, delta') for one user
  is (k epsilon, delta' (e^(k epsilon) - 1) / (e^epsilon - 1)) for k of them, at
  the best delta'.

  Args:
    event: What was done; multipliers are noise / one user's sensitivity.
    users: k >= 1, for example the accounts of one person.
    delta: In (0, 1).
    adjacency: The relation for one user.

  Raises:
    AccountingError: users or delta is out of range.
  """
  if not isinstance(users, int) or users < 1:
    raise guarantee.AccountingError(f'users must be >= 1, got {users}.')
  counts = events.flatten(event)
  alone = accountant.guarantee_of_counts(
    counts, delta=delta, adjacency=adjacency, cross_check=False
  )
  note = f'{users} users come or go together.'
  if users == 1 or not alone.is_private or not counts:
    return alone
  leaves = accountant.distribution_leaves(counts, adjacency, users=users)
  if leaves is None:
    return dataclasses.replace(
      alone,
      epsilon=_generic_group(counts, users, delta, adjacency),
      accountant='group of ' + alone.accountant,
      discretisation=None,
      mu_gdp=None,
      zcdp_rho=None,
      assumptions=(*alone.assumptions, note),
    )
  multiplier = events.gaussian_multiplier(events.compose(counts))
  if multiplier is not None:
    found = accountant.guarantee_of_event(
      dp_event.GaussianDpEvent(multiplier / users),
      delta=delta,
      adjacency=adjacency,
      cross_check=False,
    )
    return dataclasses.replace(found, assumptions=(note,))
  grid = loss_distribution.choose_grid(leaves, GROUP_GRID_POINTS)
  composed = loss_distribution.compose(leaves, grid)
  epsilon = math.inf
  if composed is not None and delta >= loss_distribution.DELTA_FLOOR:
    epsilon = composed.epsilon(delta)
  by_mixture = math.isfinite(epsilon)
  if not by_mixture:
    epsilon = _generic_group(counts, users, delta, adjacency)
  return guarantee.Guarantee(
    epsilon,
    delta=delta,
    adjacency=adjacency,
    accountant='PLD' if by_mixture else 'group of RDP',
    discretisation=grid.width if by_mixture else None,
    assumptions=(note,),
  )


def _generic_group(
  counts: events.Counts,
  users: int,
  delta: float,
  adjacency: guarantee.Adjacency,
) -> float:
  """Returns k epsilon at the best delta of one user; infinite if there is none.

  Any delta' at which the group's delta is small enough will do.
  """
  best = math.inf
  for log_delta in np.linspace(math.log(delta / users), math.log(1e-290), 60):
    if math.exp(log_delta) <= 0:
      continue
    epsilon = accountant.guarantee_of_counts(
      counts,
      delta=math.exp(log_delta),
      adjacency=adjacency,
      cross_check=False,
      grid_points=loss_distribution.COARSE_GRID_POINTS,
    ).epsilon
    if users * epsilon >= best:
      continue
    # log of sum of e^(i epsilon), i < users
    growth = special.logsumexp(np.arange(users) * epsilon)
    if log_delta + growth <= math.log(delta):
      best = users * epsilon
  return best


def _gaussian_mu(epsilons_: np.ndarray, deltas: np.ndarray) -> float:
  """Returns the least mu with delta_mu(epsilons[i]) >= deltas[i] for all i."""
  low, high = 0.0, 1.0

  def covers(mu: float) -> bool:
    upper = special.ndtr(mu / 2 - epsilons_ / mu)
    lower = np.exp(epsilons_ + special.log_ndtr(-mu / 2 - epsilons_ / mu))
    return bool(np.all(upper - lower >= deltas))

  while not covers(high):
    low, high = high, 2 * high
    if high > 1e9:
      return math.inf
  for _ in range(60):
    middle = (low + high) / 2
    if middle <= 0 or not covers(middle):
      low = middle
    else:
      high = middle
  return high
