"""A worker whose client work TensorFlow runs on its devices, such as GPUs.

TFF's C++ worker holds no CUDA. This program answers the same ExecutorGroup
protocol for what `remote_worker` asks of a worker: tensors and computations of
TensorFlow come in, calls of them are queued, a result is computed when it is
asked for. Partial sums stay on the device where they began; weights go to each
device once. Start it through `dpemb worker --device`, which guards its port.
"""

import argparse
import collections
import contextlib
import dataclasses
import itertools
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol

import grpc
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc

from tff_dpemb.training.execution import device_functions
from tff_dpemb.training.execution.workers import process
from tff_dpemb.training.execution.workers import remote

_SERVER_THREADS = 16
_CONNECTIONS_KEPT = 2
_ROUNDS_ALONE = (
  'a worker with devices runs the parts of rounds alone; name one without'
  ' --device too for the rest.'
)


class _Unknown(LookupError):
  """An id of a connection or value that is gone, or never was."""


class _Unsupported(ValueError):
  """A value that only TFF's own worker takes."""


class _Value(Protocol):
  """What an id stands for, when it is computed."""

  @property
  def device(self) -> str | None:
    """Where it lies, None: in the host's memory."""

  def on(self, device: str) -> list[tf.Tensor]:
    """Returns its tensors, flat, in the memory of a device."""

  def select(self, index: int) -> '_Value':
    """Returns one element."""

  def write(self, target: executor_pb2.Value) -> None:
    """Writes it for the coordinator."""


class _Tensors:
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

  def select(self, index: int) -> '_Tensors':
    return _Tensors([self._tensors[index]], self.device, is_leaf=True)

  def write(self, target: executor_pb2.Value) -> None:
    arrays = [tensor.numpy() for tensor in self._tensors]
    if self._is_leaf:
      remote.write_leaf(target, arrays[0])
    else:
      remote.write_struct(target, arrays)


class _Struct:
  """Values side by side: the arguments of a call."""

  def __init__(self, elements: Sequence[_Value]):
    self._elements = elements
    known = [e.device for e in elements if e.device is not None]
    self.device = known[0] if known else None

  def on(self, device: str) -> list[tf.Tensor]:
    return [
      tensor for element in self._elements for tensor in element.on(device)
    ]

  def select(self, index: int) -> _Value:
    return self._elements[index]

  def write(self, target: executor_pb2.Value) -> None:
    target.struct.SetInParent()
    for element in self._elements:
      element.write(target.struct.element.add().value)


class _Computation:
  """A computation of TensorFlow, traced for every device when it comes."""

  def __init__(self, computation: Any, devices: Sequence[str]):
    result = computation.type_signature.result
    self.returns_leaf = isinstance(result, tff.TensorType)
    if not self.returns_leaf and not all(
      isinstance(member, tff.TensorType) for member in result
    ):
      raise _Unsupported(f'a result must be flat, got {result}.')
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


class _Later(Protocol):
  """A value that may not be there yet: a call under way, or what follows."""

  def result(self) -> Any:
    """Returns it, after waiting; raises what computing it raised."""


class _Derived:
  """What follows from other values without computing: made when asked for."""

  def __init__(self, make):
    self._make = make

  def result(self) -> Any:
    return self._make()


