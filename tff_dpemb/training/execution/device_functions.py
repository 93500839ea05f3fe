"""Devices of this TensorFlow, and TFF's computations as functions on one."""

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import process

_ACCELERATORS = ('GPU', 'TPU')


def choose(devices: Sequence[str] | None) -> tuple[str, ...]:
  """Returns full names of devices, such as '/device:GPU:0'.

  Args:
    devices: Such as ('GPU:0', 'GPU:1'); None: every GPU, else every TPU core.

  Raises:
    ExecutorError: No such device, or no accelerator.
  """
  for gpu in tf.config.list_physical_devices('GPU'):
    # Else the first program on a machine takes all memory of all its GPUs.
    with contextlib.suppress(RuntimeError):  # They are set up already.
      tf.config.experimental.set_memory_growth(gpu, True)
  listed = [device.name for device in tf.config.list_logical_devices()]
  if devices is None:
    for kind in _ACCELERATORS:
      found = [name for name in listed if f':{kind}:' in name]
      if found:
        return tuple(found)
    raise process.ExecutorError(
      f'TensorFlow must list a GPU or a TPU, it lists {listed}; install the'
      " 'gpu' extra and a driver, or name devices that are there."
    )
  chosen = []
  for name in devices:
    kind, _, number = (
      name.removeprefix('/').removeprefix('device:').partition(':')
    )
    full = f'/device:{kind.upper()}:{number or 0}'
    if full not in listed:
      raise process.ExecutorError(
        f'devices must be among {listed}, got {name!r}.'
      )
    chosen.append(full)
  if not chosen or len(set(chosen)) != len(chosen):
    raise process.ExecutorError(
      f'devices must be one or more different ones, got {list(devices)}.'
    )
  return tuple(chosen)


def probe(device: str) -> None:
  """Computes on a device and checks that the result lies there.

  Raises:
    ExecutorError: It computes wrongly, or elsewhere.
  """
  with tf.device(device):
    product = tf.matmul(tf.eye(8), tf.ones([8, 8]))
  check_placement([product], device)
  if not np.array_equal(product.numpy(), np.ones([8, 8])):
    raise process.ExecutorError(
      f'{device} must multiply by one exactly; do not use this device.'
    )


def check_placement(tensors: Iterable[tf.Tensor], device: str) -> None:
  """Raises ExecutorError if TensorFlow put a result elsewhere."""
  for tensor in tensors:
    # A function's integers lie in the host's memory, wherever it ran.
    lies_there = tensor.backing_device.endswith(device)
    if tensor.dtype.is_floating and not lies_there:
      raise process.ExecutorError(
        f'a result must lie on {device}, TensorFlow put it on'
        f' {tensor.backing_device}.'
      )


class DeviceFunction:
  """A TensorFlow computation of TFF on one device: flat tensors in and out.

  The graph is imported into a `tf.function` once; tensors of unknown size keep
  it at one trace. Variables in it belong to this object alone and are
  initialised in each call, so only one thread at a time may call one with
  variables.
  """

  def __init__(self, comp: Any, device: str, *, name: str):
    """Imports and traces the graph.

    Args:
      comp: A `tff.tensorflow.computation` of tensors.
      device: Full name.
      name: Of what its variables and functions are called, for messages.
    """
    parts = round_form.GraphParts(comp)
    _make_unique(parts.graph_def, f'{name}_{next(_SERIAL)}')
    feeds, fetches = parts.parameters, parts.results
    parameter = comp.type_signature.parameter
    types = [] if parameter is None else _tensor_types(parameter)

    def import_graph():
      with tf.device(device):
        tf.graph_util.import_graph_def(parts.graph_def, name='')

    # Of TensorFlow's ways to import a graph, this one alone brings the graph's
    # library of functions along.
    whole = tf.compat.v1.wrap_function(import_graph, [])
    computed = [f for f in dict.fromkeys(fetches) if f not in feeds]
    compute = whole.prune(feeds, computed)
    initialize = None
    if parts.initialize:
      initialize = whole.prune([], [parts.initialize])
    specs = [tf.TensorSpec(t.shape, tf.as_dtype(t.dtype)) for t in types]

    # A pruned function writes its arguments out on each call, a tf.function
    # around it does not: 12 ms a client instead of 30.
    @tf.function(input_signature=specs, autograph=False)
    def run(*tensors):
      with tf.device(device):
        values = dict(zip(feeds, map(tf.identity, tensors), strict=True))
        if computed:
          values.update(zip(computed, compute(*values.values()), strict=True))
        return [tf.identity(values[fetch]) for fetch in fetches]

    self._initialize = initialize
    self._run = run.get_concrete_function()  # Traced now, in one thread.

  def __call__(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
    if self._initialize is not None:
      self._initialize()
    return list(self._run(*tensors))


_SERIAL = itertools.count()


def _make_unique(graph_def, suffix: str) -> None:
  """Gives variables and library functions names that no other graph has.

  Variables of one name would be shared by the slots. Functions of one name are
  shared by all of TensorFlow, and go when the first graph that has them goes.
  """
  renamed = {
    function.signature.name: f'{function.signature.name}_{suffix}'
    for function in graph_def.library.function
  }
  for function in graph_def.library.function:
    function.signature.name = renamed[function.signature.name]
  for gradient in graph_def.library.gradient:
    for field in ('function_name', 'gradient_func'):
      name = getattr(gradient, field)
      setattr(gradient, field, renamed.get(name, name))
  nodes = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
  for node in itertools.chain.from_iterable(nodes):
    node.op = renamed.get(node.op, node.op)
    if node.op == 'VarHandleOp':
      shared = node.attr['shared_name'].s or node.name.encode()
      node.attr['shared_name'].s = shared + f'_{suffix}'.encode()
    for value in node.attr.values():
      for called in (value.func, *value.list.func):
        if called.name in renamed:
          called.name = renamed[called.name]


def wait_for(tensors: Sequence[tf.Tensor]) -> None:
  """Reads one number of what was computed last.

  Kernels of a GPU run behind Python: without this, nothing would bound the
  clients in flight, nor say when they are done.
  """
  filled = [tensor for tensor in tensors if tensor.shape.num_elements()]
  # A function's integers may lie in the host's memory, computed or not.
  filled.sort(key=lambda tensor: not tensor.dtype.is_floating)
  for tensor in filled[:1]:
    with tf.device(tensor.backing_device):
      tf.reshape(tensor, [-1])[:1].numpy()


def copy_to(tensors: Iterable[tf.Tensor], device: str) -> list[tf.Tensor]:
  """Returns the tensors in the memory of a device."""
  with tf.device(device):
    return [tf.identity(tensor) for tensor in tensors]


def _tensor_types(type_spec: Any) -> list[Any]:
  """Returns the tensor types of a TFF type, in order."""
  if isinstance(type_spec, tff.FederatedType):
    return _tensor_types(type_spec.member)
  if isinstance(type_spec, tff.StructType):
    return [
      t
      for _, part in tff.structure.iter_elements(type_spec)
      for t in _tensor_types(part)
    ]
  if isinstance(type_spec, tff.TensorType):
    return [type_spec]
  raise process.ExecutorError(
    f'values must be tensors on an accelerator, got {type_spec}.'
  )
