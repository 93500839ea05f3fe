import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dpemb.training.execution.workers import device_values
from tff_dpemb.training.execution.workers import messages

_CPU = '/device:CPU:0'


def _tensors(*values, device=_CPU):
  return device_values.Tensors([tf.constant(v) for v in values], device)


def _written(value):
  message = executor_pb2.Value()
  value.write(message)
  return message


class TestTensors:
  def test_stay_where_they_are(self):
    tensor = tf.constant([1.0, 2.0])
    value = device_values.Tensors([tensor], _CPU)
    assert value.device == _CPU
    assert value.on(_CPU)[0] is tensor

  def test_are_copied_to_a_device_once(self):
    value = _tensors([1, 2], [3.0], device=None)
    copies = value.on(_CPU)
    assert [copy.numpy().tolist() for copy in copies] == [[1, 2], [3.0]]
    assert value.on(_CPU) is copies

  def test_an_element_is_a_leaf(self):
    element = _tensors([1, 2], [3.0, 4.0]).select(1)
    assert element.device == _CPU
    expected = executor_pb2.Value()
    messages.write_leaf(expected, np.array([3.0, 4.0], np.float32))
    assert _written(element) == expected


class TestStruct:
  def test_holds_its_elements_side_by_side(self):
    inner = _tensors([1], [2])
    outer = device_values.Struct([_tensors([0], device=None), inner])
    assert outer.device == _CPU  # Where what was computed lies.
    flat = [tensor.numpy().tolist() for tensor in outer.on(_CPU)]
    assert flat == [[0], [1], [2]]
    assert outer.select(1) is inner
    written = _written(outer).struct.element
    assert [len(e.value.struct.element) for e in written] == [1, 2]

  def test_of_nothing(self):
    empty = device_values.Struct([])
    assert (empty.device, empty.on(_CPU)) == (None, [])
    assert _written(empty).WhichOneof('value') == 'struct'


class TestRead:
  def _read(self, value, value_type=None):
    message, _ = tff.framework.serialize_value(value, value_type)
    return device_values.read(message, [_CPU])

  def test_tensors(self):
    message = executor_pb2.Value()
    messages.write_struct(message, [np.arange(3), np.float32(2.5)])
    read = device_values.read(message, [_CPU])
    assert read.device is None
    assert [t.numpy().tolist() for t in read.on(_CPU)] == [[0, 1, 2], 2.5]
    assert _written(read) == message

  def test_a_computation_runs_on_its_device(self):
    @tff.tensorflow.computation(np.int32)
    def double(x):
      return 2 * x

    read = self._read(double)
    assert read.returns_leaf
    (result,) = read.run([tf.constant(21)], _CPU)
    assert result.numpy() == 42

  def test_what_only_a_whole_worker_takes_is_refused(self):
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
      return tff.federated_sum(values)

    with pytest.raises(
      device_values.Unsupported, match='parts of rounds alone'
    ):
      self._read(total)
    with pytest.raises(
      device_values.Unsupported, match='parts of rounds alone'
    ):
      self._read([1], tff.FederatedType(np.int32, tff.CLIENTS))

  def test_nested_structs_are_refused(self):
    message = executor_pb2.Value()
    inner = message.struct.element.add().value
    messages.write_struct(inner, [np.arange(3)])
    with pytest.raises(device_values.Unsupported, match='flat struct.*struct'):
      device_values.read(message, [_CPU])

  def test_a_nested_result_is_refused(self):
    @tff.tensorflow.computation
    def nested():
      return ((1, 2), 3)

    with pytest.raises(device_values.Unsupported, match='must be flat'):
      self._read(nested)
