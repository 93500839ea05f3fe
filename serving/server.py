"""The gRPC server: listens, reports health, drains.

Stopping (SIGTERM or Ctrl-C): health says NOT_SERVING at once; requests are
still answered for `drain_seconds`, so that balancers can turn away; then no new
one is accepted and those in flight finish, within `grace_seconds`. A second
signal stops at once.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import ipaddress
import logging
import os
import pathlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import faiss
import grpc
from google.protobuf import message
from grpc_health.v1 import health
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc

from protos.gen.dpemb.serving.v1 import embedding_service_pb2
from protos.gen.dpemb.serving.v1 import embedding_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import model_service_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2_grpc
from serving import servicer
from serving import status
from tff_dpemb.artifacts import storage

SERVICES = tuple(
  module.DESCRIPTOR.services_by_name[name].full_name
  for module, name in (
    (embedding_service_pb2, 'EmbeddingService'),
    (model_service_pb2, 'ModelService'),
    (retrieval_service_pb2, 'RetrievalService'),
  )
)

_LOG = logging.getLogger(__name__)
_IDENTITY_ONLY = 1  # bit set of compression algorithms: no compression


@dataclasses.dataclass(frozen=True)
class ServerOptions:
  """How the server runs. None of it changes an answer.

  Attributes:
    host: Address to listen on; the default is reachable from this machine
      only. There is no TLS and no authentication: put a proxy before it.
    port: 0 for any free port.
    workers: Threads that compute; also the number of interpreters to load.
    drain_seconds: From NOT_SERVING to refusing new requests.
    grace_seconds: For requests in flight to finish after that.

  Raises:
    status.InvalidValue: A value is out of range.
  """

  host: str = '127.0.0.1'
  port: int = 0
  workers: int = dataclasses.field(default_factory=lambda: os.cpu_count() or 1)
  drain_seconds: float = 1.0
  grace_seconds: float = 20.0

  def __post_init__(self) -> None:
    if not 0 <= self.port <= 65535:
      raise status.InvalidValue(f'port must be in 0..65535, got {self.port}.')
    if self.workers < 1:
      raise status.InvalidValue(f'workers must be >= 1, got {self.workers}.')
    for name in ('drain_seconds', 'grace_seconds'):
      if not 0 <= getattr(self, name) < float('inf'):
        raise status.InvalidValue(
          f'{name} must be >= 0, got {getattr(self, name)}.'
        )


class Server:
  """A server on one event loop."""

  def __init__(self, service: servicer.Service, options: ServerOptions) -> None:
    self._options = options
    self._service = service
    self._health = _Health()
    self._executor = concurrent.futures.ThreadPoolExecutor(
      options.workers,
      thread_name_prefix='serving',
      initializer=faiss.omp_set_num_threads,
      initargs=(1,),  # The threads share the cores already.
    )
    self._server: grpc.aio.Server | None = None
    self.address = ''

  async def start(self) -> str:
    """Listens and returns `host:port` with the bound port.

    Raises:
      status.CannotListen: The address is taken or not ours.
    """
    options = self._options
    check_can_listen(options.host, options.port)
    self._server = grpc.aio.server(
      interceptors=[_RefuseUnparsable()],
      options=[
        (
          'grpc.max_receive_message_length',
          self._service.limits.max_message_bytes,
        ),
        ('grpc.max_send_message_length', -1),
        ('grpc.so_reuseport', 0),  # Two servers must not share a port unseen.
        # gRPC decompresses a message before it measures it, so a small one
        # could take much memory.
        ('grpc.compression_enabled_algorithms_bitset', _IDENTITY_ONLY),
      ],
    )
    shell = (
      self._service,
      self._executor,
      servicer.Admission(self._service.limits),
    )
    embedding_service_pb2_grpc.add_EmbeddingServiceServicer_to_server(
      servicer.EmbeddingServicer(*shell), self._server
    )
    retrieval_service_pb2_grpc.add_RetrievalServiceServicer_to_server(
      servicer.RetrievalServicer(*shell), self._server
    )
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(
      servicer.ModelServicer(*shell), self._server
    )
    health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
    address = _join(options.host, options.port)
    try:
      port = self._server.add_insecure_port(address)
    except RuntimeError as error:
      raise _cannot_listen(address, 'it is in use') from error
    if not port:
      raise _cannot_listen(address, 'it is in use')
    await self._server.start()
    for name in ('', *SERVICES):
      await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
    self.address = _join(options.host, port)
    return self.address

  async def stop(self, *, at_once: asyncio.Event | None = None) -> None:
    """Drains and stops; see the module."""
    if self._server is None:
      return
    at_once = at_once or asyncio.Event()
    await self._health.enter_graceful_shutdown()
    with contextlib.suppress(TimeoutError):
      await asyncio.wait_for(at_once.wait(), self._options.drain_seconds)
    self._health.close()
    grace = 0.0 if at_once.is_set() else self._options.grace_seconds
    stopping = asyncio.ensure_future(self._server.stop(grace))
    hurry = asyncio.ensure_future(at_once.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not stopping.done():
      await self._server.stop(0)
    await stopping
    self._executor.shutdown(wait=False, cancel_futures=True)


def run(
  service: servicer.Service,
  options: ServerOptions,
  *,
  on_ready: Callable[[str], None],
) -> None:
  """Serves until SIGTERM or SIGINT, then drains. Main thread only.

  Args:
    service: What answers.
    options: Where and how.
    on_ready: Called with `host:port` once requests are answered.

  Raises:
    status.CannotListen: The address is taken or not ours.
  """

  async def main() -> None:
    stop = asyncio.Event()
    at_once = asyncio.Event()

    def on_signal() -> None:
      (at_once if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
      loop.add_signal_handler(number, on_signal)
    server = Server(service, options)
    on_ready(await server.start())
    await stop.wait()
    _LOG.info('Draining.')
    await server.stop(at_once=at_once)

  asyncio.run(main())


@contextlib.contextmanager
def running(
  service: servicer.Service, options: ServerOptions | None = None
) -> Iterator[str]:
  """Serves in a thread of this process while the body runs.

  Yields:
    `host:port`.
  """
  options = options or ServerOptions(drain_seconds=0.0)
  started: concurrent.futures.Future[str] = concurrent.futures.Future()
  loop = asyncio.new_event_loop()
  stop = asyncio.Event()

  async def main() -> None:
    server = Server(service, options)
    try:
      started.set_result(await server.start())
    except BaseException as error:
      started.set_exception(error)
      raise
    await stop.wait()
    await server.stop()

  def serve() -> None:
    asyncio.set_event_loop(loop)
    with contextlib.suppress(status.CannotListen):
      loop.run_until_complete(main())
    loop.close()

  thread = threading.Thread(target=serve, name='server')
  thread.start()
  try:
    yield started.result()
  finally:
    if started.exception() is None:
      loop.call_soon_threadsafe(stop.set)
    thread.join()


def write_port_file(path: str | os.PathLike[str], address: str) -> None:
  """Writes the port of `address` to a file that is seen whole or not at all."""
  port = address.rpartition(':')[2]
  storage.atomic_write_bytes(pathlib.Path(path), f'{port}\n'.encode())


def check_can_listen(host: str, port: int) -> None:
  """Tells in one line why an address cannot be listened on.

  Raises:
    status.CannotListen: It is taken, not ours, or reserved.
  """
  address = _join(host, port)
  try:
    found = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(found[0], found[1]) as probe:
      probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      probe.bind(found[4])
  except socket.gaierror as error:
    raise _cannot_listen(address, 'the host has no address here') from error
  except OSError as error:
    what = {
      errno.EADDRINUSE: 'it is in use',
      errno.EACCES: 'the port is reserved',
      errno.EADDRNOTAVAIL: 'the host is not this machine',
    }.get(error.errno or 0, str(error.strerror))
    raise _cannot_listen(address, what) from error


def is_loopback(host: str) -> bool:
  """Returns whether only this machine can reach `host`."""
  try:
    return all(
      ipaddress.ip_address(found[4][0]).is_loopback
      for found in socket.getaddrinfo(host, None)
    )
  except (OSError, ValueError):
    return False


class _RefuseUnparsable(grpc.aio.ServerInterceptor):
  """Answers INVALID_ARGUMENT to a body that is not the request's message.

  gRPC itself would answer UNKNOWN and log a traceback for each.
  """

  async def intercept_service(self, continuation, handler_call_details):
    handler = await continuation(handler_call_details)
    if handler is None or handler.unary_unary is None:
      return handler

    def parse(body: bytes) -> message.Message | status.InvalidRequest:
      try:
        return handler.request_deserializer(body)
      except message.DecodeError:
        return status.InvalidRequest(
          f'the request must be the message of {handler_call_details.method},'
          f' got {len(body)} bytes that are not; make the client from the'
          " server's .proto files."
        )

    async def answer(request, context):
      if isinstance(request, status.InvalidRequest):
        await context.abort(
          request.code,
          str(request),
          ((status.DETAILS_KEY, status.details_of(request)),),
        )
      return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(
      answer,
      request_deserializer=parse,
      response_serializer=handler.response_serializer,
    )


class _Health(health.aio.HealthServicer):
  """Health whose watchers do not hold the server back when it stops."""

  def __init__(self) -> None:
    super().__init__()
    self._closed = asyncio.Event()

  def close(self) -> None:
    self._closed.set()

  async def Watch(self, request, context) -> None:  # noqa: N802
    watching = asyncio.ensure_future(super().Watch(request, context))
    closing = asyncio.ensure_future(self._closed.wait())
    try:
      await asyncio.wait(
        {watching, closing}, return_when=asyncio.FIRST_COMPLETED
      )
    finally:
      watching.cancel()
      closing.cancel()


def _cannot_listen(address: str, what: str) -> status.CannotListen:
  return status.CannotListen(
    f'{address} must be free to listen on, but {what}; stop what uses it or'
    ' choose another --host or --port (0 takes any free port).'
  )


def _join(host: str, port: int) -> str:
  return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'
