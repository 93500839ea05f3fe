"""Sensitivities by brute force, and errors of correlated noise."""

import itertools
import math

import numpy as np
import pytest

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_sensitivity
from tff_dpemb.privacy.mechanisms import samplers

_BLT = correlated.Blt((0.5, 0.9), (0.2, 0.1))
_STRATEGIES = [
  correlated.Tree(),
  correlated.Banded(1),
  correlated.Banded(4),
  _BLT,
]
_NAMES = ['tree', 'independent', 'banded', 'blt']


def _error(strategy, rounds, separation, times, every=0):
  return correlated_sensitivity.error(
    strategy,
    rounds,
    participation=samplers.Participation(separation, times),
    restart_every=every,
  )


def _sensitivity(strategy, rounds, separation, times, every=0):
  return correlated_sensitivity.sensitivity(
    strategy,
    rounds,
    participation=samplers.Participation(separation, times),
    restart_every=every,
  )


def _patterns(rounds, separation, times):
  """Yields every pattern of gaps >= separation and at most `times` rounds."""

  def extend(pattern):
    yield pattern
    if len(pattern) < times:
      first = pattern[-1] + separation if pattern else 0
      for following in range(first, rounds):
        yield from extend((*pattern, following))

  return extend(())


class TestSensitivity:
  @pytest.mark.parametrize(
    ('rounds', 'separation', 'times'),
    [(12, 3, 4), (16, 4, 3), (20, 7, 2), (9, 1, 9), (64, 24, 3), (5, 9, 1)],
  )
  @pytest.mark.parametrize(
    'strategy', [correlated.Banded(1), correlated.Banded(4), _BLT]
  )
  def test_toeplitz_is_the_worst_of_all_patterns(
    self, strategy, rounds, separation, times
  ):
    matrix = strategy.matrix(rounds)
    sums = [
      matrix[:, list(pattern)].sum(axis=1)
      for pattern in _patterns(rounds, separation, times)
    ]
    found = _sensitivity(strategy, rounds, separation, times)
    assert max(map(np.linalg.norm, sums)) == pytest.approx(found.whole)
    assert max(total.max() for total in sums) == pytest.approx(found.row)

  @pytest.mark.parametrize('every', [0, 1, 5, 8, 16])
  @pytest.mark.parametrize(
    ('rounds', 'separation', 'times'),
    [(12, 3, 4), (16, 4, 2), (33, 7, 9), (9, 1, 9), (64, 24, 3), (5, 9, 1)],
  )
  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_is_the_worst_phase(self, strategy, rounds, separation, times, every):
    matrix = correlated.matrix(strategy, rounds, restart_every=every)
    patterns = [
      list(range(phase, rounds, separation))[:times]
      for phase in range(separation)
    ]
    sums = [matrix[:, pattern].sum(axis=1) for pattern in patterns]
    found = _sensitivity(strategy, rounds, separation, times, every)
    assert max(map(np.linalg.norm, sums)) == pytest.approx(found.whole)
    assert max(total.max() for total in sums) == pytest.approx(found.row)
    assert max(map(len, patterns)) == found.times

  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_equal_directions_are_the_worst(self, strategy):
    """Signs by brute force, then random directions of norm at most 1."""
    rounds, separation = 24, 4
    matrix = strategy.matrix(rounds)
    found = _sensitivity(strategy, rounds, separation, 6)
    reached = 0.0
    for phase in range(separation):
      columns = matrix[:, phase::separation]
      for signs in itertools.product([-1, 1], repeat=columns.shape[1]):
        reached = max(reached, np.linalg.norm(columns @ np.array(signs)))
    assert reached == pytest.approx(found.whole)
    rng = np.random.default_rng(0)
    for _ in range(500):
      vectors = rng.normal(size=(6, 3))
      norms = np.linalg.norm(vectors, axis=1, keepdims=True)
      moved = matrix[:, ::separation] @ (vectors / norms * rng.uniform())
      assert np.linalg.norm(moved) <= found.whole * (1 + 1e-12)
      assert np.linalg.norm(moved, axis=1).max() <= found.row * (1 + 1e-12)

  @pytest.mark.parametrize(
    ('rounds', 'expected'), [(1, 1), (2, 2), (7, 3), (8, 4), (30, 5), (32, 6)]
  )
  def test_one_round_a_user_in_a_tree_is_its_depth(self, rounds, expected):
    # Round 1 is in nodes 1, 2, 4, ...: as in SingleEpochTreeAggregationDpEvent.
    found = _sensitivity(correlated.Tree(), rounds, rounds, 1)
    assert found.whole**2 == pytest.approx(expected)
    assert found.row == 1

  def test_a_tree_node_may_see_a_user_several_times(self):
    # Every second round of 8, phase 0: the root holds rounds 1, 3, 5, 7.
    found = _sensitivity(correlated.Tree(), 8, 2, 4)
    assert found.row == 4
    # Nodes 1..8 hold 1, 1, 1, 2, 1, 1, 1, 4 of them.
    assert found.whole**2 == pytest.approx(6 + 4 + 16)

  def test_a_run_too_long_is_refused(self):
    with pytest.raises(guarantee.PlanError, match='rounds must be in'):
      _sensitivity(correlated.Tree(), correlated.MOST_ROUNDS + 1, 10, 1)


class TestError:
  @pytest.mark.parametrize('every', [0, 4, 7])
  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_is_the_noise_of_totals_times_the_sensitivity(self, strategy, every):
    rounds = 18
    tables = correlated.stream(strategy, rounds, restart_every=every)
    totals = np.cumsum(tables.noise(np.eye(rounds)), axis=0)
    stddevs = np.linalg.norm(totals, axis=1)
    scale = _sensitivity(strategy, rounds, 6, 3, every).whole
    found = _error(strategy, rounds, 6, 3, every)
    assert found.largest == pytest.approx(scale * stddevs.max())
    assert found.rms == pytest.approx(scale * math.sqrt((stddevs**2).mean()))

  def test_independent_noise_by_hand(self):
    # Three rounds a user: sqrt(3); total of 12 rounds: sqrt(12).
    found = _error(correlated.Banded(1), 12, 4, 3)
    assert found.largest == pytest.approx(6)
    assert found.rms == pytest.approx(math.sqrt(3 * 6.5))

  def test_square_root_by_hand(self):
    # One round a user: both factors are the norm of (1, 1/2, 3/8).
    found = _error(correlated.Banded(3), 3, 3, 1)
    assert found.largest == pytest.approx(1 + 1 / 4 + 9 / 64)
