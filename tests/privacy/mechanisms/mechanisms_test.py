"""Noise splits, sensitivities, and what is refused."""

import math

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE
_REPLACE = guarantee.Adjacency.REPLACE_ONE
_ZERO_OUT = guarantee.Adjacency.ZERO_OUT


def _adaptive_tree(**changes):
  values = {'restart_every': 4, 'virtual_clients': 40} | changes
  return correlated_gaussian.CorrelatedGaussian(
    1.0, 0.5, correlated.Tree(), clipping='adaptive', **values
  )


@pytest.mark.parametrize(
  ('noise', 'clients', 'factor'),
  [
    # z_value / z_total that TFF 0.87's adaptive_clip_noise_params gives for
    # z = 1 (field reports, M6).
    (1.0, 20, 1.155),
    (1.0, 21, 1.137),
    (1.0, 100, 1.005),
    (1.0, 500, 1.0002),
  ],
)
def test_golden_adaptive_split(noise, clients, factor):
  mechanism = independent.AdaptiveClipGaussian(0.5, noise, clients)
  assert mechanism.value_noise_multiplier == pytest.approx(factor, abs=6e-4)
  assert mechanism.clipped_count_stddev == pytest.approx(0.05 * clients)


@pytest.mark.parametrize('adjacency', list(guarantee.Adjacency))
@pytest.mark.parametrize('shares', [True, False])
@pytest.mark.parametrize(
  ('noise', 'clients', 'stddev'),
  [(1.0, 11, None), (0.03, 8, None), (5.92, 610, None), (1.0, 4, 0.6)],
)
def test_value_and_count_compose_to_exactly_the_total(
  noise, clients, stddev, shares, adjacency
):
  mechanism = independent.AdaptiveClipGaussian(
    0.5, noise, clients, clipped_count_stddev=stddev
  )
  parts = mechanism.components(adjacency, shares_virtual_client=shares)
  whole = mechanism.event(adjacency, shares_virtual_client=shares)
  together = events.gaussian_multiplier(parts)
  assert together == pytest.approx(whole.noise_multiplier, rel=1e-6)
  multiple = mechanism.sensitivity(adjacency, shares_virtual_client=shares)
  assert together * multiple == pytest.approx(noise, rel=1e-6)


@pytest.mark.parametrize(
  ('noise', 'smallest'), [(1.0, 11), (0.62, 7), (0.03, 1), (1.1, 12), (10, 101)]
)
def test_too_small_a_cohort_names_the_smallest_legal_one(noise, smallest):
  assert independent.smallest_cohort(noise) == smallest
  independent.AdaptiveClipGaussian(1.0, noise, smallest)
  if smallest > 1:
    with pytest.raises(
      guarantee.PlanError, match=f'at least {smallest} .*got {smallest - 1}'
    ):
      independent.AdaptiveClipGaussian(1.0, noise, smallest - 1)


def test_too_small_a_count_noise_says_how_much_is_needed():
  with pytest.raises(guarantee.PlanError, match='> noise_multiplier / 2 = 0.5'):
    independent.AdaptiveClipGaussian(1.0, 1.0, 100, clipped_count_stddev=0.5)


@pytest.mark.parametrize(
  ('adjacency', 'shares', 'multiple'),
  [
    (_ADD_REMOVE, True, 2),
    (_ADD_REMOVE, False, 1),
    (_ZERO_OUT, True, 2),
    (_ZERO_OUT, False, 1),
    (_REPLACE, True, 2),
    (_REPLACE, False, 2),
  ],
)
def test_sensitivity_by_brute_force(adjacency, shares, multiple):
  """The worst neighbours on a line, over every pair of clipped updates."""
  clipped = (-1.0, -0.5, 0.0, 0.5, 1.0)  # Updates / C of one virtual client.
  moves = [abs(one - other) for one in clipped for other in clipped]
  if adjacency is not _REPLACE and not shares:
    # The user *is* the virtual client: without him its update is zero.
    moves = [abs(one) for one in clipped]
  mechanism = independent.FixedClipGaussian(1.0, 1.0)
  assert max(moves) == multiple
  assert (
    mechanism.sensitivity(adjacency, shares_virtual_client=shares) == multiple
  )
  event = mechanism.event(adjacency, shares_virtual_client=shares)
  assert event == dp_event.GaussianDpEvent(1.0 / multiple)


@pytest.mark.parametrize(
  'mechanism',
  [
    independent.FixedClipGaussian(1.0, 0.0),
    independent.AdaptiveClipGaussian(1.0, 0.0, 8),
  ],
)
def test_no_noise_is_a_non_private_event(mechanism):
  assert mechanism.event(_ADD_REMOVE) == dp_event.NonPrivateDpEvent()
  assert mechanism.value_noise_multiplier == 0
  assert mechanism.count_stddev == 0


