"""A round cut into parts gives what the whole gives; who sees what of it."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb import config
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import process
from tff_dpemb.training.execution import round_form

_DENOMINATOR = 2.0


@tff.federated_computation(
  tff.FederatedType(
    collections.OrderedDict(weight=np.float32, secret=np.float32), tff.SERVER
  ),
  tff.FederatedType(np.float32, tff.CLIENTS),
)
def _product_sum(state, data):
  """sum of weight * data, + secret; the secret is for the server alone."""

  @tff.tensorflow.computation(np.float32, np.float32)
  def multiply(weight, value):
    return weight * value

  @tff.tensorflow.computation(state.type_signature.member, np.float32)
  def finish(old, total):
    return (
      collections.OrderedDict(weight=old['weight'] + 1.0, secret=old['secret']),
      total + old['secret'],
    )

  weights = tff.federated_broadcast(
    tff.federated_map(
      tff.tensorflow.computation(
        lambda old: old['weight'], state.type_signature.member
      ),
      state,
    )
  )
  total = tff.federated_sum(tff.federated_map(multiply, (weights, data)))
  result = tff.federated_map(finish, (state, total))
  return result[0], result[1]


def _run(form, state, clients, *, shares=1):
  """Runs the parts that a worker runs in this process too."""
  zero, step = map(round_form.ServerFunction, (form.zero, form.step))
  broadcast = form.broadcast(state)
  partials = []
  for share in range(shares):
    partial = zero()
    for data in clients[share::shares]:
      partial = step([*partial, *broadcast, *round_form.flat(data)])
    partials.append(partial)
  return form.update(state, form.merge_partials(partials))


@pytest.mark.parametrize('shares', [1, 2, 3])
def test_the_parts_give_what_the_whole_gives(shares):
  form = round_form.RoundForm(_product_sum)
  state = collections.OrderedDict(
    weight=np.float32(2.0), secret=np.float32(100.0)
  )
  clients = [np.float32(x) for x in (1.0, 3.0, 5.0)]
  after, total = _run(form, state, clients, shares=shares)
  assert total == 2 * (1 + 3 + 5) + 100
  assert after == {'weight': 3.0, 'secret': 100.0}
  assert isinstance(after, collections.OrderedDict)
  form.close()


def test_a_round_without_clients_is_its_zero():
  form = round_form.RoundForm(_product_sum)
  state = collections.OrderedDict(
    weight=np.float32(2.0), secret=np.float32(7.0)
  )
  _, total = form.update(state, form.merge_partials([]))
  assert total == 7.0


def test_workers_see_what_clients_need_alone():
  form = round_form.RoundForm(_product_sum)
  state = collections.OrderedDict(
    weight=np.float32(2.0), secret=np.float32(100.0)
  )
  assert form.broadcast(state) == [2.0]
  assert len(form.broadcast_type) == 1


def test_two_layers_of_aggregation_are_refused():
  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def twice(state, data):
    first = tff.federated_broadcast(tff.federated_sum(data))
    product = tff.federated_map(
      tff.tensorflow.computation(lambda x, y: x * y, (np.float32, np.float32)),
      (first, data),
    )
    return state, tff.federated_sum(product)

  with pytest.raises(round_form.RoundFormError, match='one layer of aggreg'):
    round_form.RoundForm(twice)


def test_sequences_are_refused():
  @tff.tensorflow.computation(tff.SequenceType(np.int32))
  def add(data):
    return data.reduce(np.int32(0), lambda x, y: x + y)

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.SERVER),
    tff.FederatedType(tff.SequenceType(np.int32), tff.CLIENTS),
  )
  def round_of_sequences(state, data):
    return state, tff.federated_sum(tff.federated_map(add, data))

  with pytest.raises(round_form.RoundFormError, match='tensors only'):
    round_form.RoundForm(round_of_sequences)


_MECHANISMS = {
  'fixed': independent.FixedClipGaussian(0.5, 1.0),
  'adaptive': independent.AdaptiveClipGaussian(0.5, 1.0, virtual_clients=50),
  'tree': correlated_gaussian.CorrelatedGaussian(0.5, 1.0, correlated.Tree()),
}


@pytest.fixture(scope='module', params=list(_MECHANISMS))
def dp_round(request, pure, backbone):
  """A DP round, its first state with seeds, and its form."""
  run_config = config.from_mapping(
    {'name': 'test', 'model': {'embedding_dim': 8}}
  )
  iterative = process.build_process(
    pure,
    process.local_tuning_from_config(run_config, num_classes=0),
    aggregators.build_aggregator(
      _MECHANISMS[request.param], denominator=_DENOMINATOR, rounds=4
    ),
    initial_weights=[v.numpy() for v in backbone.trainable_variables],
    server_learning_rate=1.0,
    server_momentum=0.0,
  )
  initial = round_form.ServerFunction(
    tff.backends.mapreduce.get_state_initialization_computation(
      iterative.initialize
    )
  )()
  state = round_form.pack(initial, iterative.initialize.type_signature.result)
  form = round_form.RoundForm(iterative.next)
  yield process.with_fresh_noise(state), form
  form.close()


def test_noise_is_a_function_of_the_seeds(dp_round):
  """Running the server's part again, as after a loss, draws nothing new."""
  state, form = dp_round
  merged = form.merge_partials([])
  first, _ = form.update(state, merged)
  again, _ = form.update(state, merged)
  other, _ = form.update(process.with_fresh_noise(state), merged)
  changes = [
    np.concatenate([(x - y).ravel() for x, y in zip(a, b, strict=True)])
    for a, b in (
      (first.weights, again.weights),
      (first.weights, other.weights),
      (first.weights, state.weights),
    )
  ]
  assert np.abs(changes[0]).max() == 0
  # Noise of stddev 0.5 / 2 on each of n coordinates: the mean square of n
  # normal values is off by more than 20 % with probability < 1e-9 for n > 4000.
  expected = (0.5 / _DENOMINATOR) ** 2
  assert changes[2].size > 4000
  assert np.mean(changes[2] ** 2) == pytest.approx(expected, rel=0.2)
  assert np.mean(changes[1] ** 2) == pytest.approx(2 * expected, rel=0.2)


