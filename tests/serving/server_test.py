"""Tests of serving.server: listening, health, bounds on the wire, draining."""

import concurrent.futures
import socket
import subprocess
import sys

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc

from protos.gen.dpemb.serving.v1 import embedding_service_pb2
from protos.gen.dpemb.serving.v1 import embedding_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import image_pb2
from serving import client as client_lib
from serving import server
from serving import status

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize('name', ['', *server.SERVICES])
def test_health(address, name):
  with grpc.insecure_channel(address) as channel:
    answer = health_pb2_grpc.HealthStub(channel).Check(
      health_pb2.HealthCheckRequest(service=name), timeout=10
    )
  assert answer.status == SERVING


def test_port_in_use(address, service):
  port = int(address.rpartition(':')[2])
  with pytest.raises(
    status.CannotListen, match=f'127.0.0.1:{port} must be free.*it is in use'
  ):
    with server.running(service, server.ServerOptions(port=port)):
      pass


@pytest.mark.parametrize(
  ('host', 'message'),
  [
    ('192.0.2.1', 'the host is not this machine'),
    ('no-such-host.invalid', 'the host has no address here'),
  ],
)
def test_host_that_is_not_ours(host, message):
  with pytest.raises(status.CannotListen, match=message):
    server.check_can_listen(host, 0)


@pytest.mark.parametrize(
  ('host', 'expected'),
  [('127.0.0.1', True), ('localhost', True), ('0.0.0.0', False)],
)
def test_is_loopback(host, expected):
  assert server.is_loopback(host) is expected


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'port': 70_000}, r'port must be in 0..65535, got 70000'),
    ({'workers': 0}, 'workers must be >= 1, got 0'),
    ({'grace_seconds': -1.0}, 'grace_seconds must be >= 0, got -1.0'),
    ({'drain_seconds': float('nan')}, 'drain_seconds must be >= 0, got nan'),
  ],
)
def test_bad_options(values, message):
  with pytest.raises(ValueError, match=message):
    server.ServerOptions(**values)


@pytest.mark.parametrize(
  'method', ['EmbeddingService/Embed', 'RetrievalService/Search']
)
def test_a_body_that_is_no_message_is_refused(address, caplog, method):
  with grpc.insecure_channel(address) as channel:
    call = channel.unary_unary(f'/dpemb.serving.v1.{method}')
    with pytest.raises(grpc.RpcError) as caught:
      call(b'\xff\xff\xff', timeout=10)
  assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
  error = status.error_of(caught.value)
  assert isinstance(error, status.InvalidRequest)
  assert f'{method}, got 3 bytes' in str(error)
  assert caplog.records == []


def test_message_cap(address):
  request = embedding_service_pb2.EmbedRequest(
    images=image_pb2.ImageBatch(
      raw=image_pb2.RawImages(pixels=bytes(65 * 1024))
    )
  )
  with grpc.insecure_channel(address) as channel:
    stub = embedding_service_pb2_grpc.EmbeddingServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
      stub.Embed(request, timeout=10)
  assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
  assert '--max-message-bytes' in str(status.error_of(caught.value))


def test_compressed_requests_are_refused(address):
  """8 MiB of zeros shrink to 8 KiB, below the message cap."""
  request = embedding_service_pb2.EmbedRequest(
    images=image_pb2.ImageBatch(
      raw=image_pb2.RawImages(pixels=bytes(8 * 1024 * 1024))
    )
  )
  with grpc.insecure_channel(
    address, options=[('grpc.max_send_message_length', -1)]
  ) as channel:
    stub = embedding_service_pb2_grpc.EmbeddingServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
      stub.Embed(request, timeout=10, compression=grpc.Compression.Gzip)
  assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_many_clients_get_their_own_answers(address, export, random_images):
  batches = [random_images(1 + i % 9, seed=i) for i in range(80)]
  expected = [export.embed(batch) for batch in batches]
  with (
    client_lib.Client(address) as client,
    concurrent.futures.ThreadPoolExecutor(16) as pool,
  ):
    actual = list(pool.map(client.embed, batches))
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_watchers_see_the_drain_and_do_not_hold_it_back(service):
  """Health tells first; a watch that never ends must not use up the grace."""
  options = server.ServerOptions(
    workers=1, drain_seconds=0.2, grace_seconds=600
  )
  with server.running(service, options) as bound:
    channel = grpc.insecure_channel(bound)
    watch = health_pb2_grpc.HealthStub(channel).Watch(
      health_pb2.HealthCheckRequest(), timeout=30
    )
    assert next(watch).status == SERVING
  # `running` has drained by now: had it waited for the watch, the timeout of
  # the watch would have ended it with an error instead.
  assert next(watch).status == NOT_SERVING
  assert list(watch) == []
  channel.close()


def test_no_server():
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  with client_lib.Client(f'127.0.0.1:{port}', deadline_seconds=10) as client:
    with pytest.raises(status.Unanswered, match='got UNAVAILABLE'):
      client.status()
    with pytest.raises(status.Unanswered, match='got DEADLINE_EXCEEDED'):
      client.wait_until_serving(seconds=0.1)


def test_a_program_ends_though_its_client_was_not_closed(address):
  program = (
    'import sys\n'
    'from serving import client\n'
    'c = client.Client(sys.argv[1])\n'
    'c.wait_until_serving()\n'
    'print(c.status().name)\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', program, address],
    check=True,
    capture_output=True,
    text=True,
    timeout=30,
  )
  assert result.stdout == 'faces\n'
