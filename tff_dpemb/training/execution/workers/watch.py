"""Notices a worker that falls silent while its share is awaited."""

import threading

from tff_dpemb.training.execution.workers import remote

_SECONDS = 10.0


class Watch:
  """Gives a silent worker up: a machine that is gone closes no connection.

  Owned workers need none: the kernel tells when a process ends.
  """

  def __init__(
    self,
    worker: remote.RemoteWorker,
    *,
    seconds: float = _SECONDS,
    misses: int = 3,
  ):
    self._worker, self._seconds, self._misses = worker, seconds, misses
    self._stop = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def _run(self) -> None:
    missed = 0
    while missed < self._misses and not self._stop.wait(self._seconds):
      answers = self._worker.probe(deadline_seconds=self._seconds)
      missed = 0 if answers else missed + 1
    if not self._stop.is_set():
      self._worker.abandon()

  def __enter__(self) -> 'Watch':
    self._thread.start()
    return self

  def __exit__(self, *unused) -> None:
    self._stop.set()
    self._thread.join()
