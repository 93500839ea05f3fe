"""Strategies fitted to a run: close to the best, and better than others."""

import numpy as np
import pytest

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_design
from tff_dpemb.privacy.mechanisms import correlated_sensitivity
from tff_dpemb.privacy.mechanisms import samplers


def _largest(strategy, rounds, participation):
  return correlated_sensitivity.error(
    strategy, rounds, participation=participation
  ).largest


@pytest.mark.parametrize('rounds', [10, 100, 500])
def test_blt_is_close_to_the_best_where_users_take_part_once(rounds):
  # The square root is the best of all Toeplitz matrices for the largest total
  # (arXiv 2404.16706): the error is the sum of its squares.
  root = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, rounds))])
  participation = samplers.Participation(rounds, 1)
  found = correlated_design.optimise_blt(rounds, participation=participation)
  error = _largest(found, rounds, participation)
  assert root @ root <= error * (1 + 1e-9)
  assert error <= 1.01 * (root @ root)


@pytest.mark.parametrize(
  ('rounds', 'separation'), [(20, 5), (100, 10), (200, 20), (300, 300)]
)
def test_blt_beats_banded_beats_tree_beats_nothing(rounds, separation):
  participation = samplers.Participation(separation, -(-rounds // separation))
  blt, banded, tree, independent = (
    _largest(strategy, rounds, participation)
    for strategy in (
      correlated_design.optimise_blt(rounds, participation=participation),
      correlated_design.best_banded(rounds, participation=participation),
      correlated.Tree(),
      correlated.Banded(1),
    )
  )
  assert blt <= 1.02 * banded
  assert max(blt, banded) < tree
  assert max(blt, banded) < 0.6 * independent


def test_blt_cannot_be_improved_by_a_small_change():
  participation = samplers.Participation(10, 10)
  found = correlated_design.optimise_blt(100, participation=participation)
  least = _largest(found, 100, participation)
  for index in range(len(found.decays)):
    for factor in (0.9, 1.1):
      weights = list(found.weights)
      weights[index] *= factor
      decays = list(found.decays)
      decays[index] = 1 - (1 - decays[index]) * factor
      for changed in (
        correlated.Blt(found.decays, tuple(weights)),
        correlated.Blt(tuple(decays), found.weights),
      ):
        assert _largest(changed, 100, participation) >= least * (1 - 1e-4)


def test_a_buffer_that_gains_nothing_is_left_out():
  participation = samplers.Participation(2, 1)
  found = correlated_design.optimise_blt(
    2, participation=participation, buffers=5
  )
  # Two rounds have one coefficient: 1, c_1; the best is 1/2.
  assert len(found.decays) == 1
  assert found.weights[0] == pytest.approx(0.5, abs=2e-3)


@pytest.mark.parametrize('size', [1, 2, 3])
def test_inverse_is_in_closed_form(size):
  rng = np.random.default_rng(size)
  decays, weights = rng.uniform(0.05, 0.95, (2, size))
  weights = weights / weights.sum()  # So that an eigenvalue is negative.
  blt = correlated.Blt(tuple(decays), tuple(weights * 0.999))
  found = correlated_design._inverse(decays, weights * 0.999, 25)
  np.testing.assert_allclose(
    found, np.linalg.inv(blt.matrix(25))[:, 0], atol=1e-12
  )


def test_bands_are_as_many_as_help():
  once = samplers.Participation(20, 1)
  assert correlated_design.best_banded(20, participation=once).bands == 20
  often = samplers.Participation(1, 20)
  assert correlated_design.best_banded(20, participation=often).bands < 20


def test_build_fits_a_segment():
  participation = samplers.Participation(10, 10)
  for noise in ('banded', 'blt'):
    assert correlated_design.build(
      noise, 100, participation=participation, restart_every=20
    ) == correlated_design.build(noise, 20, participation=participation)
  assert correlated_design.build(
    'banded', 100, participation=participation, bands=3
  ) == correlated.Banded(3)
  assert (
    correlated_design.build('tree', 100, participation=participation)
    == correlated.Tree()
  )


@pytest.mark.parametrize(
  ('settings', 'match'),
  [
    ({'noise': 'white'}, "noise must be 'tree', 'banded' or 'blt'"),
    ({'noise': 'blt', 'buffers': 0}, 'blt_buffers must be whole and in'),
    ({'noise': 'blt', 'buffers': 6}, 'got 6'),
    ({'noise': 'banded', 'bands': 33}, 'bands must be whole and in'),
    ({'noise': 'blt', 'rounds': 5000}, 'rounds must be in'),
    ({'noise': 'banded', 'rounds': 5000}, 'rounds must be in'),
  ],
)
def test_build_refuses(settings, match):
  settings = {'rounds': 10} | settings
  with pytest.raises(guarantee.PlanError, match=match):
    correlated_design.build(
      settings.pop('noise'),
      settings.pop('rounds'),
      participation=samplers.Participation(5, 2),
      **settings,
    )
