"""The door of a worker on another machine: one address, TLS if it has files.

TFF's worker can neither encrypt nor choose where it listens. It runs sealed,
and this gateway forwards, byte by byte, what connects to the one address that
it was given and has proved who it is.
"""

import asyncio
import contextlib
import itertools
import logging
import ssl

from tff_dpemb.training.execution.workers import process

_CHUNK_BYTES = 1 << 18
_POLL_SECONDS = 0.5
_POLLS_A_PROBE = 10
_LONGEST_PAUSE_SECONDS = 30.0
_RETRY_SECONDS = 0.1
_ANSWER_SECONDS = 300.0
# What a client of HTTP/2 (RFC 9113, section 3.4) says first, with no settings.
_HELLO = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, *[0] * 5])
_log = logging.getLogger(__name__)


class Gateway:
  """A listener in front of an owned worker, which it keeps alive."""

  def __init__(
    self,
    worker: process.OwnedWorker,
    *,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
  ):
    """Does not listen yet.

    Args:
      worker: Is started again whenever it ends.
      host: Where to listen.
      port: 0: any free one.
      context: TLS of the worker's side; without, nothing is encrypted.
    """
    self._worker = worker
    self._host, self._wanted_port, self._context = host, port, context
    self._server: asyncio.Server | None = None
    self._connections = 0
    self._is_used = False  # By a coordinator that is gone.
    self._was_reached = False  # Since it was started.
    self._pause = _POLL_SECONDS  # Before one that ended is started again.

  @property
  def port(self) -> int:
    """Returns the port, 0 before `start`."""
    return self._server.sockets[0].getsockname()[1] if self._server else 0

  async def start(self) -> None:
    """Begins to listen.

    Raises:
      OSError: The address cannot be listened on.
    """
    self._server = await asyncio.start_server(
      self._join,
      self._host,
      self._wanted_port,
      ssl=self._context,
      limit=_CHUNK_BYTES,
    )

  async def wait_until_it_answers(self) -> None:
    """Returns when the worker speaks gRPC.

    Raises:
      ExecutorError: It ended before, or does not answer in time.
    """
    what = f'it does not answer within {_ANSWER_SECONDS:g} s'
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(_ANSWER_SECONDS):
        while self._worker.is_alive():
          if await self._answers():
            self._was_reached = True
            return
          await asyncio.sleep(_RETRY_SECONDS)
        what = 'it ended before it answered'
    raise process.ExecutorError(
      f'the worker must serve, {what}; give --log FILE and read there why.'
    )

  async def _answers(self) -> bool:
    try:
      reader, writer = await self._connect()
    except OSError:
      return False
    try:
      writer.write(_HELLO)
      return bool(await reader.read(1))
    except OSError:
      return False
    finally:
      writer.close()

  async def keep(self) -> None:
    """Starts the worker again whenever it must be; returns never.

    That is when it ended, when what leads to it ended, and when the last
    coordinator is gone: TFF's worker would keep what it was sent, private data
    included, and go on computing.
    """
    for poll in itertools.count(1):
      await asyncio.sleep(_POLL_SECONDS)
      if not self._worker.is_alive():
        _log.error('the TFF worker ended; it is started again, see its log.')
        await asyncio.sleep(self._pause - _POLL_SECONDS)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
      elif poll % _POLLS_A_PROBE == 0 and await self._is_cut_off():
        _log.warning('the TFF worker is cut off; it is started again.')
      elif self._connections or not self._is_used:
        continue
      self._is_used = self._was_reached = False
      self._worker.restart()

  async def _is_cut_off(self) -> bool:
    """Returns whether what led to the worker is gone; not if it still starts."""
    try:
      _, writer = await self._connect()
    except OSError:
      return self._was_reached
    writer.close()
    self._was_reached = True
    return False

  async def stop(self) -> None:
    """Stops listening; connections end with the worker."""
    if self._server is not None:
      self._server.close()
      await self._server.wait_closed()

  async def _join(self, reader, writer) -> None:
    self._connections += 1
    try:
      inner_reader, inner_writer = await self._connect()
      await asyncio.gather(
        _forward(reader, inner_writer),
        # A worker that still starts has been sent nothing that it could keep.
        _forward(inner_reader, writer, self._mark_used),
      )
    except (OSError, asyncio.CancelledError):
      pass  # One side is gone, or we stop.
    finally:
      self._connections -= 1
      writer.close()

  def _mark_used(self) -> None:
    self._is_used = True
    self._pause = _POLL_SECONDS

  async def _connect(self):
    target = self._worker.target
    kind, _, name = target.partition(':')
    if kind == 'unix-abstract':
      return await asyncio.open_unix_connection('\0' + name, limit=_CHUNK_BYTES)
    return await asyncio.open_connection(kind, int(name), limit=_CHUNK_BYTES)


async def _forward(reader, writer, on_data=lambda: None) -> None:
  """Moves bytes until one side ends, then ends the other."""
  try:
    while data := await reader.read(_CHUNK_BYTES):
      on_data()
      writer.write(data)
      await writer.drain()
  except OSError:
    pass
  finally:
    writer.close()
