"""A round shared by workers, some of which may be lost on the way.

Each client of a round is trained on exactly once in what counts: a share whose
worker is lost gives nothing, and is split among those that are left. Partial
sums are merged here in the order of the clients, so the result depends on the
workers to float tolerance only. Noise is not drawn here.
"""

import concurrent.futures
import contextlib
import dataclasses
import heapq
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_dpemb.processes import children
from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import process as worker_process
from tff_dpemb.training.execution.workers import remote

_START_SECONDS = 60.0
_REJOIN_SECONDS = 2.0
_CHECK_SECONDS = 10.0
_MOST_ATTEMPTS = 4  # of one client's share, before it is taken as the cause


class NoWorkersError(worker_process.ExecutorError):
  """No worker is left; the run can be resumed when there is one."""

  exit_code = 75


@dataclasses.dataclass(frozen=True)
class SharedSum:
  """The partial sums of a round, and how they came about.

  Attributes:
    partials: One for each share, in the order of their first clients.
    placement: What each worker did, of what counts.
    losses: How often a worker was lost.
    times: Seconds of the share that ended last.
  """

  partials: Sequence[Sequence[np.ndarray]]
  placement: Sequence[round_form.Placement]
  losses: int
  times: remote.ShareTimes


@dataclasses.dataclass
class _Share:
  """Clients by their position in the round."""

  clients: tuple[int, ...]
  attempt: int = 1


class PoolWorker:
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
    return remote.Watch(connection)

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


class WorkerPool:
  """Workers that share rounds; `close` it. Calls come from one thread."""

  def __init__(self, workers: Sequence[PoolWorker], *, slots: int):
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
  ) -> tuple[PoolWorker, remote.RemoteWorker]:
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

  def lose(self, worker: PoolWorker) -> None:
    """Takes a worker out; one that we own is started again."""
    with contextlib.suppress(children.ProcessError):
      worker.lose()

  def sum_of(
    self,
    form: round_form.RoundForm,
    broadcast: Sequence[np.ndarray],
    clients: Sequence[Sequence[np.ndarray]],
  ) -> SharedSum:
    """Returns the partial sums of a round's clients.

    Workers that were missing are asked once more, then every share is given to
    a worker; that of a lost one goes to the others, and to itself if it can be
    started again.

    Raises:
      NoWorkersError: None is left, or one share loses every worker it is given.
      ExecutorError: The computation failed.
    """
    if not clients:
      return SharedSum([], [], 0, remote.ShareTimes(0.0, 0.0, 0.0))
    self.any_worker()
    encoded = remote.encode(broadcast)
    sizes = [round_form.examples_of(data) for data in clients]
    free = [worker for worker in self._workers if worker.is_connected]
    waiting = [
      _Share(share) for share in split(range(len(clients)), sizes, len(free))
    ]
    running: dict[concurrent.futures.Future, tuple[PoolWorker, _Share]] = {}
    done: list[tuple[_Share, list[np.ndarray]]] = []
    placement: dict[str, round_form.Placement] = {}
    losses, last_times = 0, remote.ShareTimes(0.0, 0.0, 0.0)
    try:
      while waiting or running:
        while waiting and free:
          worker, share = free.pop(0), waiting.pop(0)
          future = self._threads.submit(
            self._run,
            worker,
            form,
            encoded,
            [clients[i] for i in share.clients],
          )
          running[future] = (worker, share)
        if not running:
          raise self._no_workers()
        ended, _ = concurrent.futures.wait(
          running, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in ended:
          worker, share = running.pop(future)
          try:
            partial, last_times, seconds = future.result()
          except remote.WorkerLost as error:
            losses += 1
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
            others = len(free) + len(running)
            waiting += [
              _Share(part, share.attempt + 1)
              for part in split(share.clients, sizes, others)
            ]
          else:
            free.append(worker)
            done.append((share, partial))
            _add(placement, worker.name, share, sizes, seconds)
    finally:
      for future, (worker, _) in running.items():
        if not future.cancel():
          self.lose(worker)  # Ends its call, so that the thread comes back.
      concurrent.futures.wait(running)
    done.sort(key=lambda item: item[0].clients)
    return SharedSum(
      [partial for _, partial in done],
      [placement[name] for name in sorted(placement)],
      losses,
      last_times,
    )

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


def split(
  clients: Sequence[int], sizes: Sequence[int], parts: int
) -> list[tuple[int, ...]]:
  """Returns clients in at most `parts` shares of nearly equal examples.

  The largest client goes to the smallest share, and so on (Graham 1969: the
  largest share is at most 4/3 of the best possible). No share is empty.

  Args:
    clients: Positions in the round.
    sizes: Examples by position.
    parts: How many shares; less than 1 counts as 1.
  """
  heap = [(0, part) for part in range(max(parts, 1))]
  shares: list[list[int]] = [[] for _ in heap]
  # A client without examples costs something too.
  for client in sorted(clients, key=lambda i: (-sizes[i], i)):
    size, part = heapq.heappop(heap)
    shares[part].append(client)
    heapq.heappush(heap, (size + sizes[client] + 1, part))
  return [tuple(sorted(share)) for share in shares if share]


def slots_here(workers: int = 1) -> int:
  """Returns how many clients at a time suit a worker that shares our cores."""
  return max(1, len(os.sched_getaffinity(0)) // workers)


def _add(placement, name, share, sizes, seconds) -> None:
  before = placement.get(name, round_form.Placement(name, 0, 0, 0.0))
  placement[name] = round_form.Placement(
    name,
    before.clients + len(share.clients),
    before.examples + sum(sizes[i] for i in share.clients),
    before.seconds + seconds,
  )


def start_workers(
  count: int, start: Callable[[], worker_process.OwnedWorker]
) -> list[PoolWorker]:
  """Returns `count` workers of our own; none is left if one cannot start."""
  workers: list[PoolWorker] = []
  try:
    for index in range(count):
      name = f'local-{index}' if count > 1 else 'local'
      workers.append(PoolWorker(name=name, process=start()))
  except BaseException:
    for worker in workers:
      worker.close()
    raise
  return workers
