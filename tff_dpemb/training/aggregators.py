"""From a mechanism to the TFF aggregation that carries it out.

The bounded map, in this order, inside the aggregator: an update that is not
finite, or whose norm overflows, becomes zero (and still counts as a
participant); then the update is clipped; then updates are summed, noised once
on the server and divided by a public constant. TFF's own factories do not do
the first step: one NaN client would make the released model NaN, which is both
a crash and a leak of one user's presence.
"""

import collections
import secrets
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_dpemb.privacy import mechanisms

SEEDS_FIELD = 'noise_seeds'  # of `_SeededGaussianSumQuery`'s state
# Below it, no order of summation can overflow float32.
_LARGEST_SQUARE = 1e37


class BoundedFactory(tff.aggregators.UnweightedAggregationFactory):
  """Zeroes non-finite updates before the inner, clipping factory sees them."""

  def __init__(self, inner: tff.aggregators.UnweightedAggregationFactory):
    self._inner = inner

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    inner = self._inner.create(value_type)
    bound = tff.tensorflow.computation(zero_if_not_finite, value_type)

    @tff.federated_computation(
      inner.initialize.type_signature.result,
      tff.FederatedType(value_type, tff.CLIENTS),
    )
    def next_fn(state, value):
      bounded, zeroed = tff.federated_map(bound, value)
      output = inner.next(state, bounded)
      measurements = tff.federated_zip(
        {
          'dp': output.measurements,
          'zeroed': tff.federated_sum(zeroed),
        }
      )
      return tff.templates.MeasuredProcessOutput(
        output.state, output.result, measurements
      )

    return tff.templates.AggregationProcess(inner.initialize, next_fn)


def zero_if_not_finite(value):
  """Returns (`value`, 0), or (zeros, 1) if its L2 norm cannot be taken.

  The squared norm is taken in float32, as the clipping query takes it: a
  finite update whose norm overflows there is refused as well, with room for
  another order of summation.
  """
  tensors = [tf.convert_to_tensor(x) for x in tf.nest.flatten(value)]
  square = tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in tensors])
  finite = square < _LARGEST_SQUARE  # False for NaN too.
  # tf.where selects, it does not multiply: NaN * 0 would be NaN.
  kept = [tf.where(finite, tensor, tf.zeros_like(tensor)) for tensor in tensors]
  zeroed = tf.cast(tf.logical_not(finite), tf.int32)
  return tf.nest.pack_sequence_as(value, kept), zeroed


