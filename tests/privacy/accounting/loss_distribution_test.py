"""The grid of losses: what it costs is known beforehand, and it rounds up."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from tff_dpemb.privacy.accounting import loss_distribution


def _sampled(noise_multiplier, probability):
  return loss_distribution.Leaf(
    noise_multiplier, (1 - probability, probability)
  )


def _log_uniform(rng, low, high):
  return math.exp(rng.uniform(math.log(low), math.log(high)))


def test_the_cost_of_any_grid_is_bounded():
  """Points of leaves and composition, over the whole legal range."""
  rng = random.Random(5)
  points = loss_distribution.FINE_GRID_POINTS
  for _ in range(40):
    counts = tuple(
      (
        _sampled(_log_uniform(rng, 1e-3, 1e3), _log_uniform(rng, 1e-6, 1)),
        int(_log_uniform(rng, 1, 1e6)),
      )
      for _ in range(rng.choice((1, 2, 3)))
    )
    grid = loss_distribution.choose_grid(counts)
    in_leaves = sum(leaf.loss_range() for leaf, _ in counts) / grid.width
    assert in_leaves <= loss_distribution._LEAF_POINTS * points * 1.001
    composed = sum(
      loss_distribution._composed_range(leaf, count, leaf.loss_range())
      for leaf, count in counts
    )
    most = loss_distribution._COMPOSED_POINTS * points * 1.001
    assert composed / grid.width * len(counts) <= most


def test_the_composition_is_as_wide_as_was_foreseen():
  """The bound found on the coarse grid holds on the fine one, nearly."""
  for noise, probability, count in ((0.7, 0.01, 10_000), (3.0, 0.1, 512)):
    leaf = _sampled(noise, probability)
    counts = ((leaf, count),)
    grid = loss_distribution.choose_grid(counts)
    composed = loss_distribution.compose(counts, grid)
    size = composed._distribution._pmf_remove.size
    foreseen = loss_distribution._composed_range(leaf, count, leaf.loss_range())
    assert size <= 1.2 * foreseen / grid.width


def test_a_coarser_grid_gives_more():
  counts = ((_sampled(0.7, 0.05), 200),)
  found = [
    loss_distribution.compose(
      counts, loss_distribution.choose_grid(counts, points)
    ).epsilon(1e-6)
    for points in (6_000, 1_200, 300, 60)
  ]
  assert found == sorted(found)
  assert found[-1] < 1.5 * found[0]


def test_a_mixture_of_at_most_one_unit_is_the_sampled_gaussian():
  grid = loss_distribution.Grid(0.002, is_coarse=False, rounding=0.0)
  one, other = (
    loss_distribution.compose(
      ((loss_distribution.Leaf(2.0, shares), 5),), grid
    ).epsilon(1e-5)
    for shares in ((0.9, 0.1), (0.9, 0.1, 0.0))
  )
  assert one == pytest.approx(other, rel=1e-4)


def test_a_mixture_agrees_with_its_density():
  """delta(eps) of one step, integrated: 2 users, each there with q = .3.

  N(0, z^2) against sum_j Binomial(2, .3)(j) N(j, z^2), in both directions.
  """
  noise, epsilon = 0.8, 0.7
  shares = (0.49, 0.42, 0.09)
  x = np.linspace(-12, 14, 400_001)
  base = stats.norm.pdf(x, scale=noise)
  mixed = sum(
    share * stats.norm.pdf(x, loc=j, scale=noise)
    for j, share in enumerate(shares)
  )
  expected = max(
    np.trapz(np.maximum(one - math.exp(epsilon) * other, 0), x)
    for one, other in ((mixed, base), (base, mixed))
  )
  grid = loss_distribution.Grid(0.002, is_coarse=False, rounding=0.0)
  composed = loss_distribution.compose(
    ((loss_distribution.Leaf(noise, shares), 1),), grid
  )
  found = composed.deltas([epsilon])[0]
  assert expected <= found * (1 + 1e-9)
  assert found == pytest.approx(expected, rel=2e-3)


def test_what_the_library_cannot_build_is_none():
  counts = ((_sampled(1e-4, 0.5), 3), (_sampled(1e-4, 0.4), 10**6))
  grid = loss_distribution.choose_grid(counts)
  assert loss_distribution.compose(counts, grid) is None