class _Connection:
  """What one coordinator has sent and asked for."""

  def __init__(
    self,
    devices: Sequence[str],
    threads: futures.Executor,
    calls: 'collections.Counter[str]',
  ):
    self._threads, self._calls = threads, calls
    self._next_device = itertools.cycle(devices)
    self._serial = itertools.count(1)
    # A call may be asked for before its arguments are there.
    self._values: dict[str, _Later] = {}
    self._lock = threading.Lock()

  def keep(self, value: _Later) -> executor_pb2.ValueRef:
    with self._lock:
      key = f'v{next(self._serial)}'
      self._values[key] = value
    return executor_pb2.ValueRef(id=key)

  def future(self, reference: executor_pb2.ValueRef) -> _Later:
    with self._lock:
      if reference.id not in self._values:
        raise _Unknown(f'value {reference.id!r} is not here.')
      return self._values[reference.id]

  def dispose(self, references: Sequence[executor_pb2.ValueRef]) -> None:
    with self._lock:
      for reference in references:
        self._values.pop(reference.id, None)

  def call(self, function: _Later, arguments: _Later | None) -> _Later:
    # Calls start in the order in which they came, and need earlier ones alone:
    # a thread that waits for a result waits for one that runs, or is done.
    return self._threads.submit(self._run, function, arguments)

  def _run(self, function, arguments):
    computation = function.result()
    if not isinstance(computation, _Computation):
      raise _Unsupported('only a computation can be called.')
    given = arguments.result() if arguments is not None else _Struct([])
    device = given.device
    if device is None:
      with self._lock:
        device = next(self._next_device)
    results = computation.run(given.on(device), device)
    with self._lock:
      self._calls[device] += 1
    return _Tensors(results, device, computation.returns_leaf)


