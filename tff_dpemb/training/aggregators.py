"""From a mechanism to the TFF aggregation that carries it out.

The bounded map, in this order, inside the aggregator: an update that is not
finite, or whose norm overflows, becomes zero (and still counts as a
participant); then the update is clipped; then updates are summed, noised once
on the server and divided by a public constant. TFF's own factories do not do
the first step: one NaN client would make the released model NaN, which is both
a crash and a leak of one user's presence.
"""

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.training import noise_queries

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
  # Twice the L2 loss: a sum of squares that is not kept element by element.
  square = 2 * tf.add_n([tf.nn.l2_loss(tensor) for tensor in tensors])
  finite = square < _LARGEST_SQUARE  # False for NaN too.
  kept = noise_queries.keep_or_zero(finite, tensors)
  zeroed = tf.cast(tf.logical_not(finite), tf.int32)
  return tf.nest.pack_sequence_as(value, kept), zeroed


def with_fresh_noise_seeds(state: Any) -> Any:
  """Returns an aggregator's state with new seeds for one round.

  Call it right before each round, after the round is charged, and keep what
  it returns nowhere: who knows the seeds can subtract the noise.
  """

  def fresh(seeds):
    size = np.asarray(seeds).shape
    data = secrets.token_bytes(8 * int(np.prod(size)))
    return np.frombuffer(data, np.int64).reshape(size)

  return _replace_fields(state, noise_queries.SEEDS_FIELD, fresh)


def without_buffers(state: Any) -> Any:
  """Returns an aggregator's state that remembers no noise of past rounds.

  For the last state of a run: who knows the buffers knows a part of the noise
  in the weights. Correlated noise cannot go on from such a state; a state of
  independent noise comes back as it is.
  """
  return _replace_fields(
    state,
    noise_queries.BUFFERS_FIELD,
    lambda buffers: [np.zeros_like(buffer) for buffer in buffers],
  )


def _replace_fields(state: Any, field: str, change: Callable[[Any], Any]):
  if not isinstance(state, tuple) or not hasattr(state, '_fields'):
    return state
  changed = {}
  for name in state._fields:
    value = getattr(state, name)
    changed[name] = (
      change(value) if name == field else _replace_fields(value, field, change)
    )
  return type(state)(**changed)


def build_aggregator(
  mechanism: mechanisms.Mechanism,
  *,
  denominator: float,
  rounds: int = 0,
) -> tff.aggregators.UnweightedAggregationFactory:
  """Returns the factory that carries `mechanism` out in TFF.

  Its result is (clipped sum + noise) / `denominator`. One user's presence
  moves the sum by at most `clipped_sum.sensitivity_multiple` clip norms.

  Args:
    mechanism: A value of `privacy.mechanisms`.
    denominator: The expected number of virtual clients: a public constant,
      never the realised number.
    rounds: Rounds planned, at least 1 for correlated noise: a later round
      returns NaN. Independent noise does not depend on it.

  Raises:
    ValueError: The mechanism is unknown, or `rounds` is missing.
  """
  if not isinstance(mechanism, mechanisms.Mechanism):
    raise ValueError(
      'mechanism must be a value of privacy.mechanisms, got'
      f' {type(mechanism).__name__}.'
    )
  if (
    isinstance(mechanism, correlated_gaussian.CorrelatedGaussian) and rounds < 1
  ):
    raise ValueError(
      f'rounds must be >= 1 for correlated noise, got {rounds}; pass the'
      ' rounds of the plan.'
    )
  return _MechanismFactory(mechanism, denominator, rounds)


class _MechanismFactory(tff.aggregators.UnweightedAggregationFactory):
  """Builds the query for as many tensors as the value has."""

  def __init__(
    self,
    mechanism: mechanisms.Mechanism,
    denominator: float,
    rounds: int,
  ):
    self._mechanism = mechanism
    self._denominator = denominator
    self._rounds = rounds

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    query = tfp.NormalizedQuery(
      self._query(value_type), denominator=self._denominator
    )
    inner = tff.aggregators.DifferentiallyPrivateFactory(query)
    return BoundedFactory(inner).create(value_type)

  def _query(self, value_type: tff.Type) -> tfp.SumAggregationDPQuery:
    shapes = [
      tuple(tensor.shape) for tensor in tff.structure.flatten(value_type)
    ]
    mechanism = self._mechanism
    match mechanism:
      case independent.AdaptiveClipGaussian():
        return noise_queries.AdaptiveClipQuery(mechanism, tensors=len(shapes))
      case correlated_gaussian.CorrelatedGaussian(clipping='adaptive'):
        return noise_queries.RestartClipQuery(
          mechanism, stream=mechanism.stream(self._rounds), shapes=shapes
        )
    stddev = mechanism.noise_multiplier * mechanism.clip_norm
    if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
      return noise_queries.CorrelatedSumQuery(
        mechanism.clip_norm,
        stddev,
        stream=mechanism.stream(self._rounds),
        shapes=shapes,
      )
    return noise_queries.SeededGaussianSumQuery(
      mechanism.clip_norm, stddev, tensors=len(shapes)
    )
