"""Queries of TensorFlow Privacy whose noise the program owns.

Each adds noise that comes from seeds which the state brings along, 128 bits of
the operating system for each tensor. `aggregators.with_fresh_noise_seeds` sets
them for one round and the round itself clears them: no state that a round
returns, hence no checkpoint, holds a seed that was used. A round without seeds
(all zero) returns NaN, which the program refuses: it fails closed.

TensorFlow's stateful random operations would seed themselves from 32 bits a
process, which an attacker could enumerate. Its normals are Box-Muller pairs of
one uniform each: in float32 their radii lie on a grid of 2^23 values and end at
5.7 standard deviations (in float64 the grid is fine, the end is the same), by
which who knows all users but one could tell that one from published weights.
`standard_normal` has neither the grid nor the end.

The events that these queries return are what TFF wants to see; nothing is
accounted by them. What a round costs is said by the plan alone.
"""

import collections
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import noise_stream

# Fields of the states below that are not for everybody's eyes.
SEEDS_FIELD = 'noise_seeds'
BUFFERS_FIELD = 'buffers'
# Of the logarithm of a clip norm at a restart.
_LARGEST_STEP = math.log(10.0)


def standard_normal(shape: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  """Returns standard normals of a seed, fit to hide a user behind.

  Box-Muller pairs (r cos a, r sin a) whose uniforms have 64 bits, in float64;
  each value is the cosine of one pair plus the sine of another one, over
  sqrt(2). Where one of the two is at its grid or its end (r = 9.5), the other
  still spreads the sum, which reaches 13.4 standard deviations. No two values
  share a term, so they are independent. Round them once, after they were added.

  Args:
    shape: int32 [rank].
    seed: int64 [2].

  Returns:
    float64 of `shape`; a function of the seed alone.
  """
  count = tf.reduce_prod(tf.cast(shape, tf.int64))
  pairs = count + count % 2  # Even: no pair meets itself below.
  bits = tf.random.stateless_uniform(
    tf.stack([2, pairs]), seed, minval=None, maxval=None, dtype=tf.uint64
  )
  uniforms = (tf.cast(bits, tf.float64) + 0.5) * 2.0**-64  # In (0, 1].
  radii = tf.sqrt(-tf.math.log(uniforms[0]))  # r / sqrt(2)
  angles = 2 * math.pi * uniforms[1]
  cosines, sines = radii * tf.cos(angles), radii * tf.sin(angles)
  mixed = cosines + tf.reverse(sines, axis=[0])
  return tf.reshape(mixed[:count], shape)


def keep_or_zero(kept: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list:
  """Returns the tensors as they are if `kept`, else zeros like them.

  A branch, which passes them on without a copy. Nothing is multiplied: NaN x 0
  would be NaN.
  """
  return tf.cond(
    kept,
    lambda: [tf.identity(tensor) for tensor in tensors],
    lambda: [tf.zeros_like(tensor) for tensor in tensors],
  )


class SeededGaussianSumQuery(tfp.GaussianSumQuery):
  """Clips to an L2 norm, sums, adds independent Gaussian noise."""

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['l2_norm_clip', 'stddev', 'noise_seeds']
  )

  def __init__(self, l2_norm_clip: float, stddev: float, *, tensors: int):
    super().__init__(l2_norm_clip, stddev)
    self._tensors = tensors

  def make_global_state(self, l2_norm_clip, stddev):
    return self._GlobalState(
      tf.cast(l2_norm_clip, tf.float32),
      tf.cast(stddev, tf.float32),
      tf.zeros([self._tensors, 2], tf.int64),
    )

  def preprocess_record_impl(self, params, record):
    """Clips; all is zero at a clip norm whose square float32 may lose."""
    clipped, norm = super().preprocess_record_impl(params, record)
    kept = keep_or_zero(
      params >= clipped_sum.SMALLEST_CLIP_NORM, tf.nest.flatten(clipped)
    )
    return tf.nest.pack_sequence_as(clipped, kept), norm

  def get_noised_result(self, sample_state, global_state):
    noised = [
      _add(tensor, noise)
      for tensor, noise in zip(
        tf.nest.flatten(sample_state),
        self._fresh_noise(sample_state, global_state),
        strict=True,
      )
    ]
    state = self.make_global_state(
      global_state.l2_norm_clip, global_state.stddev
    )
    result = tf.nest.pack_sequence_as(sample_state, noised)
    return result, state, self._event(global_state)

  def _fresh_noise(self, sample_state, global_state) -> list[tf.Tensor]:
    """Returns z, float64, like each tensor; NaN where there is no seed."""
    stddev = tf.cast(global_state.stddev, tf.float64)
    missing = tf.constant(math.nan, tf.float64)
    fresh = []
    for index, tensor in enumerate(tf.nest.flatten(sample_state)):
      seed = global_state.noise_seeds[index]
      noise = standard_normal(tf.shape(tensor), seed)
      is_missing = tf.reduce_all(tf.equal(seed, 0))
      fresh.append(tf.where(is_missing, missing, stddev) * noise)
    return fresh

  def _event(self, global_state):
    _, _, event = super().get_noised_result(tf.zeros([]), global_state)
    return event


class CorrelatedSumQuery(SeededGaussianSumQuery):
  """Clips to an L2 norm, sums, adds noise that is correlated over rounds.

  The state keeps, for each tensor, the buffers S [m, *shape] of the stream of
  `privacy.correlated`; in round t, with fresh noise z,

    y = z - read_t . S            is added to the sum;
    S' = keep_t S + write_noise_t (x) y + write_fresh_t (x) z.

  The buffers are secret: they are parts of the noise of finished rounds. A
  round beyond the stream's last one returns NaN: it fails closed.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState',
    ['l2_norm_clip', 'stddev', 'noise_seeds', 'step', 'buffers'],
  )

  def __init__(
    self,
    l2_norm_clip: float,
    stddev: float,
    *,
    stream: noise_stream.NoiseStream,
    shapes: Sequence[Sequence[int]],
  ):
    super().__init__(l2_norm_clip, stddev, tensors=len(shapes))
    self._stream = stream
    self._shapes = [tuple(shape) for shape in shapes]

  def make_global_state(self, l2_norm_clip, stddev):
    buffers = self._stream.buffers
    return self._GlobalState(
      tf.cast(l2_norm_clip, tf.float32),
      tf.cast(stddev, tf.float32),
      tf.zeros([self._tensors, 2], tf.int64),
      tf.zeros([], tf.int32),
      [tf.zeros([buffers, *shape], tf.float32) for shape in self._shapes],
    )

  def get_noised_result(self, sample_state, global_state):
    step, rounds = global_state.step, self._stream.rounds
    read, keep, write_noise, write_fresh = self._tables(
      tf.minimum(step, rounds - 1)
    )
    noised, buffers = [], []
    for tensor, fresh, buffer in zip(
      tf.nest.flatten(sample_state),
      self._fresh_noise(sample_state, global_state),
      list(global_state.buffers),
      strict=True,
    ):
      missing = tf.constant(math.nan, tf.float64)
      fresh = tf.where(step < rounds, fresh, missing)
      buffer = tf.cast(buffer, tf.float64)
      noise = fresh - tf.tensordot(read, buffer, 1)
      noised.append(_add(tensor, noise))
      kept = (
        tf.tensordot(keep, buffer, 1)
        + tf.tensordot(write_noise, noise, 0)
        + tf.tensordot(write_fresh, fresh, 0)
      )
      buffers.append(tf.cast(kept, tf.float32))
    state = global_state._replace(
      noise_seeds=tf.zeros_like(global_state.noise_seeds),
      step=step + 1,
      buffers=buffers,
    )
    result = tf.nest.pack_sequence_as(sample_state, noised)
    return result, state, self._event(global_state)

  def _tables(self, row: tf.Tensor) -> list[tf.Tensor]:
    """Returns the four tables of one round, float64.

    Most rounds are alike: the graph holds each different one once.
    """
    stream = self._stream
    tables = (stream.read, stream.keep, stream.write_noise, stream.write_fresh)
    flat = [table.reshape(stream.rounds, -1) for table in tables]
    kinds, index = np.unique(
      np.concatenate(flat, axis=1), axis=0, return_inverse=True
    )
    kind = tf.gather(tf.constant(index.ravel(), tf.int32), row)
    values = tf.gather(tf.constant(kinds, tf.float64), kind)
    return [
      tf.reshape(part, table.shape[1:])
      for part, table in zip(
        tf.split(values, [part.shape[1] for part in flat]), tables, strict=True
      )
    ]


class AdaptiveClipQuery(tfp.QuantileAdaptiveClipSumQuery):
  """Adaptive clipping over the seeded sum, for values and for the count."""

  def __init__(
    self, mechanism: independent.AdaptiveClipGaussian, *, tensors: int
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
    self._sum_query = SeededGaussianSumQuery(
      mechanism.clip_norm,
      mechanism.value_noise_multiplier * mechanism.clip_norm,
      tensors=tensors,
    )
    count = self._quantile_estimator_query
    count._below_estimate_query = tfp.NormalizedQuery(
      _count_query(mechanism),
      denominator=mechanism.virtual_clients,
    )


class RestartClipQuery(tfp.SumAggregationDPQuery):
  """Correlated noise whose clip norm moves at its restarts, never between.

  Within a segment the noise of a round cancels noise of earlier rounds, which
  it could not do if its scale had moved (TensorFlow Privacy issue 519). Every
  round counts its unclipped updates, with noise of its own; the round that
  ends a segment of `restart_every` rounds sets the next one's clip norm:

    clip *= exp(-learning_rate * restart_every * (fraction - target)),

  `fraction` being the mean noisy fraction of the segment, kept in [0, 1]: the
  step that `restart_every` rounds of arXiv 1905.03871 would make at that mean,
  but at most a factor of 10 either way: those rounds would have looked again.
  """

  _GlobalState = collections.namedtuple(
    '_GlobalState', ['sum_state', 'count_state', 'segment_count']
  )
  _SampleState = collections.namedtuple(
    '_SampleState', ['sum_state', 'count_state']
  )

  def __init__(
    self,
    mechanism: correlated_gaussian.CorrelatedGaussian,
    *,
    stream: noise_stream.NoiseStream,
    shapes: Sequence[Sequence[int]],
  ):
    self._mechanism = mechanism
    self._sum_query = CorrelatedSumQuery(
      mechanism.clip_norm,
      mechanism.noise_multiplier * mechanism.clip_norm,
      stream=stream,
      shapes=shapes,
    )
    self._count_query = _count_query(mechanism)

  def initial_global_state(self):
    return self._GlobalState(
      self._sum_query.initial_global_state(),
      self._count_query.initial_global_state(),
      tf.zeros([], tf.float32),
    )

  def derive_sample_params(self, global_state):
    return global_state.sum_state.l2_norm_clip

  def initial_sample_state(self, template=None):
    return self._SampleState(
      self._sum_query.initial_sample_state(template), tf.zeros([])
    )

  def preprocess_record(self, params, record):
    clipped, norm = self._sum_query.preprocess_record_impl(params, record)
    # Shifted by one half: a bit that comes or goes moves the count by 1/2.
    return self._SampleState(clipped, tf.cast(norm <= params, tf.float32) - 0.5)

  def get_noised_result(self, sample_state, global_state):
    mechanism = self._mechanism
    result, sum_state, event = self._sum_query.get_noised_result(
      sample_state.sum_state, global_state.sum_state
    )
    count, count_state, _ = self._count_query.get_noised_result(
      sample_state.count_state, global_state.count_state
    )
    segment_count = global_state.segment_count + count
    every = mechanism.restart_every
    fraction = 0.5 + segment_count / float(every * mechanism.virtual_clients)
    fraction = tf.clip_by_value(fraction, 0.0, 1.0)
    pace = mechanism.learning_rate * every
    step = -pace * (fraction - mechanism.target_unclipped_quantile)
    factor = tf.exp(tf.clip_by_value(step, -_LARGEST_STEP, _LARGEST_STEP))
    ends = tf.equal(sum_state.step % every, 0)
    clip = sum_state.l2_norm_clip * tf.where(ends, factor, 1.0)
    state = self._GlobalState(
      sum_state._replace(
        l2_norm_clip=clip, stddev=clip * mechanism.noise_multiplier
      ),
      count_state,
      tf.where(ends, 0.0, segment_count),
    )
    return result, state, event

  def derive_metrics(self, global_state):
    """Returns the clip norm of the next round as a metric."""
    return collections.OrderedDict(clip=global_state.sum_state.l2_norm_clip)


def _add(tensor: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
  """Adds float64 noise and rounds once."""
  return tf.cast(tf.cast(tensor, tf.float64) + noise, tensor.dtype)


def _count_query(
  mechanism: independent.AdaptiveClipGaussian
  | correlated_gaussian.CorrelatedGaussian,
) -> SeededGaussianSumQuery:
  """Sums bits of -1/2 and +1/2 with seeded noise."""
  stddev = float(mechanism.clipped_count_stddev or 0.0)  # Never None once made.
  return SeededGaussianSumQuery(l2_norm_clip=0.5, stddev=stddev, tensors=1)
