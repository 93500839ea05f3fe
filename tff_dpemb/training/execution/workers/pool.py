"""A round shared by workers, some of which may be lost on the way.

Each client of a round is trained on exactly once in what counts: a share whose
worker is lost gives nothing, and is split among those that are left. Partial
sums are merged here in the order of the clients, so the result depends on the
workers to float tolerance only. Noise is not drawn here.
"""

import concurrent.futures
import contextlib
import os
import time
from collections.abc import Sequence

import numpy as np

from tff_dpemb.processes import children
from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import member
from tff_dpemb.training.execution.workers import messages
from tff_dpemb.training.execution.workers import process as worker_process
from tff_dpemb.training.execution.workers import remote
from tff_dpemb.training.execution.workers import shares

_START_SECONDS = 60.0
_REJOIN_SECONDS = 2.0
_MOST_ATTEMPTS = 4  # of one client's share, before it is taken as the cause


class NoWorkersError(worker_process.ExecutorError):
  """No worker is left; the run can be resumed when there is one."""

  exit_code = 75


class WorkerPool:
  """Workers that share rounds; `close` it. Calls come from one thread."""

  def __init__(self, workers: Sequence[member.Member], *, slots: int):
    """Takes workers over, at least one.

    Args:
      workers: They are closed with the pool.
      slots: Clients at a time on each.
    """
    self._workers = list(workers)
    self._slots = slots
    self._threads = concurrent.futures.ThreadPoolExecutor(
      len(self._workers), thread_name_prefix='worker'
    )

  def connect(self, *, deadline_seconds: float = _START_SECONDS) -> list[str]:
    """Returns why some workers are missing, one line each.

    Raises:
      NoWorkersError: All are missing.
      WorkerRefused: One computes something else.
    """
    missing = self._join(self._workers, deadline_seconds, may_refuse=True)
    if len(missing) == len(self._workers):
      raise NoWorkersError(' '.join(missing))
    return missing

  def any_worker(
    self, *, for_whole: bool = False
  ) -> tuple[member.Member, remote.RemoteWorker]:
    """Returns a connected worker.

    Args:
      for_whole: For more than parts of rounds: one without devices, if there
        is one.

    Raises:
      NoWorkersError: There is none.
    """
    for patience in (_REJOIN_SECONDS, _START_SECONDS):
      self._join([w for w in self._workers if not w.is_connected], patience)
      found = [
        (worker, worker.connect(deadline_seconds=patience))
        for worker in self._workers
        if worker.is_connected
      ]
      if for_whole:
        found.sort(key=lambda item: item[1].has_devices)
      if found:
        return found[0]
    raise self._no_workers()

  def owned_workers(self) -> list[worker_process.OwnedWorker]:
    """Returns the processes of the pool's own workers."""
    return [w.process for w in self._workers if w.process is not None]

  def connections(self) -> list[remote.RemoteWorker]:
    """Returns the connections to workers that are there now."""
    return [
      worker.connect(deadline_seconds=0.0)
      for worker in self._workers
      if worker.is_connected
    ]

  def lose(self, worker: member.Member) -> None:
    """Takes a worker out; one that we own is started again."""
    with contextlib.suppress(children.ProcessError):
      worker.lose()

  def sum_of(
    self,
    form: round_form.RoundForm,
    broadcast: Sequence[np.ndarray],
    clients: Sequence[Sequence[np.ndarray]],
  ) -> shares.SharedSum:
    """Returns the partial sums of a round's clients.

    Workers that were missing are asked once more, then every share is given to
    a worker; that of a lost one goes to the others, and to itself if it can be
    started again.

    Raises:
      NoWorkersError: None is left, or one share loses every worker it is given.
      ExecutorError: The computation failed.
    """
    if not clients:
      return shares.SharedSum.of_nobody()
    self.any_worker()
    encoded = messages.encode(broadcast)
    free = [worker for worker in self._workers if worker.is_connected]
    book = shares.Book(
      [round_form.examples_of(data) for data in clients], parts=len(free)
    )
    running: dict[
      concurrent.futures.Future, tuple[member.Member, shares.Share]
    ] = {}
    try:
      while book.waiting or running:
        while book.waiting and free:
          worker, share = free.pop(0), book.waiting.pop(0)
          mine = [clients[i] for i in share.clients]
          future = self._threads.submit(self._run, worker, form, encoded, mine)
          running[future] = (worker, share)
        if not running:
          raise self._no_workers()
        ended, _ = concurrent.futures.wait(
          running, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in ended:
          worker, share = running.pop(future)
          try:
            partial, times, seconds = future.result()
          except remote.WorkerLost as error:
            self.lose(worker)
            if worker.process is not None and worker.process.is_alive():
              free.append(worker)
            if share.attempt == _MOST_ATTEMPTS:
              raise NoWorkersError(
                f'the same {len(share.clients)} clients lost'
                f' {share.attempt} workers, the last one with: {error} Give the'
                ' workers more memory or the clients fewer examples, then give'
                ' the same command again.'
              ) from error
            book.lose(share, others=len(free) + len(running))
          else:
            free.append(worker)
            book.finish(share, worker.name, partial, times, seconds)
    finally:
      for future, (worker, _) in running.items():
        if not future.cancel():
          self.lose(worker)  # Ends its call, so that the thread comes back.
      concurrent.futures.wait(running)
    return book.total()

  def close(self) -> None:
    """Ends every connection and owned process; safe to call twice."""
    for worker in self._workers:
      worker.close()
    self._threads.shutdown()

  def _run(self, worker, form, encoded, clients):
    start = time.monotonic()
    connection = worker.connect(deadline_seconds=_START_SECONDS)
    with worker.watch(connection):
      partial, times = connection.run_share(
        form, encoded, clients, slots=self._slots
      )
    return partial, times, time.monotonic() - start

  def _join(
    self, workers, deadline_seconds: float, *, may_refuse: bool = False
  ) -> list[str]:
    """Connects workers, all at once; returns why some cannot be.

    One that computes something else is refused at the start of a run, with
    `may_refuse`; later it is missing, and the others go on.
    """
    futures = [
      self._threads.submit(worker.connect, deadline_seconds=deadline_seconds)
      for worker in workers
    ]
    missing: list[str] = []
    refused: Exception | None = None
    for worker, future in zip(workers, futures, strict=True):
      try:
        future.result()
      except remote.WorkerRefused as error:
        if may_refuse:
          refused = error
        missing.append(str(error))
      except remote.WorkerLost as error:
        missing.append(str(error))
        if worker.process is not None:
          self.lose(worker)
    if refused is not None:
      raise refused
    return missing

  def _no_workers(self) -> NoWorkersError:
    names = ', '.join(worker.name for worker in self._workers)
    return NoWorkersError(
      f'at least one worker must answer, none of {names} does; start one again,'
      ' then give the same command again to resume from the last round.'
    )


def slots_here(workers: int = 1) -> int:
  """Returns how many clients at a time suit a worker that shares our cores."""
  return max(1, len(os.sched_getaffinity(0)) // workers)
