"""Strategies and streams of correlated noise, by hand and by inversion."""

import math

import numpy as np
import pytest

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated

_BLT = correlated.Blt((0.5, 0.9), (0.2, 0.1))
_STRATEGIES = [
  correlated.Tree(),
  correlated.Banded(1),
  correlated.Banded(4),
  _BLT,
]
_NAMES = ['tree', 'independent', 'banded', 'blt']


class TestMatrix:
  def test_tree_by_hand(self):
    # Nodes that rounds 1..8 complete and running totals use.
    assert correlated.Tree().matrix(8).astype(int).tolist() == [
      [1, 0, 0, 0, 0, 0, 0, 0],
      [1, 1, 0, 0, 0, 0, 0, 0],
      [0, 0, 1, 0, 0, 0, 0, 0],
      [1, 1, 1, 1, 0, 0, 0, 0],
      [0, 0, 0, 0, 1, 0, 0, 0],
      [0, 0, 0, 0, 1, 1, 0, 0],
      [0, 0, 0, 0, 0, 0, 1, 0],
      [1, 1, 1, 1, 1, 1, 1, 1],
    ]

  def test_banded_is_the_square_root_of_running_totals(self):
    # (1 - x)^-1/2 = 1 + x/2 + 3/8 x^2 + 5/16 x^3 + ...
    found = correlated.Banded(4).coefficients(6)
    np.testing.assert_allclose(found, [1, 1 / 2, 3 / 8, 5 / 16, 0, 0])
    root = correlated.Banded(16).matrix(16)
    np.testing.assert_allclose(root @ root, np.tri(16), atol=1e-12)

  def test_blt_by_hand(self):
    # c_1 = .2 + .1, c_2 = .2 x .5 + .1 x .9, c_3 = .2 x .25 + .1 x .81.
    np.testing.assert_allclose(
      _BLT.coefficients(4), [1, 0.3, 0.19, 0.131], rtol=1e-12
    )

  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_no_entry_is_negative_and_the_diagonal_is_one(self, strategy):
    found = strategy.matrix(33)
    assert found.min() >= 0
    np.testing.assert_array_equal(np.diag(found), 1)
    np.testing.assert_array_equal(found, np.tril(found))

  def test_a_restart_cuts_it_into_blocks(self):
    found = correlated.matrix(correlated.Tree(), 5, restart_every=2)
    assert found.astype(int).tolist() == [
      [1, 0, 0, 0, 0],
      [1, 1, 0, 0, 0],
      [0, 0, 1, 0, 0],
      [0, 0, 1, 1, 0],
      [0, 0, 0, 0, 1],
    ]

  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_fewer_rounds_are_the_leading_block(self, strategy):
    np.testing.assert_array_equal(
      strategy.matrix(20)[:13, :13], strategy.matrix(13)
    )


class TestStream:
  @pytest.mark.parametrize('every', [0, 1, 4, 7, 50])
  @pytest.mark.parametrize('rounds', [1, 2, 16, 21])
  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_is_the_inverse_of_the_matrix(self, strategy, rounds, every):
    # Linear, so the identity shows all of it: the covariance of the streamed
    # noise is y y^T = (C^T C)^-1, without sampling.
    tables = correlated.stream(strategy, rounds, restart_every=every)
    matrix = correlated.matrix(strategy, rounds, restart_every=every)
    noise = tables.noise(np.eye(rounds))
    assert tables.rounds == rounds
    np.testing.assert_allclose(matrix @ noise, np.eye(rounds), atol=1e-12)
    np.testing.assert_allclose(
      noise @ noise.T, np.linalg.inv(matrix.T @ matrix), atol=1e-10
    )

  def test_tree_noise_of_totals_is_that_of_the_nodes_in_use(self):
    noise = correlated.stream(correlated.Tree(), 8).noise(np.eye(8))
    totals = np.cumsum(noise, axis=0)
    # Total of 7 rounds: nodes (0, 4], (4, 6], (6, 7], of rounds 4, 6, 7.
    np.testing.assert_array_equal(totals[6], [0, 0, 0, 1, 0, 1, 1, 0])
    np.testing.assert_array_equal(totals[7], [0, 0, 0, 0, 0, 0, 0, 1])

  @pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
  def test_a_round_after_a_restart_does_not_know_what_was_before(
    self, strategy
  ):
    tables = correlated.stream(strategy, 10, restart_every=5)
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, 10, 3))
    other[5:] = one[5:]
    assert not np.array_equal(tables.noise(one)[:5], tables.noise(other)[:5])
    np.testing.assert_array_equal(
      tables.noise(one)[5:], tables.noise(other)[5:]
    )

  def test_sizes_of_the_tables(self):
    # Nodes of levels 0..3 are read again in 30 rounds, that of level 4 is not.
    for strategy, buffers in (
      (correlated.Tree(), 4),
      (correlated.Banded(6), 5),
      (_BLT, 2),
    ):
      tables = strategy.stream(30)
      assert tables.buffers == buffers
      assert tables.read.shape == (30, buffers)
      assert tables.keep.shape == (30, buffers, buffers)
      assert (
        tables.write_noise.shape
        == tables.write_fresh.shape
        == (
          30,
          buffers,
        )
      )


@pytest.mark.parametrize('strategy', _STRATEGIES, ids=_NAMES)
def test_json_gives_the_strategy_back(strategy):
  assert correlated.strategy_from_json(strategy.to_json()) == strategy


@pytest.mark.parametrize(
  ('content', 'match'),
  [
    ({'kind': 'matrix'}, "must be 'tree', 'banded' or 'blt'"),
    ({}, "must have 'kind'"),
    ({'kind': 'banded'}, "must have 'bands'"),
    ({'kind': 'banded', 'bands': 0}, r'bands must be whole and in \[1, 32\]'),
    ({'kind': 'banded', 'bands': 33}, 'got 33'),
    ({'kind': 'banded', 'bands': 2.5}, 'bands must be whole'),
    ({'kind': 'blt', 'decays': 0.5, 'weights': [0.1]}, 'must hold numbers'),
    ({'kind': 'blt', 'decays': ['a'], 'weights': [0.1]}, 'decays must be 1 to'),
    ({'kind': 'blt', 'decays': [], 'weights': []}, 'decays must be 1 to 5'),
    ({'kind': 'blt', 'decays': [1.0], 'weights': [0.1]}, r'in \(0, 1\)'),
    ({'kind': 'blt', 'decays': [0.5], 'weights': [-0.1]}, 'weights must be 1'),
    ({'kind': 'blt', 'decays': [0.5], 'weights': [1.1]}, 'of sum <= 1'),
    ({'kind': 'blt', 'decays': [0.5], 'weights': [math.nan]}, 'finite'),
    ({'kind': 'blt', 'decays': [0.5] * 2, 'weights': [0.1] * 2}, 'different'),
    ({'kind': 'blt', 'decays': [0.5], 'weights': [0.1] * 2}, 'must be 1 num'),
  ],
)
def test_illegal_strategies_are_refused(content, match):
  with pytest.raises(guarantee.PlanError, match=match):
    correlated.strategy_from_json(content)
