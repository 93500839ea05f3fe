"""The bounded map, the noise and the denominator of the DP aggregators.

Statistical checks state their false-alarm probability; the noise itself is
seeded by the operating system, so they are not repeatable to the bit.
"""

import math

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import noise_queries

_TYPE = tff.types.to_type([(np.float32, [2, 3]), (np.float32, [6])])
_TINY = 1e-9
_ROUNDS = 12
_BLT = correlated.Blt((0.9, 0.5), (0.3, 0.2))
_KINDS = ('fixed', 'adaptive', 'tree', 'banded', 'blt', 'tree-adaptive')
# Tensors of the type, and the clipped count when adaptive.
_SEEDS = dict(zip(_KINDS, (2, 3, 2, 2, 2, 3), strict=True))


def _mechanism(kind, noise_multiplier, *, clip_norm=1.0):
  common = (clip_norm, noise_multiplier)
  match kind:
    case 'fixed':
      return independent.FixedClipGaussian(*common)
    case 'adaptive':
      return independent.AdaptiveClipGaussian(*common, virtual_clients=20)
    case 'tree':
      return correlated_gaussian.CorrelatedGaussian(*common, correlated.Tree())
    case 'banded':
      strategy = correlated.Banded(4)
      return correlated_gaussian.CorrelatedGaussian(
        *common, strategy, restart_every=5
      )
    case 'blt':
      return correlated_gaussian.CorrelatedGaussian(*common, _BLT)
  return correlated_gaussian.CorrelatedGaussian(
    *common,
    correlated.Tree(),
    restart_every=4,
    clipping='adaptive',
    virtual_clients=20,
  )


def _client(scale=1.0):
  return [np.full([2, 3], scale, np.float32), np.full([6], scale, np.float32)]


def _run(mechanism, clients, *, denominator=1.0, value_type=_TYPE):
  process = aggregators.build_aggregator(
    mechanism, denominator=denominator, rounds=_ROUNDS
  ).create(value_type)
  state = aggregators.with_fresh_noise_seeds(process.initialize())
  return process.next(state, clients)


def _norm(value):
  return math.sqrt(sum(float(np.sum(np.square(x))) for x in value))


@pytest.mark.parametrize('kind', _KINDS)
def test_a_non_finite_update_counts_as_zero(tff_worker, kind):
  """TFF's own factories return NaN for these; see Bounded in the module.

  The same seeds are used for every round, so results are equal with the noise.
  """
  process = aggregators.build_aggregator(
    _mechanism(kind, 1.0), denominator=1.0, rounds=_ROUNDS
  ).create(_TYPE)
  state = aggregators.with_fresh_noise_seeds(process.initialize())
  clean = [_client(0.1 * i) for i in range(19)]
  with_zero = process.next(state, [*clean, _client(0.0)])
  assert with_zero.measurements['zeroed'] == 0
  for bad in (np.nan, np.inf, -np.inf, 1e30):
    poisoned = _client()
    poisoned[1][3] = bad
    with_bad = process.next(state, [*clean, poisoned])
    for ours, theirs in zip(with_bad.result, with_zero.result, strict=True):
      assert np.all(np.isfinite(ours))
      np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert with_bad.measurements['zeroed'] == 1


def test_sum_is_clipped_and_divided_by_the_public_constant(tff_worker):
  mechanism = independent.FixedClipGaussian(0.5, _TINY)
  huge = _run(mechanism, [_client(1e6)], denominator=4.0)
  assert _norm(huge.result) == pytest.approx(0.5 / 4, rel=1e-5)
  small = _run(mechanism, [_client(0.01)] * 3, denominator=4.0)
  np.testing.assert_allclose(small.result[0], 0.03 / 4, rtol=1e-5)


def test_one_user_moves_the_sum_by_up_to_twice_the_clip(tff_worker):
  """The worst case is reached: u and -u, both of norm C, in one slot."""
  mechanism = independent.FixedClipGaussian(0.5, _TINY)
  others = [_client(0.3), _client(-0.2)]
  before = _run(mechanism, [*others, _client(7.0)]).result
  after = _run(mechanism, [*others, _client(-7.0)]).result
  moved = _norm([x - y for x, y in zip(before, after, strict=True)])
  assert moved <= 2 * 0.5 * (1 + 1e-5)
  assert moved >= 1.99 * 0.5


