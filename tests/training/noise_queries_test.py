"""Correlated noise in TFF: equal to the stream, restarts, resumes, secrets.

The fresh noise z of a round follows from the seeds that the test put into the
state; the noise that the round added must be what `NoiseStream.noise` makes of
all z so far, number for number.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy import stats

from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import checkpoints
from tff_dpemb.training import noise_queries

_SHAPES = ((2, 3), (6,))
_TYPE = tff.types.to_type([(np.float32, list(shape)) for shape in _SHAPES])
_ROUNDS = 12
_STRATEGIES = {
  'tree': correlated.Tree(),
  'banded': correlated.Banded(4),
  'blt': correlated.Blt((0.9, 0.5), (0.3, 0.2)),
}


def _mechanism(strategy, *, restart_every=0, adaptive=False, **changes):
  if adaptive:
    changes = {'clipping': 'adaptive', 'virtual_clients': 4, **changes}
  return correlated_gaussian.CorrelatedGaussian(
    0.5, 2.0, _STRATEGIES[strategy], restart_every=restart_every, **changes
  )


def _process(mechanism, *, rounds=_ROUNDS, denominator=1.0):
  return aggregators.build_aggregator(
    mechanism, denominator=denominator, rounds=rounds
  ).create(_TYPE)


def _sums(state):
  """The state of the sum's query."""
  query_state = state.query_state.numerator_state
  return getattr(query_state, 'sum_state', query_state)


def _client(norm=0.0):
  value = norm / math.sqrt(12)
  return [np.full(shape, value, np.float32) for shape in _SHAPES]


def _play(process, state, *, rounds, clients=(), between=lambda state: state):
  """Runs rounds; returns z and y by tensor [rounds, ...], clips, last state."""
  fresh, noise, clips = [], [], []
  for _ in range(rounds):
    state = aggregators.with_fresh_noise_seeds(between(state))
    sums = _sums(state)
    clips.append(float(sums.l2_norm_clip))
    fresh.append(
      [
        float(sums.stddev) * noise_queries.standard_normal(shape, seed).numpy()
        for shape, seed in zip(_SHAPES, sums.noise_seeds, strict=True)
      ]
    )
    output = process.next(state, [*clients, _client()])
    state = output.state
    noise.append([np.asarray(x) for x in output.result])
  by_tensor = [
    list(map(np.stack, zip(*x, strict=True))) for x in (fresh, noise)
  ]
  return *by_tensor, clips, state


@pytest.mark.parametrize(
  ('restart_every', 'adaptive'),
  [(0, False), (5, False), (5, True)],
  ids=['whole', 'restarts', 'adaptive'],
)
@pytest.mark.parametrize('strategy', _STRATEGIES)
def test_noise_is_that_of_the_stream(
  tff_worker, strategy, restart_every, adaptive
):
  mechanism = _mechanism(
    strategy, restart_every=restart_every, adaptive=adaptive
  )
  process = _process(mechanism)
  fresh, noise, clips, _ = _play(process, process.initialize(), rounds=_ROUNDS)
  for z, y in zip(fresh, noise, strict=True):
    expected = mechanism.stream(_ROUNDS).noise(z)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    if strategy != 'tree':  # All of them but the first depend on the past.
      assert np.abs(y[1] - z[1]).max() > 0.01
  assert (len(set(clips)) > 1) == adaptive


def test_the_denominator_divides_sum_and_noise(tff_worker):
  process = _process(_mechanism('blt'), denominator=4.0)
  fresh, noise, _, _ = _play(process, process.initialize(), rounds=3)
  expected = _mechanism('blt').stream(_ROUNDS).noise(fresh[0])
  np.testing.assert_allclose(noise[0], expected / 4, atol=1e-5)


