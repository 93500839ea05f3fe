"""A worker whose client work TensorFlow runs on its devices, such as GPUs.

TFF's C++ worker holds no CUDA. This program answers the same ExecutorGroup
protocol for what `remote` asks of a worker: tensors and computations of
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
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc

from tff_dpemb.training.execution import device_functions
from tff_dpemb.training.execution.workers import device_values
from tff_dpemb.training.execution.workers import messages
from tff_dpemb.training.execution.workers import process

_SERVER_THREADS = 16
_CONNECTIONS_KEPT = 2


class _Unknown(LookupError):
  """An id of a connection or value that is gone, or never was."""


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
    if not isinstance(computation, device_values.Computation):
      raise device_values.Unsupported('only a computation can be called.')
    given = (
      arguments.result() if arguments is not None else device_values.Struct([])
    )
    device = given.device
    if device is None:
      with self._lock:
        device = next(self._next_device)
    results = computation.run(given.on(device), device)
    with self._lock:
      self._calls[device] += 1
    return device_values.Tensors(results, device, computation.returns_leaf)


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
    key = f'{messages.DEVICES_PREFIX}{secrets.token_hex(8)}'
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
      value = device_values.read(request.value, self._devices)
      kept = connection.keep(_Derived(lambda: value))
      return executor_pb2.CreateValueResponse(value_ref=kept)

  def CreateStruct(self, request, context):  # noqa: N802 -- name of the RPC.
    with self._connection(request, context) as connection:
      elements = [connection.future(e.value_ref) for e in request.element]
      kept = connection.keep(
        _Derived(lambda: device_values.Struct([e.result() for e in elements]))
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
    except device_values.Unsupported as error:
      _abort(context, grpc.StatusCode.UNIMPLEMENTED, error)
    except Exception as error:
      _abort(context, grpc.StatusCode.INTERNAL, error)
      raise  # Not reached: an abort raises.


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
    options=[*messages.SIZE_OPTIONS, ('grpc.so_reuseport', 0)],
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
