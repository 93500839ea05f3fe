"""What a worker with devices holds: tensors, structs of them, computations.

Tensors lie on the device where they were computed, and are copied to another
one once, when they are asked for there.
"""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tff_dpemb.training.execution import device_functions
from tff_dpemb.training.execution.workers import messages

_ROUNDS_ALONE = (
  'a worker with devices runs the parts of rounds alone; name one without'
  ' --device too for the rest.'
)


class Unsupported(ValueError):
  """A value that only TFF's own worker takes."""


class Value(Protocol):
  """What an id stands for, when it is computed."""

  @property
  def device(self) -> str | None:
    """Where it lies, None: in the host's memory."""

  def on(self, device: str) -> list[tf.Tensor]:
    """Returns its tensors, flat, in the memory of a device."""

  def select(self, index: int) -> 'Value':
    """Returns one element."""

  def write(self, target: executor_pb2.Value) -> None:
    """Writes it for the coordinator."""


class Tensors:
  """A flat struct of tensors, or with `is_leaf` one tensor."""

  def __init__(
    self, tensors: Sequence[tf.Tensor], device: str | None, is_leaf=False
  ):
    self.device = device
    self._tensors = list(tensors)
    self._is_leaf = is_leaf
    self._copies: dict[str, list[tf.Tensor]] = {}
    self._lock = threading.Lock()

  def on(self, device: str) -> list[tf.Tensor]:
    if device == self.device:
      return self._tensors
    with self._lock:
      if device not in self._copies:
        copies = device_functions.copy_to(self._tensors, device)
        self._copies[device] = copies
      return self._copies[device]

  def select(self, index: int) -> 'Tensors':
    return Tensors([self._tensors[index]], self.device, is_leaf=True)

  def write(self, target: executor_pb2.Value) -> None:
    arrays = [tensor.numpy() for tensor in self._tensors]
    if self._is_leaf:
      messages.write_leaf(target, arrays[0])
    else:
      messages.write_struct(target, arrays)


class Struct:
  """Values side by side: the arguments of a call."""

  def __init__(self, elements: Sequence[Value]):
    self._elements = elements
    known = [e.device for e in elements if e.device is not None]
    self.device = known[0] if known else None

  def on(self, device: str) -> list[tf.Tensor]:
    return [
      tensor for element in self._elements for tensor in element.on(device)
    ]

  def select(self, index: int) -> Value:
    return self._elements[index]

  def write(self, target: executor_pb2.Value) -> None:
    target.struct.SetInParent()
    for element in self._elements:
      element.write(target.struct.element.add().value)


class Computation:
  """A computation of TensorFlow, traced for every device when it comes."""

  def __init__(self, computation: Any, devices: Sequence[str]):
    result = computation.type_signature.result
    self.returns_leaf = isinstance(result, tff.TensorType)
    if not self.returns_leaf and not all(
      isinstance(member, tff.TensorType) for member in result
    ):
      raise Unsupported(f'a result must be flat, got {result}.')
    self._functions = {
      device: device_functions.DeviceFunction(
        computation, device, name='worker'
      )
      for device in devices
    }

  def run(self, tensors: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Returns the results, which lie on the device and are computed."""
    results = self._functions[device](tensors)
    device_functions.check_placement(results, device)
    device_functions.wait_for(results)
    return results


def read(
  value: executor_pb2.Value, devices: Sequence[str]
) -> Tensors | Computation:
  """Returns what a coordinator sent.

  Raises:
    Unsupported: It is neither a tensor, nor a flat struct of tensors, nor a
      computation of TensorFlow.
  """
  match value.WhichOneof('value'):
    case 'computation':
      if value.computation.WhichOneof('computation') != 'tensorflow':
        raise Unsupported(_ROUNDS_ALONE)
      return Computation(
        tff.framework.ConcreteComputation(
          computation_proto=value.computation,
          context_stack=tff.framework.get_context_stack(),
        ),
        devices,
      )
    case 'federated':
      raise Unsupported(_ROUNDS_ALONE)
    case 'struct':
      return Tensors([_tensor(e.value) for e in value.struct.element], None)
    case _:
      return Tensors([_tensor(value)], None, is_leaf=True)


def _tensor(value: executor_pb2.Value) -> tf.Tensor:
  kind = value.WhichOneof('value')
  if kind != 'array':
    raise Unsupported(f'a value must be a flat struct of tensors, got {kind}.')
  with tf.device('CPU:0'):
    return tf.constant(messages.read_leaf(value))