class _SeededGaussianSumQuery(tfp.GaussianSumQuery):
  """Gaussian sum whose noise comes from seeds that the state brings along.

  The state's `noise_seeds`, int64 [tensors, 2], are 128 bits of the operating
  system for each tensor, set for one round by `with_fresh_noise_seeds` and
  cleared by the round itself: no state that a round returns, hence no
  checkpoint, holds a seed that was used. A round without seeds (all zero)
  returns NaN, which the program refuses: it fails closed.

  TensorFlow's stateful random operations would seed themselves from 32 bits a
  process, which an attacker could enumerate.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'stddev', 'noise_seeds']
  )

  def __init__(
    self, l2_norm_clip: float, stddev: float | None, *, tensors: int
  ):
    super().__init__(l2_norm_clip, stddev)
    self._tensors = tensors

  def make_global_state(self, l2_norm_clip, stddev):
    return self._GlobalState(
      tf.cast(l2_norm_clip, tf.float32),
      tf.cast(stddev, tf.float32),
      tf.zeros([self._tensors, 2], tf.int64),
    )

  def get_noised_result(self, sample_state, global_state):
    tensors = tf.nest.flatten(sample_state)
    noised = []
    for index, tensor in enumerate(tensors):
      seed = global_state.noise_seeds[index]
      noise = tf.random.stateless_normal(tf.shape(tensor), seed)
      noise = tf.where(tf.reduce_all(tf.equal(seed, 0)), float('nan'), noise)
      scaled = global_state.stddev * noise
      noised.append(tensor + tf.cast(scaled, tensor.dtype))
    state = self.make_global_state(
      global_state.l2_norm_clip, global_state.stddev
    )
    # For its event alone; TFF keeps one in its state, we account by the plan.
    _, _, event = super().get_noised_result(tf.zeros([]), global_state)
    return tf.nest.pack_sequence_as(sample_state, noised), state, event


class _AdaptiveQuery(tfp.QuantileAdaptiveClipSumQuery):
  """Adaptive clipping over the seeded sum, for values and for the count."""

  def __init__(
    self, mechanism: mechanisms.AdaptiveClipGaussian, *, tensors: int
  ):
    super().__init__(
      initial_l2_norm_clip=mechanism.clip_norm,
      noise_multiplier=mechanism.value_noise_multiplier,
      target_unclipped_quantile=mechanism.target_unclipped_quantile,
      learning_rate=mechanism.learning_rate,
      clipped_count_stddev=mechanism.clipped_count_stddev,
      expected_num_records=mechanism.virtual_clients,
      geometric_update=True,
    )
    self._sum_query = _SeededGaussianSumQuery(
      mechanism.clip_norm,
      mechanism.value_noise_multiplier * mechanism.clip_norm,
      tensors=tensors,
    )
    count = self._quantile_estimator_query
    count._below_estimate_query = tfp.NormalizedQuery(
      _SeededGaussianSumQuery(
        l2_norm_clip=0.5, stddev=mechanism.clipped_count_stddev, tensors=1
      ),
      denominator=mechanism.virtual_clients,
    )


def with_fresh_noise_seeds(state: Any) -> Any:
  """Returns an aggregator's state with new seeds for one round.

  Call it right before each round, after the round is charged, and keep what
  it returns nowhere: who knows the seeds can subtract the noise.
  """
  if not isinstance(state, tuple) or not hasattr(state, '_fields'):
    return state
  changed = {}
  for name in state._fields:
    value = getattr(state, name)
    if name == SEEDS_FIELD:
      size = np.asarray(value).shape
      data = secrets.token_bytes(8 * int(np.prod(size)))
      changed[name] = np.frombuffer(data, np.int64).reshape(size)
    else:
      changed[name] = with_fresh_noise_seeds(value)
  return type(state)(**changed)


def build_aggregator(
  mechanism: mechanisms.Mechanism, *, denominator: float
) -> tff.aggregators.UnweightedAggregationFactory:
  """Returns the factory that carries `mechanism` out in TFF.

  Its result is (clipped sum + noise) / `denominator`. One user's presence
  moves the sum by at most `mechanism.sensitivity(...)` clip norms.

  Args:
    mechanism: A value of `privacy.mechanisms`.
    denominator: The expected number of virtual clients: a public constant,
      never the realised number.
  """
  if not isinstance(
    mechanism,
    mechanisms.AdaptiveClipGaussian | mechanisms.FixedClipGaussian,
  ):
    raise ValueError(
      'mechanism must be FixedClipGaussian or AdaptiveClipGaussian,'
      f' got {type(mechanism).__name__}.'
    )
  return _MechanismFactory(mechanism, denominator)


class _MechanismFactory(tff.aggregators.UnweightedAggregationFactory):
  """Builds the query for as many tensors as the value has."""

  def __init__(self, mechanism: mechanisms.Mechanism, denominator: float):
    self._mechanism = mechanism
    self._denominator = denominator

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    tensors = len(tff.structure.flatten(value_type))
    match self._mechanism:
      case mechanisms.AdaptiveClipGaussian() as mechanism:
        query = _AdaptiveQuery(mechanism, tensors=tensors)
      case mechanism:
        query = _SeededGaussianSumQuery(
          mechanism.clip_norm,
          mechanism.noise_multiplier * mechanism.clip_norm,
          tensors=tensors,
        )
    query = tfp.NormalizedQuery(query, denominator=self._denominator)
    inner = tff.aggregators.DifferentiallyPrivateFactory(query)
    return BoundedFactory(inner).create(value_type)