@pytest.mark.parametrize('strategy', _STRATEGIES)
def test_a_resumed_run_goes_on_with_the_same_stream(
  tff_worker, strategy, tmp_path
):
  """Buffers come back from a checkpoint before every round but the first."""
  mechanism = _mechanism(strategy, restart_every=7, adaptive=True)
  process = _process(mechanism)
  template = process.initialize()
  number = 0

  def resumed(state):
    nonlocal number
    checkpoints.save(tmp_path, number, state, keep=1)
    found, state = checkpoints.load_latest(tmp_path, template)
    assert found == number
    number += 1
    return state

  fresh, noise, _, _ = _play(process, template, rounds=_ROUNDS, between=resumed)
  for z, y in zip(fresh, noise, strict=True):
    expected = mechanism.stream(_ROUNDS).noise(z)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_equal_tensors_do_not_share_noise_in_any_round(tff_worker):
  """6 rounds of 20 000 draws: 5 sigma, a false alarm below 1e-5."""
  size = 20_000
  value_type = tff.types.to_type([(np.float32, [size])] * 2)
  mechanism = _mechanism('blt')
  process = aggregators.build_aggregator(
    mechanism, denominator=1.0, rounds=6
  ).create(value_type)
  state = process.initialize()
  covariance = mechanism.stream(6).noise(np.eye(6))
  deviations = np.sqrt((covariance**2).sum(axis=1))
  for number in range(6):
    state = aggregators.with_fresh_noise_seeds(state)
    output = process.next(state, [[np.zeros([size], np.float32)] * 2])
    state = output.state
    first, second = output.result
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(size)
    expected = 0.5 * 2.0 * deviations[number]
    for noise in (first, second):
      assert np.std(noise) == pytest.approx(
        expected, abs=5 * expected / math.sqrt(2 * size)
      )


