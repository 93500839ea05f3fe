"""Computations on a device; that rounds equal a worker's is accelerator_test."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.training.execution import device_functions
from tff_dpemb.training.execution.workers import process

_CPU = '/device:CPU:0'


@pytest.mark.parametrize(
  'name', ['CPU:0', 'cpu', '/device:CPU:0', 'device:CPU']
)
def test_a_device_has_one_full_name(name):
  assert device_functions.choose([name]) == (_CPU,)


@pytest.mark.parametrize(
  ('names', 'message'),
  [
    (['GPU:9'], "must be among .*, got 'GPU:9'"),
    (['CPU:0', 'CPU:0'], 'one or more different ones'),
    ([], 'one or more different ones'),
  ],
)
def test_others_are_refused(names, message):
  with pytest.raises(process.ExecutorError, match=message):
    device_functions.choose(names)


def test_a_device_is_tried(monkeypatch):
  device_functions.probe(_CPU)
  monkeypatch.setattr(tf, 'matmul', lambda x, y: x + y)
  with pytest.raises(process.ExecutorError, match='must multiply by one'):
    device_functions.probe(_CPU)


def test_a_result_elsewhere_is_refused_but_for_integers():
  real, whole = tf.constant([1.0]), tf.constant([1])
  device_functions.check_placement([real, whole], _CPU)
  device_functions.check_placement([whole], '/device:GPU:0')
  with pytest.raises(process.ExecutorError, match='must lie on /device:GPU:0'):
    device_functions.check_placement([real], '/device:GPU:0')


def test_a_function_takes_clients_of_any_size_in_one_trace():
  @tff.tensorflow.computation(
    np.float32, tff.TensorType(np.float32, [None]), np.int32
  )
  def scaled(scale, values, same):
    return scale * tf.reduce_sum(values), same

  function = device_functions.DeviceFunction(scaled, _CPU, name='test')
  for values in ([], [1.0], [1.0, 2.0, 3.0]):
    total, same = function([2.0, np.array(values, np.float32), 7])
    assert total.numpy() == 2 * sum(values)
    assert same.numpy() == 7  # An argument that is a result too.


def test_variables_are_of_one_function_and_made_anew():
  @tff.tensorflow.computation(np.int32)
  def count_up(x):
    total = tf.Variable(1)
    with tf.control_dependencies([total.assign_add(x)]):
      return total.read_value()

  one, other = (
    device_functions.DeviceFunction(count_up, _CPU, name='test')
    for _ in range(2)
  )
  assert [one([2])[0].numpy(), other([5])[0].numpy()] == [3, 6]
  assert one([2])[0].numpy() == 3


def test_what_is_no_tensor_is_refused():
  @tff.federated_computation(tff.SequenceType(np.int32))
  def whole(values):
    return values

  with pytest.raises(process.ExecutorError, match='must be tensors on an acc'):
    device_functions._tensor_types(whole.type_signature.parameter)


def test_copies_and_waits():
  tensors = [tf.zeros([0]), tf.constant([1, 2]), tf.constant([[3.0]])]
  copies = device_functions.copy_to(tensors, _CPU)
  for copy, tensor in zip(copies, tensors, strict=True):
    np.testing.assert_array_equal(copy.numpy(), tensor.numpy())
  device_functions.wait_for(copies)
  device_functions.wait_for(copies[:1])  # Nothing to read.