@pytest.mark.parametrize('value', [math.nan, math.inf, -1.0])
def test_non_finite_and_negative_values_are_refused(value):
  for build in (
    lambda: independent.FixedClipGaussian(1.0, value),
    lambda: independent.FixedClipGaussian(value, 1.0),
    lambda: correlated_gaussian.CorrelatedGaussian(
      1.0, value, correlated.Tree()
    ),
    lambda: correlated_gaussian.CorrelatedGaussian(
      value, 1.0, correlated.Tree()
    ),
    lambda: _adaptive_tree(learning_rate=value),
    lambda: _adaptive_tree(clipped_count_stddev=value),
    lambda: _adaptive_tree(target_unclipped_quantile=value),
    lambda: independent.AdaptiveClipGaussian(1.0, value, 100),
    lambda: independent.AdaptiveClipGaussian(value, 1.0, 100),
    lambda: independent.AdaptiveClipGaussian(
      1.0, 1.0, 100, learning_rate=value
    ),
    lambda: independent.AdaptiveClipGaussian(
      1.0, 1.0, 100, clipped_count_stddev=value
    ),
    lambda: independent.AdaptiveClipGaussian(
      1.0, 1.0, 100, target_unclipped_quantile=value
    ),
  ):
    with pytest.raises(guarantee.PlanError, match='must be'):
      build()


@pytest.mark.parametrize(
  'mechanism',
  [
    independent.FixedClipGaussian(1.0, 0.5),
    independent.AdaptiveClipGaussian(1.0, 0.5, 100, learning_rate=0.1),
    correlated_gaussian.CorrelatedGaussian(1.0, 0.5, correlated.Tree()),
    correlated_gaussian.CorrelatedGaussian(
      1.0, 0.5, correlated.Banded(4), restart_every=7
    ),
    correlated_gaussian.CorrelatedGaussian(
      1.0,
      0.5,
      correlated.Blt((0.5, 0.9), (0.2, 0.1)),
      restart_every=5,
      clipping='adaptive',
      virtual_clients=100,
      learning_rate=0.1,
      target_unclipped_quantile=0.8,
    ),
  ],
)
def test_json_gives_the_mechanism_back(mechanism):
  assert mechanisms.from_json(mechanism.to_json()) == mechanism


@pytest.mark.parametrize(
  'name', ['value_noise_multiplier', 'clipped_count_stddev', 'noise_multiplier']
)
def test_json_with_a_split_that_does_not_add_up_is_refused(name):
  content = independent.AdaptiveClipGaussian(1.0, 0.5, 100).to_json()
  content[name] *= 1.01
  with pytest.raises(guarantee.PlanError, match='must be'):
    mechanisms.from_json(content)


def _run_event(mechanism, rounds, separation, times, **settings):
  return mechanism.run_event(
    settings.pop('adjacency', _ADD_REMOVE),
    rounds=rounds,
    participation=samplers.Participation(separation, times),
    **settings,
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
      tree.event(_ADD_REMOVE)

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
      _ADD_REMOVE, rounds=8, participation=samplers.Participation(2, 4)
    )
    assert found == dp_event.GaussianDpEvent(1 / 2 / 4)
    value, count = (
      _adaptive_tree()
      .replay_event(
        _ADD_REMOVE, rounds=8, participation=samplers.Participation(8, 1)
      )
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
          tree.replay_event(_ADD_REMOVE, rounds=8, participation=participation),
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


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'kind': 'blt'}, "strategy must be 'blt' as the mechanism, got 'tree'"),
    ({'kind': 'white'}, "mechanism kind must be 'fixed', 'adaptive', 'tree'"),
    ({'strategy': None}, 'a strategy must hold numbers'),
    ({'noise_multiplier': '1'}, 'noise_multiplier must be finite'),
    ({'noise_multiplier': True}, 'noise_multiplier must be finite'),
    ({'value_noise_multiplier': 'x'}, 'value_noise_multiplier must be 0.5'),
    ({'value_noise_multiplier': 0.51}, 'value_noise_multiplier must be 0.5'),
    ({'restart_every': '4'}, 'restart_every must be whole'),
    ({'virtual_clients': None}, 'virtual_clients must be whole'),
  ],
)
def test_json_that_breaks_a_rule_is_refused(changes, match):
  content = _adaptive_tree().to_json()
  assert mechanisms.from_json(content) == _adaptive_tree()
  with pytest.raises(guarantee.PlanError, match=match):
    mechanisms.from_json(content | changes)


@pytest.mark.parametrize(
  'mechanism',
  [
    independent.FixedClipGaussian(1.0, 0.5),
    independent.AdaptiveClipGaussian(1.0, 0.5, 100),
    _adaptive_tree(),
  ],
)
def test_json_with_a_field_missing_is_refused(mechanism):
  content = mechanism.to_json()
  for name in content:
    less = {key: value for key, value in content.items() if key != name}
    with pytest.raises(
      guarantee.PlanError, match=f'{name}.* must|must .*{name}'
    ):
      mechanisms.from_json(less)


@pytest.mark.parametrize(
  ('clip', 'noise', 'message'),
  [
    (1e-13, 1.0, 'clip_norm must be finite and >= 1e-12'),
    (1.0, 1e-308, 'noise_multiplier must be finite and >= 1e-09'),
    (1.0, 5e-10, 'noise_multiplier must be finite and >= 1e-09'),
  ],
)
def test_numbers_too_small_for_arithmetic_are_refused(clip, noise, message):
  with pytest.raises(guarantee.PlanError, match=message):
    independent.FixedClipGaussian(clip, noise)
