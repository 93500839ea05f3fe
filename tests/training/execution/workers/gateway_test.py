"""When a gateway starts its worker again, and when it waits."""

import asyncio
import contextlib
import socket

import pytest

from tff_dpemb.training.execution.workers import gateway as worker_gateway
from tff_dpemb.training.execution.workers import process


class _Worker:
  """Stands for a process: alive or not, listening or not."""

  def __init__(self):
    self.alive, self.starts = True, 0
    with socket.socket() as probe:
      probe.bind(('127.0.0.1', 0))
      self.target = f'127.0.0.1:{probe.getsockname()[1]}'

  def is_alive(self) -> bool:
    return self.alive

  def restart(self) -> None:
    self.alive, self.starts = True, self.starts + 1


@pytest.fixture
def worker(monkeypatch):
  monkeypatch.setattr(worker_gateway, '_POLL_SECONDS', 0.01)
  monkeypatch.setattr(worker_gateway, '_POLLS_A_PROBE', 2)
  monkeypatch.setattr(worker_gateway, '_RETRY_SECONDS', 0.01)
  return _Worker()


def _gateway(worker):
  return worker_gateway.Gateway(worker, host='127.0.0.1', port=0, context=None)


async def _keep(gateway, seconds: float) -> None:
  with contextlib.suppress(TimeoutError):
    await asyncio.wait_for(gateway.keep(), seconds)


async def _listen(worker, answer: bytes = b''):
  async def serve(reader, writer):
    writer.write(answer)
    await reader.read()
    writer.close()

  port = int(worker.target.rpartition(':')[2])
  return await asyncio.start_server(serve, '127.0.0.1', port)


def test_a_worker_that_still_starts_is_waited_for(worker):
  asyncio.run(_keep(_gateway(worker), 0.5))
  assert worker.starts == 0


def test_a_worker_that_was_reached_and_is_cut_off_is_started_again(worker):
  async def run():
    gateway = _gateway(worker)
    server = await _listen(worker)
    await _keep(gateway, 0.5)
    assert worker.starts == 0
    server.close()
    await server.wait_closed()
    await _keep(gateway, 0.5)

  asyncio.run(run())
  assert worker.starts == 1  # And then it starts, for ever.


def test_only_who_was_answered_leaves_data_behind(worker):
  async def visit(gateway):
    _, writer = await asyncio.open_connection('127.0.0.1', gateway.port)
    await asyncio.sleep(0.2)
    writer.close()
    await asyncio.sleep(0.2)

  async def run(answer):
    gateway = _gateway(worker)
    server = await _listen(worker, answer)
    await gateway.start()
    keeping = asyncio.create_task(gateway.keep())
    await visit(gateway)
    keeping.cancel()
    await gateway.stop()
    server.close()
    return worker.starts

  assert asyncio.run(run(b'')) == 0
  assert asyncio.run(run(b'settings')) == 1


def test_ready_is_who_answers(worker, monkeypatch):
  async def run():
    server = await _listen(worker, b'settings')
    await _gateway(worker).wait_until_it_answers()
    server.close()

  asyncio.run(run())
  monkeypatch.setattr(worker_gateway, '_ANSWER_SECONDS', 0.2)
  with pytest.raises(process.ExecutorError, match='within 0.2 s'):
    asyncio.run(_gateway(worker).wait_until_it_answers())
  worker.alive = False
  with pytest.raises(process.ExecutorError, match='ended before'):
    asyncio.run(_gateway(worker).wait_until_it_answers())