def test_the_clip_moves_at_restarts_only(tff_worker):
  """Segments of 4 of 10 rounds: hand-computed clips with a silent count.

  4 virtual clients: three of norm 1 and one of norm 0. At clip .5 one of four
  is unclipped: the clip becomes .5 exp(-.2 x 4 x (1/4 - 1/2)) = .5 exp(.2);
  it takes .5 exp(.2 k) >= 1, k = 4, to let all pass.
  """
  mechanism = _mechanism(
    'tree',
    restart_every=4,
    adaptive=True,
    clipped_count_stddev=1e-6,
    learning_rate=0.2,
  )
  process = _process(mechanism, rounds=20)
  _, _, clips, state = _play(
    process, process.initialize(), rounds=20, clients=[_client(1.0)] * 3
  )
  expected = [0.5 * math.exp(0.2 * (t // 4)) for t in range(20)]
  np.testing.assert_allclose(clips, expected, rtol=1e-5)
  assert float(_sums(state).l2_norm_clip) < clips[-1]  # At 1.1 all pass.


def test_the_clip_moves_by_a_bounded_factor(tff_worker):
  """4 rounds at a rate of 5 with all clipped would be a factor of exp(10)."""
  mechanism = _mechanism(
    'tree',
    restart_every=4,
    adaptive=True,
    clipped_count_stddev=1e-6,
    learning_rate=5.0,
  )
  process = _process(mechanism, rounds=8)
  _, _, clips, _ = _play(
    process, process.initialize(), rounds=8, clients=[_client(99.0)] * 4
  )
  np.testing.assert_allclose(clips, [0.5] * 4 + [5.0] * 4, rtol=1e-5)


def test_the_clip_follows_the_mean_noisy_count(tff_worker):
  """One segment of 10 rounds, 2 of 4 unclipped, count noise of deviation 1.

  The noise of each count follows from its seeds. Mean fraction .5 + mean noise
  / 4, target .25, learning_rate x 10 = 1.
  """
  mechanism = _mechanism(
    'banded',
    restart_every=10,
    adaptive=True,
    clipped_count_stddev=1.0,
    learning_rate=0.1,
    target_unclipped_quantile=0.25,
  )
  process = _process(mechanism, rounds=10)
  state, counts = process.initialize(), []
  for _ in range(10):
    assert float(_sums(state).l2_norm_clip) == 0.5
    state = aggregators.with_fresh_noise_seeds(state)
    (seed,) = state.query_state.numerator_state.count_state.noise_seeds
    counts.append(float(noise_queries.standard_normal([], seed)))
    clients = [_client(9.0), _client(9.0), _client(), _client()]
    state = process.next(state, clients).state
  assert len(set(counts)) == 10
  fraction = min(max(0.5 + np.mean(counts) / 4, 0.0), 1.0)
  expected = 0.5 * math.exp(-(fraction - 0.25))
  assert float(_sums(state).l2_norm_clip) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize('adaptive', [False, True])
def test_a_round_beyond_the_plan_fails_closed(tff_worker, adaptive):
  mechanism = _mechanism('banded', restart_every=2, adaptive=adaptive)
  process = _process(mechanism, rounds=3)
  _, noise, _, state = _play(process, process.initialize(), rounds=3)
  assert np.isfinite(noise[0]).all()
  output = process.next(aggregators.with_fresh_noise_seeds(state), [_client()])
  assert all(np.isnan(x).all() for x in output.result)


def test_a_state_without_buffers_tells_nothing_of_the_noise(tff_worker):
  process = _process(_mechanism('blt'))
  _, _, _, state = _play(process, process.initialize(), rounds=3)
  assert all(np.abs(buffer).max() > 0 for buffer in _sums(state).buffers)
  bare = aggregators.without_buffers(state)
  assert [x.shape for x in _sums(bare).buffers] == [(2, 2, 3), (2, 6)]
  assert not any(np.any(buffer) for buffer in _sums(bare).buffers)
  assert _sums(bare).step == _sums(state).step
  plain = aggregators.build_aggregator(
    independent.FixedClipGaussian(1.0, 1.0), denominator=1.0
  ).create(_TYPE)
  before = plain.initialize()
  tf.nest.assert_same_structure(aggregators.without_buffers(before), before)


def _share_on_grid(normals):
  """Of neighbours far out, the share with a radius of float32's Box-Muller."""
  pairs = np.asarray(normals, np.float64).reshape(-1, 2)
  squares = (pairs**2).sum(axis=1)
  uniforms = np.exp(-squares[squares > 14] / 2) * 2**23
  assert len(uniforms) > 800  # Of 2^20 pairs, exp(-7) are expected: 956.
  return float((np.abs(uniforms - np.round(uniforms)) < 0.05).mean())


def test_noise_lies_on_no_grid():
  """By chance .1 of the radii do; 5 standard errors of 800 are .053."""
  seed, shape = tf.constant([11, 7], tf.int64), [2**21]
  assert _share_on_grid(tf.random.stateless_normal(shape, seed)) > 0.9
  found = noise_queries.standard_normal(shape, seed)
  assert found.dtype == tf.float64
  assert _share_on_grid(found) < 0.16


def test_noise_is_standard_normal():
  """The Kolmogorov-Smirnov test; a false alarm once in 10 000."""
  found = noise_queries.standard_normal([2**20], tf.constant([3, 5], tf.int64))
  assert stats.kstest(found.numpy(), 'norm').pvalue > 1e-4
  neighbours = found.numpy().reshape(-1, 2)
  assert abs(np.corrcoef(neighbours.T)[0, 1]) < 5 / math.sqrt(2**19)


def test_values_of_the_same_two_pairs_are_independent():
  """Value i and value -1 - i: of each pair one has the cosine, one the sine."""
  found = noise_queries.standard_normal([2**20], tf.constant([3, 9], tf.int64))
  half = found.numpy()[: 2**19]
  other = found.numpy()[::-1][: 2**19]
  for power in (1, 2):
    correlation = np.corrcoef(half**power, other**power)[0, 1]
    assert abs(correlation) < 5 / math.sqrt(2**19)


@pytest.mark.parametrize('shape', [[], [1], [3], [2, 5], [0], [4, 0]])
def test_noise_has_the_shape_and_follows_from_the_seed(shape):
  seed = tf.constant([3, 5], tf.int64)
  found = noise_queries.standard_normal(shape, seed)
  assert found.shape == shape
  again = noise_queries.standard_normal(tf.constant(shape, tf.int32), seed)
  np.testing.assert_array_equal(found, again)
  other = noise_queries.standard_normal(shape, tf.constant([3, 6], tf.int64))
  assert not np.any(found.numpy() == other.numpy())


def test_noise_reaches_as_far_as_two_pairs_do(monkeypatch):
  """Both radii at their end sqrt(2 ln 2^65) = 9.49, one at 0, one at pi / 2."""
  monkeypatch.setattr(
    tf.random,
    'stateless_uniform',
    lambda shape, seed, minval, maxval, dtype: tf.constant(
      [[0, 0], [0, 2**62]], dtype
    ),
  )
  found = noise_queries.standard_normal([1], tf.constant([1, 1], tf.int64))
  end = math.sqrt(2 * 65 * math.log(2))
  np.testing.assert_allclose(found, [math.sqrt(2) * end])


@pytest.mark.parametrize(('clip', 'expected'), [(1e-21, 0.0), (1e-12, 1.0)])
def test_a_clip_norm_that_float32_cannot_hold_to_lets_nothing_pass(
  clip, expected
):
  """The squares of 9e-19 are lost: it would leave as it is, 900 clip norms."""
  query = noise_queries.SeededGaussianSumQuery(clip, 1.0, tensors=1)
  record = [tf.constant([9e-19 if clip < 1e-15 else 9e-6])]
  (kept,), _ = query.preprocess_record_impl(tf.constant(clip), record)
  np.testing.assert_allclose(kept / clip, [expected], rtol=1e-5)
