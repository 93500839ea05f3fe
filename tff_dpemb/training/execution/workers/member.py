"""A worker of a pool: one that may be lost, and comes back."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from tff_dpemb.training.execution.workers import process as worker_process
from tff_dpemb.training.execution.workers import remote
from tff_dpemb.training.execution.workers import watch

_CHECK_SECONDS = 10.0


class Member:
  """A worker that comes back: its process, if we own it, and a connection."""

  def __init__(
    self,
    *,
    name: str,
    target: str = '',
    process: worker_process.OwnedWorker | None = None,
    credentials: Any = None,
  ):
    self.name = name
    self.process = process
    self._target = target
    self._credentials = credentials
    self._connection: remote.RemoteWorker | None = None
    self._losses = 0

  @property
  def is_connected(self) -> bool:
    return self._connection is not None

  def connect(self, *, deadline_seconds: float) -> remote.RemoteWorker:
    """Returns the connection, which is made and checked if there is none.

    Raises:
      WorkerLost, WorkerRefused: As of `RemoteWorker`.
    """
    if self._connection is not None:
      return self._connection
    process, losses = self.process, self._losses
    connection = remote.RemoteWorker(
      process.target if process else self._target,
      name=self.name,
      credentials=self._credentials,
    )
    try:
      connection.connect(
        deadline_seconds=deadline_seconds,
        may_come=lambda: (
          losses == self._losses and (process is None or process.is_alive())
        ),
      )
      if process is None:
        # One that is busy with what it was asked before may never answer.
        timer = threading.Timer(
          max(deadline_seconds, _CHECK_SECONDS), connection.abandon
        )
        timer.start()
        try:
          connection.check()
        finally:
          timer.cancel()
    except BaseException:
      connection.abandon()
      raise
    self._connection = connection
    return connection

  def watch(
    self, connection: remote.RemoteWorker
  ) -> contextlib.AbstractContextManager:
    """Returns what gives a remote worker up if it falls silent."""
    if self.process is not None:
      return contextlib.nullcontext()
    return watch.Watch(connection)

  def lose(self) -> None:
    """Forgets the connection; an owned process is started again.

    A `connect` under way in another thread ends soon.
    """
    self._losses += 1
    connection, self._connection = self._connection, None
    if connection is not None:
      connection.abandon()
    if self.process is not None:
      self.process.restart()

  def close(self) -> None:
    """Ends the connection, then the process if it is owned."""
    self._losses += 1
    if self._connection is not None:
      if self.process is None or self.process.is_alive():
        self._connection.close()
      self._connection.abandon()
      self._connection = None
    if self.process is not None:
      self.process.close()


def start(
  count: int, start: Callable[[], worker_process.OwnedWorker]
) -> list[Member]:
  """Returns `count` workers of our own; none is left if one cannot start."""
  workers: list[Member] = []
  try:
    for index in range(count):
      name = f'local-{index}' if count > 1 else 'local'
      workers.append(Member(name=name, process=start()))
  except BaseException:
    for worker in workers:
      worker.close()
    raise
  return workers