def test_no_worker_gets_seeds_or_buffers(dp_round):
  """What is sent: the weights, and what clipping needs: scalars."""
  state, form = dp_round
  sizes = [int(np.prod(leaf.shape)) for leaf in form.broadcast_type]
  weights = [np.size(weight) for weight in state.weights]
  assert sizes[: len(weights)] == weights
  assert set(sizes[len(weights) :]) <= {1}
  assert all(leaf.dtype == np.float32 for leaf in form.broadcast_type)


def test_a_worker_computes_no_activation_twice(dp_round):
  """TensorFlow's memory optimizer recomputes what lies under 'gradients'."""
  state, form = dp_round
  step = round_form.ServerFunction(form.step)
  data = [
    np.zeros([6, 8, 8, 1], np.uint8),
    np.array([0, 0, 0, 1, 1, 1], np.int32),
    np.zeros([2], np.int32),
  ]
  arguments = [*form.merge_partials([]), *form.broadcast(state), *data]
  ran = tf.compat.v1.RunMetadata()
  with tf.compat.v1.Session(graph=step._graph) as session:
    session.run(
      step._results,
      dict(zip(step._parameters, arguments, strict=True)),
      options=tf.compat.v1.RunOptions(output_partition_graphs=True),
      run_metadata=ran,
    )
  names = [n.name for part in ran.partition_graphs for n in part.node]
  assert any('Conv2DBackpropFilter' in name for name in names)
  assert [name for name in names if 'Recomputed' in name] == []


def test_leaves_are_flat_numpy_values():
  nested = {'b': (tf.constant([1.0, 2.0]), 3), 'a': [np.float32(4)]}
  leaves = round_form.flat(nested)
  np.testing.assert_array_equal(leaves[0], [1.0, 2.0])
  assert isinstance(leaves[0], np.ndarray)
  assert leaves[1:] == [3, 4.0]
