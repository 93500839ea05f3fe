"""What coordinator and workers say to each other, in TFF's ExecutorGroup.

Arrays are written into and read from its messages without copies in between:
TFF's own serialisation makes five of each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

_MOST_BYTES = 2 * 1000 * 1000 * 1000
# Of a gRPC channel or server: how large a message may be.
SIZE_OPTIONS = (
  ('grpc.max_receive_message_length', _MOST_BYTES),
  ('grpc.max_send_message_length', _MOST_BYTES),
)
# How a worker with devices names its connections, so that the coordinator knows
# it: it is sent `plain_step`, and never what is more than a part of a round.
DEVICES_PREFIX = 'devices-'


def encode(values: Sequence[Any]) -> bytes:
  """Returns flat values as the value of a CreateValueRequest."""
  request = executor_pb2.CreateValueRequest()
  write_struct(request.value, values)
  return request.SerializeToString()


def write_struct(target: executor_pb2.Value, values: Sequence[Any]) -> None:
  """Writes flat values as a struct of tensors."""
  target.struct.SetInParent()  # A round may broadcast nothing.
  for value in values:
    write_leaf(target.struct.element.add().value, value)


def write_leaf(target: executor_pb2.Value, value: Any) -> None:
  """Writes one array or scalar."""
  array = np.asarray(value)
  if array.ndim == 0 or array.dtype.kind not in 'fiub':
    dtype = np.str_ if array.dtype.kind in 'OSU' else array.dtype.type
    content, _ = tff.framework.serialize_value(
      value, tff.TensorType(dtype, array.shape)
    )
    target.CopyFrom(content)
    return
  target.array.dtype = tf.as_dtype(array.dtype).as_datatype_enum
  target.array.shape.dim.extend(array.shape)
  target.array.content = array.tobytes()


def read_leaf(source: executor_pb2.Value) -> Any:
  """Returns what `write_leaf` wrote; an array may be a view of the message."""
  array = source.array
  if array.content:
    dtype = tf.as_dtype(array.dtype).as_numpy_dtype
    return np.frombuffer(array.content, dtype).reshape(array.shape.dim)
  return tff.framework.deserialize_value(source)[0]