@pytest.mark.parametrize('kind', _KINDS)
def test_noise_has_the_stated_deviation_and_tensors_do_not_share_it(
  tff_worker, kind
):
  """20 000 draws a tensor; bounds of 5 sigma: false alarm below 4e-6 a kind.

  Round 0 of correlated noise is all fresh. Later rounds are compared with the
  stream, number for number, in noise_queries_test.
  """
  size = 20_000
  value_type = tff.types.to_type([(np.float32, [size]), (np.float32, [size])])
  mechanism = _mechanism(kind, 1.5, clip_norm=2.0)
  zeros = [np.zeros([size], np.float32)] * 2
  first, second = _run(mechanism, [zeros], value_type=value_type).result
  again, _ = _run(mechanism, [zeros], value_type=value_type).result
  expected = 2.0 * mechanism.value_noise_multiplier
  for noise in (first, second, again):
    assert np.std(noise) == pytest.approx(
      expected, abs=5 * expected / math.sqrt(2 * size)
    )
    assert abs(np.mean(noise)) < 5 * expected / math.sqrt(size)
  for other in (second, again):
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(size)


def test_adaptive_noise_follows_the_split_of_the_mechanism(tff_worker):
  size = 20_000
  value_type = tff.types.to_type([(np.float32, [size])])
  mechanism = independent.AdaptiveClipGaussian(1.0, 1.0, virtual_clients=20)
  zeros = [np.zeros([size], np.float32)]
  (noise,) = _run(mechanism, [zeros] * 20, value_type=value_type).result
  expected = mechanism.value_noise_multiplier
  assert expected == pytest.approx(1.1547, abs=1e-4)  # 20 clients: x 1.155.
  assert np.std(noise) == pytest.approx(
    expected, abs=5 * expected / math.sqrt(2 * size)
  )


def test_adaptive_clip_moves_towards_the_updates(tff_worker):
  """20 equal updates of norm 1 and a first clip of .1: the clip must grow."""
  mechanism = independent.AdaptiveClipGaussian(0.1, 0.5, virtual_clients=20)
  process = aggregators.build_aggregator(mechanism, denominator=20.0).create(
    _TYPE
  )
  state = process.initialize()
  clips = []
  for _ in range(12):
    state = aggregators.with_fresh_noise_seeds(state)
    output = process.next(state, [_client(1 / math.sqrt(12))] * 20)
    state = output.state
    clips.append(float(output.measurements['dp']['dp_query_metrics']['clip']))
  # Without noise the clip would grow by exp(.1) a round, to .1 * exp(1.2).
  assert 0.1 * math.exp(0.9) < clips[-1] < 0.1 * math.exp(1.5)


def test_what_cannot_be_carried_out_is_refused():
  with pytest.raises(ValueError, match='mechanism must be a value of'):
    aggregators.build_aggregator(correlated.Tree(), denominator=1.0)
  with pytest.raises(ValueError, match='rounds must be >= 1 for correlated'):
    aggregators.build_aggregator(_mechanism('tree', 1.0), denominator=1.0)


def _seeds(state):
  """Every seed in a state, flat."""
  if isinstance(state, tuple) and hasattr(state, '_fields'):
    found = []
    for name in state._fields:
      value = getattr(state, name)
      found += (
        [np.asarray(value).ravel()]
        if name == noise_queries.SEEDS_FIELD
        else _seeds(value)
      )
    return found
  return []


@pytest.mark.parametrize('kind', _KINDS)
def test_seeds_are_128_bits_a_tensor_and_do_not_outlive_the_round(
  tff_worker, kind
):
  process = aggregators.build_aggregator(
    _mechanism(kind, 1.0), denominator=1.0, rounds=_ROUNDS
  ).create(_TYPE)
  seeded = aggregators.with_fresh_noise_seeds(process.initialize())
  used = np.concatenate(_seeds(seeded))
  assert len(used) == 2 * _SEEDS[kind]  # Two int64 each.
  assert len(set(used.tolist())) == len(used)
  output = process.next(seeded, [_client()] * 20)
  assert not np.concatenate(_seeds(output.state)).any()
  again = aggregators.with_fresh_noise_seeds(output.state)
  assert not set(np.concatenate(_seeds(again)).tolist()) & set(used.tolist())


@pytest.mark.parametrize('kind', _KINDS)
def test_a_round_without_seeds_fails_closed(tff_worker, kind):
  """Zero seeds would be known noise: the result must be of no use at all."""
  process = aggregators.build_aggregator(
    _mechanism(kind, 1.0), denominator=1.0, rounds=_ROUNDS
  ).create(_TYPE)
  output = process.next(process.initialize(), [_client()] * 20)
  assert all(np.isnan(x).all() for x in output.result)
