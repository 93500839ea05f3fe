import numpy as np
import pytest
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dpemb.training.execution.workers import messages


@pytest.mark.parametrize(
  'value',
  [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.zeros([0, 4], np.float64),
    np.arange(256, dtype=np.uint8).reshape(4, 8, 8),
    np.array([True, False]),
    np.array([[-1, 2**62]], np.int64),
    np.arange(6, dtype=np.int32).reshape(2, 3).T,
  ],
)
def test_arrays_are_encoded_as_tff_encodes_them(value):
  encoded = messages.encode([value])
  ours = executor_pb2.CreateValueRequest.FromString(encoded)
  tensor = tff.types.to_type((value.dtype.type, value.shape))
  theirs, _ = tff.framework.serialize_value(
    [value], tff.types.to_type([tensor])
  )
  assert ours.value == theirs


@pytest.mark.parametrize('value', [np.float32(1.5), np.int32(-3), np.bool_(1)])
def test_scalars_are_encoded_as_tff_encodes_them(value):
  ours = executor_pb2.CreateValueRequest.FromString(messages.encode([value]))
  theirs, _ = tff.framework.serialize_value(
    [value], tff.types.to_type([type(value)])
  )
  assert ours.value == theirs


def test_nothing_is_encoded_as_tff_encodes_it():
  ours = executor_pb2.CreateValueRequest.FromString(messages.encode([]))
  theirs, _ = tff.framework.serialize_value([], tff.types.to_type([]))
  assert ours.value == theirs


def test_names_are_encoded_as_tff_encodes_them():
  value = np.array([b'one', b'other'])
  ours = executor_pb2.CreateValueRequest.FromString(messages.encode([value]))
  theirs, _ = tff.framework.serialize_value(
    [value], tff.types.to_type([(np.str_, [2])])
  )
  assert ours.value == theirs


@pytest.mark.parametrize(
  'value',
  [
    np.arange(6, dtype=np.int32).reshape(2, 3).T,
    np.zeros([0, 4], np.float64),
    np.float32(1.5),
    np.array([b'one', b'other']),
  ],
)
def test_a_leaf_is_read_as_it_was_written(value):
  message = executor_pb2.Value()
  messages.write_leaf(message, value)
  message = executor_pb2.Value.FromString(message.SerializeToString())
  read = messages.read_leaf(message)
  np.testing.assert_array_equal(read, value)
  assert np.shape(read) == np.shape(value)
