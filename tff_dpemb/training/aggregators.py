"""From a mechanism to the TFF aggregation that carries it out.

The bounded map, in this order, inside the aggregator: an update that is not
finite, or whose norm overflows, becomes zero (and still counts as a
participant); then the update is clipped; then updates are summed, noised once
on the server and divided by a public constant. TFF's own factories do not do
the first step: one NaN client would make the released model NaN, which is both
a crash and a leak of one user's presence.
"""

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_dpemb.privacy import mechanisms


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
  """Returns (`value`, 0), or (zeros, 1) if its squared L2 norm is not finite.

  The squared norm is taken in float32, as the clipping query takes it: a
  finite update whose norm overflows there is refused as well.
  """
  tensors = [tf.convert_to_tensor(x) for x in tf.nest.flatten(value)]
  square = tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in tensors])
  finite = tf.math.is_finite(square)
  # tf.where selects, it does not multiply: NaN * 0 would be NaN.
  kept = [tf.where(finite, tensor, tf.zeros_like(tensor)) for tensor in tensors]
  zeroed = tf.cast(tf.logical_not(finite), tf.int32)
  return tf.nest.pack_sequence_as(value, kept), zeroed


class OsSeededGaussianSumQuery(tfp.GaussianSumQuery):
  """Gaussian sum whose noise is seeded by the operating system, per tensor.

  Each call of the raw operation with seeds (0, 0) is a kernel of its own that
  TensorFlow seeds from `std::random_device`; no graph-level seed reaches it
  and no two tensors share a stream.
  """

  def get_noised_result(self, sample_state, global_state):
    def add_noise(tensor):
      noise = tf.raw_ops.RandomStandardNormal(
        shape=tf.shape(tensor), dtype=tensor.dtype, seed=0, seed2=0
      )
      return tensor + tf.cast(global_state.stddev, tensor.dtype) * noise

    result = tf.nest.map_structure(add_noise, sample_state)
    _, state, event = super().get_noised_result(
      tf.zeros([], tf.float32), global_state
    )
    return result, state, event


class _AdaptiveQuery(tfp.QuantileAdaptiveClipSumQuery):
  """Adaptive clipping over the OS-seeded sum, for values and for the count."""

  def __init__(self, mechanism: mechanisms.AdaptiveClipGaussian):
    super().__init__(
      initial_l2_norm_clip=mechanism.clip_norm,
      noise_multiplier=mechanism.value_noise_multiplier,
      target_unclipped_quantile=mechanism.target_unclipped_quantile,
      learning_rate=mechanism.learning_rate,
      clipped_count_stddev=mechanism.clipped_count_stddev,
      expected_num_records=mechanism.virtual_clients,
      geometric_update=True,
    )
    self._sum_query = OsSeededGaussianSumQuery(
      mechanism.clip_norm,
      mechanism.value_noise_multiplier * mechanism.clip_norm,
    )
    count = self._quantile_estimator_query
    count._below_estimate_query = tfp.NormalizedQuery(
      OsSeededGaussianSumQuery(
        l2_norm_clip=0.5, stddev=mechanism.clipped_count_stddev
      ),
      denominator=mechanism.virtual_clients,
    )


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
  match mechanism:
    case mechanisms.AdaptiveClipGaussian():
      query = _AdaptiveQuery(mechanism)
    case mechanisms.FixedClipGaussian():
      query = OsSeededGaussianSumQuery(
        mechanism.clip_norm, mechanism.noise_multiplier * mechanism.clip_norm
      )
    case _:
      raise ValueError(
        'mechanism must be FixedClipGaussian or AdaptiveClipGaussian,'
        f' got {type(mechanism).__name__}.'
      )
  query = tfp.NormalizedQuery(query, denominator=denominator)
  return BoundedFactory(tff.aggregators.DifferentiallyPrivateFactory(query))