class DeviceService(executor_pb2_grpc.ExecutorGroupServicer):
  """The ExecutorGroup protocol, for computations of TensorFlow on tensors."""

  def __init__(self, devices: Sequence[str], *, threads: futures.Executor):
    """Makes the service.

    Args:
      devices: Full names.
      threads: Run the calls; as many as may be in flight.
    """
    self._devices, self._threads = devices, threads
    self._calls: collections.Counter[str] = collections.Counter()
    self._connections: dict[str, _Connection] = {}

  @property
  def calls(self) -> Mapping[str, int]:
    """Returns how many calls ran on each device."""
    return dict(self._calls)

  def GetExecutor(self, request, context):  # noqa: N802 -- name of the RPC.
    del request, context
    key = f'{remote.DEVICES_PREFIX}{secrets.token_hex(8)}'
    self._connections[key] = _Connection(
      self._devices, self._threads, self._calls
    )
    # Who lost its channel said no goodbye; its data must not stay.
    for old in list(self._connections)[:-_CONNECTIONS_KEPT]:
      self._connections.pop(old, None)
    return executor_pb2.GetExecutorResponse(
      executor=executor_pb2.ExecutorId(id=key)
    )

  def CreateValue(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      value = _read(request.value, self._devices)
      kept = connection.keep(_Derived(lambda: value))
      return executor_pb2.CreateValueResponse(value_ref=kept)

  def CreateStruct(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      elements = [connection.future(e.value_ref) for e in request.element]
      kept = connection.keep(
        _Derived(lambda: _Struct([e.result() for e in elements]))
      )
      return executor_pb2.CreateStructResponse(value_ref=kept)

  def CreateSelection(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      source, index = connection.future(request.source_ref), request.index
      kept = connection.keep(_Derived(lambda: source.result().select(index)))
      return executor_pb2.CreateSelectionResponse(value_ref=kept)

  def CreateCall(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      arguments = None
      if request.HasField('argument_ref'):
        arguments = connection.future(request.argument_ref)
      call = connection.call(connection.future(request.function_ref), arguments)
      return executor_pb2.CreateCallResponse(value_ref=connection.keep(call))

  def Compute(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      answer = executor_pb2.ComputeResponse()
      connection.future(request.value_ref).result().write(answer.value)
      return answer

  def Dispose(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      connection.dispose(request.value_ref)
      return executor_pb2.DisposeResponse()

  def DisposeExecutor(self, request, context):  # noqa: N802 -- name of the RPC.
    del context
    self._connections.pop(request.executor.id, None)
    return executor_pb2.DisposeExecutorResponse()

  @contextlib.contextmanager
  def _connection(self, request, context) -> Iterator[_Connection]:
    """Yields the connection of a request; errors become those of gRPC."""
    try:
      connection = self._connections.get(request.executor.id)
      if connection is None:
        raise _Unknown(f'executor {request.executor.id!r} is not here.')
      yield connection
    except _Unknown as error:
      _abort(context, grpc.StatusCode.FAILED_PRECONDITION, error)
    except _Unsupported as error:
      _abort(context, grpc.StatusCode.UNIMPLEMENTED, error)
    except Exception as error:
      _abort(context, grpc.StatusCode.INTERNAL, error)
      raise  # Not reached: an abort raises.


def _read(
  value: executor_pb2.Value, devices: Sequence[str]
) -> _Tensors | _Computation:
  """Returns what a coordinator sent.

  Raises:
    _Unsupported: It is neither a tensor, nor a flat struct of tensors, nor a
      computation of TensorFlow.
  """
  match value.WhichOneof('value'):
    case 'computation':
      if value.computation.WhichOneof('computation') != 'tensorflow':
        raise _Unsupported(_ROUNDS_ALONE)
      return _Computation(
        tff.framework.ConcreteComputation(
          computation_proto=value.computation,
          context_stack=tff.framework.get_context_stack(),
        ),
        devices,
      )
    case 'federated':
      raise _Unsupported(_ROUNDS_ALONE)
    case 'struct':
      return _Tensors([_tensor(e.value) for e in value.struct.element], None)
    case _:
      return _Tensors([_tensor(value)], None, is_leaf=True)


def _tensor(value: executor_pb2.Value) -> tf.Tensor:
  kind = value.WhichOneof('value')
  if kind != 'array':
    raise _Unsupported(f'a value must be a flat struct of tensors, got {kind}.')
  with tf.device('CPU:0'):
    return tf.constant(remote.read_leaf(value))


def _abort(context, code: grpc.StatusCode, error: Exception) -> None:
  kind = type(error).__name__
  if not isinstance(error, tf.errors.OpError):
    first, *_ = str(error).splitlines() or ['']
    context.abort(code, f'{kind}: {first[:300]}')
  # What an operation says may hold values of private data, its name does not.
  found = re.search(r"node '?([\w/.-]+)", str(error))
  context.abort(code, f'{kind} at {found[1] if found else "an operation"}')


@dataclasses.dataclass(frozen=True)
class Served:
  """A running server; `server.stop(None)` ends it."""

  server: grpc.Server
  service: DeviceService
  port: int


def serve(
  devices: Sequence[str], *, port: int = 0, slots_per_device: int = 2
) -> Served:
  """Returns a running server on 127.0.0.1, without encryption.

  Args:
    devices: Full names.
    port: Where to listen; 0: any free one.
    slots_per_device: Calls in flight on each device.

  Raises:
    ExecutorError: The port is taken.
  """
  threads = futures.ThreadPoolExecutor(
    slots_per_device * len(devices), thread_name_prefix='call'
  )
  server = grpc.server(
    futures.ThreadPoolExecutor(_SERVER_THREADS, thread_name_prefix='rpc'),
    options=[*remote.MESSAGE_OPTIONS, ('grpc.so_reuseport', 0)],
  )
  service = DeviceService(devices, threads=threads)
  executor_pb2_grpc.add_ExecutorGroupServicer_to_server(service, server)
  try:
    port = server.add_insecure_port(f'127.0.0.1:{port}')
  except RuntimeError as error:
    raise process.ExecutorError(
      f'port must be free on 127.0.0.1, got {port}.'
    ) from error
  server.start()
  return Served(server, service, port)


def main(arguments: Sequence[str] | None = None) -> int:
  """Serves for ever, or with --check tries the devices; returns an exit code."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--port', type=int, default=0)
  parser.add_argument('--device', action='append', default=[])
  parser.add_argument('--slots', type=int, default=2)
  parser.add_argument('--check', action='store_true')
  options = parser.parse_args(arguments)
  try:
    named = None if options.device == ['all'] else options.device
    devices = device_functions.choose(named)
    for device in devices:
      device_functions.probe(device)
    if options.check:
      print(' '.join(devices))
      return 0
    served = serve(devices, port=options.port, slots_per_device=options.slots)
  except process.ExecutorError as error:
    print(error, file=sys.stderr)
    return 2
  served.server.wait_for_termination()
  return 0


if __name__ == '__main__':
  sys.exit(main())
