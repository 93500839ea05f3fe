"""Which correlated noise is best for a run: bands, and the numbers of a BLT.

All are judged by `correlated_sensitivity.error`: the largest noise of a running
total for one unit of guarantee. What is found depends on the run's public
numbers alone.
"""

import functools
import math

import numpy as np
from scipy import optimize

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_sensitivity
from tff_dpemb.privacy.mechanisms import samplers

_SLOWEST, _FASTEST = -14.0, 4.0  # Logits of 1 - decay that are tried.
_WORTH_A_BUFFER = 1e-3
_TINY = 1e-300
_DIGITS = 4  # The optimum is flat; fewer digits vary less between machines.


def build(
  noise: str,
  rounds: int,
  *,
  participation: samplers.Participation,
  restart_every: int = 0,
  bands: int = 0,
  buffers: int = 3,
) -> correlated.Strategy:
  """Returns the strategy of a kind, fitted to a run.

  Args:
    noise: 'tree', 'banded' or 'blt'.
    rounds: Of the run.
    participation: When one user takes part.
    restart_every: Rounds of a segment, for which it is fitted; 0: all.
    bands: Of 'banded'; 0 chooses those of the least error.
    buffers: Of 'blt'.

  Raises:
    PlanError: The kind is unknown, or a number is out of range.
  """
  segment = min(rounds, restart_every or rounds)
  match noise:
    case 'tree':
      return correlated.Tree()
    case 'banded' if bands:
      return correlated.Banded(bands)
    case 'banded':
      return best_banded(segment, participation=participation)
    case 'blt':
      return optimise_blt(segment, participation=participation, buffers=buffers)
    case _:
      raise guarantee.PlanError(
        f"noise must be 'tree', 'banded' or 'blt', got {noise!r}."
      )


@functools.lru_cache(maxsize=64)
def best_banded(
  rounds: int, *, participation: samplers.Participation
) -> correlated.Banded:
  """Returns the banded strategy, of at most 32 bands, of the least error."""
  most = min(correlated.MOST_BANDS, rounds)
  choices = [correlated.Banded(bands) for bands in range(1, most + 1)]
  return min(
    choices,
    key=lambda choice: (
      correlated_sensitivity.error(
        choice, rounds, participation=participation
      ).largest
    ),
  )


@functools.lru_cache(maxsize=64)
def optimise_blt(
  rounds: int,
  *,
  participation: samplers.Participation,
  buffers: int = 3,
) -> correlated.Blt:
  """Returns the BLT whose largest running total has the least noise.

  Minimises sensitivity^2 x largest row norm^2 of A C^-1, A the running totals
  (arXiv 2408.08868, section 4), over decays in (0, 1) and positive weights of
  sum at most 1. Both factors are sums of powers: with s = sqrt(weights), C's
  coefficients are c_t = sum_i s_i^2 decays_i^(t-1); those of C^-1 are
  -sum_j v_j^2 l_j^(t-1), where l_j are the eigenvalues of the symmetric matrix
  diag(decays) - s s^T and v_j the products of s with its eigenvectors.

  Deterministic: a second for hundreds of rounds, several for thousands.

  Args:
    rounds: Of a segment.
    participation: When one user takes part.
    buffers: At most so many, in [1, 5]: each costs the memory of a model, so
      one that gains less than 0.1 % is left out.

  Raises:
    PlanError: `buffers` or `rounds` is out of range.
  """
  checks.whole('blt_buffers', buffers, 1, correlated.MOST_BUFFERS)
  best = _optimise(rounds, participation, 1)
  least = correlated_sensitivity.error(
    best, rounds, participation=participation
  ).largest
  for size in range(2, buffers + 1):
    choice = _optimise(rounds, participation, size, smaller=best)
    found = correlated_sensitivity.error(
      choice, rounds, participation=participation
    ).largest
    if found > (1 - _WORTH_A_BUFFER) * least:
      break
    best, least = choice, found
  return best


def _optimise(
  rounds: int,
  participation: samplers.Participation,
  size: int,
  *,
  smaller: correlated.Blt | None = None,
) -> correlated.Blt:
  """Returns the best BLT of `size` buffers; `smaller` is one to start from."""
  times = participation.most(rounds)

  def loss(values: np.ndarray) -> float:
    decays, weights, excess = _unpack(values)
    columns = correlated.spaced_sum(
      _powers(decays, weights, rounds), participation.min_separation, times
    )
    totals = np.cumsum(_inverse(decays, weights, rounds))
    return math.log(columns @ columns) + math.log(totals @ totals) + excess**2

  # Decays spread from one round to all rounds, weights as of (1 - x)^-1/2.
  slowest = max(0.3 / rounds, math.exp(_SLOWEST))
  gaps = np.geomspace(0.7, slowest, size + 2)[1:-1]
  spread = np.sqrt(gaps) / np.sqrt(gaps).sum()
  starts = [(gaps, 0.5 * spread), (gaps, 0.15 * spread)]
  if smaller is not None and len(smaller.decays) == size - 1:
    for gap, weight in ((1e-5, 0.01), (0.5, 0.1)):  # A slow or a fast one more.
      more = np.array([gap, *(1 - decay for decay in smaller.decays)])
      starts.append((more, np.array([weight, *smaller.weights])))
  found = [
    optimize.minimize(
      loss,
      np.concatenate([np.log(gaps / (1 - gaps)), np.log(weights)]),
      method='L-BFGS-B',
      bounds=[(_SLOWEST, _FASTEST)] * size + [(_SLOWEST, 0.0)] * size,
      options={'maxiter': 300, 'ftol': 1e-7},
    )
    for gaps, weights in starts
  ]
  best = min(found, key=lambda result: result.fun)
  decays, weights, _ = _unpack(best.x)
  return _rounded(decays, weights)


def _unpack(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
  """Returns decays, weights of sum at most 1, and by how much it was more.

  Args:
    values: logits of 1 - decay, then logarithms of weights.
  """
  logits, logarithms = np.split(values, 2)
  weights = np.exp(logarithms)
  excess = max(0.0, float(weights.sum()) - 1)
  return 1 / (1 + np.exp(logits)), weights / (1 + excess), excess


def _powers(decays: np.ndarray, weights: np.ndarray, rounds: int) -> np.ndarray:
  """Returns 1, then the weighted sums of powers 0, 1, ... of `decays`."""
  powers = np.exp(
    np.outer(np.log(np.maximum(np.abs(decays), _TINY)), np.arange(rounds - 1))
  )
  powers[decays < 0, 1::2] *= -1
  return np.concatenate([[1.0], weights @ powers])


def _inverse(
  decays: np.ndarray, weights: np.ndarray, rounds: int
) -> np.ndarray:
  """Returns the first column of C^-1."""
  root = np.sqrt(weights)
  values, vectors = np.linalg.eigh(np.diag(decays) - np.outer(root, root))
  return _powers(values, -((root @ vectors) ** 2), rounds)


def _rounded(decays: np.ndarray, weights: np.ndarray) -> correlated.Blt:
  """Returns the strategy with few digits; equal decays become one."""
  weights = weights * (1 - 10.0**-_DIGITS)  # Their sum stays below 1.
  pairs: dict[float, float] = {}
  for decay, weight in sorted(zip(decays, weights, strict=True)):
    gap = float(f'{1 - decay:.{_DIGITS}g}')
    key = round(1 - gap, 12)
    pairs[key] = pairs.get(key, 0.0) + float(f'{weight:.{_DIGITS}g}')
  return correlated.Blt(tuple(pairs), tuple(pairs.values()))
