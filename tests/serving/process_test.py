"""A server process: it tells when it is ready, and it drains."""

import pathlib
import signal
import subprocess
import sys
import threading

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc

from serving import client as client_lib
from serving import status

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PROGRAM = """
import sys
from serving import index, model_store, server, servicer
export = model_store.open_for_serving(sys.argv[1])
model = model_store.ServedModel(export, workers=2)
service = servicer.Service(model, index=index.load(sys.argv[2]))
options = server.ServerOptions(workers=2, drain_seconds=1.5, grace_seconds=10)
def ready(address):
  server.write_port_file(sys.argv[3], address)
  print('ready on', address, flush=True)
server.run(service, options, on_ready=ready)
print('stopped', flush=True)
"""


def test_sigterm_under_load_fails_no_request(
  export, gallery, random_images, tmp_path
):
  """Callers that turn away when health says so never see an error."""
  port_file = tmp_path / 'port'
  process = subprocess.Popen(
    [
      *(sys.executable, '-c', _PROGRAM),
      *(str(export.path), str(gallery.path), str(port_file)),
    ],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    ready = process.stdout.readline()
    address = f'127.0.0.1:{port_file.read_text().strip()}'
    assert ready == f'ready on {address}\n'
    images = random_images(100)
    expected = export.embed(images)
    turned_away = threading.Event()
    busy = threading.Semaphore(0)
    failures = []
    answered = []

    def load(position):
      with client_lib.Client(address) as client:
        while not turned_away.is_set():
          try:
            actual = client.embed(images)
            found = client.search(embeddings=gallery.embeddings[:5], k=1)
          except status.ServingError as error:
            failures.append(str(error))
            busy.release()
            return
          right = np.allclose(actual, expected, atol=1e-5)
          answered.append(right and found[position][0].position == position)
          busy.release()

    threads = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for thread in threads:
      thread.start()
    for _ in range(20):  # Requests answered before the signal.
      assert busy.acquire(timeout=30)
    with grpc.insecure_channel(address) as channel:
      watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(), timeout=30
      )
      assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
      process.send_signal(signal.SIGTERM)
      assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
      turned_away.set()
    for thread in threads:
      thread.join(30)
    assert failures == []
    assert len(answered) >= 20
    assert all(answered)
    stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, stdout, stderr) == (0, 'stopped\n', '')
    with client_lib.Client(address, deadline_seconds=10) as client:
      with pytest.raises(status.Unanswered, match='UNAVAILABLE'):
        client.status()
  finally:
    process.kill()
    process.communicate()
