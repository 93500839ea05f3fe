"""One event a run, whatever the restarts and the counts."""

import math

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import samplers

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE
_REPLACE = guarantee.Adjacency.REPLACE_ONE


def _adaptive_tree(**changes):
  values = {'restart_every': 4, 'virtual_clients': 40} | changes
  return correlated_gaussian.CorrelatedGaussian(
    1.0, 0.5, correlated.Tree(), clipping='adaptive', **values
  )


def _run_event(
  mechanism, rounds, separation, times, *, adjacency=_ADD_REMOVE, **sharing
):
  return mechanism.run_event(
    clipped_sum.sensitivity_multiple(adjacency, **sharing),
    rounds=rounds,
    participation=samplers.Participation(separation, times),
  )


class TestCorrelated:
  def test_one_event_for_the_whole_run(self):
    # 30 rounds, once a user: in at most 5 nodes, moved by 2 clip norms each.
    tree = correlated_gaussian.CorrelatedGaussian(1.0, 3.84, correlated.Tree())
    found = _run_event(tree, 30, 30, 1)
    assert found.noise_multiplier == pytest.approx(3.84 / 2 / math.sqrt(5))
    alone = _run_event(tree, 30, 30, 1, shares_virtual_client=False)
    assert alone.noise_multiplier == pytest.approx(3.84 / math.sqrt(5))
    replaced = _run_event(
      tree, 30, 30, 1, adjacency=_REPLACE, shares_virtual_client=False
    )
    assert replaced == found
    with pytest.raises(guarantee.PlanError, match='charged once'):
      tree.event(2.0)

  def test_squares_of_segments_add_up(self):
    # Segments of 4 rounds, every second round a user: nodes of phase 0 in each
    # hold 1, 1, 1, 2 of them: 7, thrice.
    tree = correlated_gaussian.CorrelatedGaussian(
      1.0, 1.0, correlated.Tree(), restart_every=4
    )
    found = _run_event(tree, 12, 2, 6)
    assert found.noise_multiplier == pytest.approx(1 / 2 / math.sqrt(21))

  def test_counts_are_composed(self):
    # Three rounds of one user, a segment each: C is 1 in those. Bits of three
    # rounds flip: sigma_b = 2, so 2 x 2 / (2 sqrt 3).
    found = _run_event(_adaptive_tree(), 12, 4, 3)
    value, count = found.events
    assert count == dp_event.GaussianDpEvent(4 / (2 * math.sqrt(3)))
    # Phase 0 is in the nodes (0,1], (0,2], (0,4] of each segment.
    assert value.noise_multiplier == pytest.approx(0.5 / (2 * 3))

  def test_count_by_brute_force(self):
    """A flipped bit moves the count by 1, one that comes or goes by 1/2."""
    bits = (-0.5, 0.5)
    flips = max(abs(one - other) for one in bits for other in bits)
    comes = max(map(abs, bits))
    for shares, most in ((True, flips), (False, comes)):
      count = _run_event(
        _adaptive_tree(), 12, 12, 1, shares_virtual_client=shares
      ).events[1]
      assert count.noise_multiplier == pytest.approx(2.0 / most)

  def test_a_replay_is_one_row_and_one_count(self):
    # The root of 8 rounds holds a user of every second round four times.
    tree = correlated_gaussian.CorrelatedGaussian(1.0, 1.0, correlated.Tree())
    found = tree.replay_event(
      2.0, rounds=8, participation=samplers.Participation(2, 4)
    )
    assert found == dp_event.GaussianDpEvent(1 / 2 / 4)
    value, count = (
      _adaptive_tree()
      .replay_event(2.0, rounds=8, participation=samplers.Participation(8, 1))
      .events
    )
    assert value == dp_event.GaussianDpEvent(0.25)
    assert count == dp_event.GaussianDpEvent(2.0)

  def test_the_last_row_again_is_what_a_replay_reveals(self):
    """C with a row twice is no worse than the run and a replay, composed."""
    tree = correlated_gaussian.CorrelatedGaussian(1.0, 1.0, correlated.Tree())
    matrix = correlated.Tree().matrix(8)
    participation = samplers.Participation(3, 3)
    apart = events.gaussian_multiplier(
      dp_event.ComposedDpEvent(
        [
          _run_event(tree, 8, 3, 3),
          tree.replay_event(2.0, rounds=8, participation=participation),
        ]
      )
    )
    for row in range(8):
      for phase in range(3):
        rows = [*matrix, matrix[row]]
        moved = [2 * sum(one[phase::3]) for one in rows]
        norm = math.sqrt(sum(one**2 for one in moved))
        assert 1 / norm >= apart

  def test_streams_restart(self):
    tree = correlated_gaussian.CorrelatedGaussian(
      1.0, 1.0, correlated.Tree(), restart_every=4
    )
    assert tree.stream(10).rounds == 10
    assert not tree.stream(10).keep[[3, 7]].any()
    assert tree.stream(3).rounds == 3

  @pytest.mark.parametrize('shares', [True, False])
  def test_no_noise_is_a_non_private_event(self, shares):
    for mechanism in (
      correlated_gaussian.CorrelatedGaussian(1.0, 0.0, correlated.Tree()),
      correlated_gaussian.CorrelatedGaussian(
        1.0,
        0.0,
        correlated.Tree(),
        restart_every=4,
        clipping='adaptive',
        virtual_clients=8,
      ),
    ):
      assert _run_event(mechanism, 8, 4, 2, shares_virtual_client=shares) == (
        dp_event.NonPrivateDpEvent()
      )

  @pytest.mark.parametrize(
    ('changes', 'match'),
    [
      ({'strategy': 'tree'}, 'strategy must be Tree, Banded or Blt, got str'),
      ({'restart_every': -1}, 'restart_every must be whole and >= 0'),
      ({'restart_every': 2.5}, 'restart_every must be whole and >= 0'),
      ({'clipping': 'none'}, "clipping must be 'fixed' or 'adaptive'"),
      ({'clipping': 'adaptive'}, 'restart_every must be > 0 for adaptive'),
      ({'clipped_count_stddev': 1.0}, 'must be 0 with fixed clipping'),
      ({'virtual_clients': 0}, 'virtual_clients must be whole and >= 1'),
      (
        {
          'clipping': 'adaptive',
          'restart_every': 2,
          'clipped_count_stddev': 0.0,
        },
        'clipped_count_stddev must be > 0 with noise',
      ),
    ],
  )
  def test_illegal_values_are_refused(self, changes, match):
    values = {
      'clip_norm': 1.0,
      'noise_multiplier': 1.0,
      'strategy': correlated.Tree(),
    }
    correlated_gaussian.CorrelatedGaussian(**values)
    with pytest.raises(guarantee.PlanError, match=match):
      correlated_gaussian.CorrelatedGaussian(**values | changes)
