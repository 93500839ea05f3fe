"""How the clients of a round are shared, and what came back of each share.

Clients are named by their position in the round. A share is done or it is not:
what a lost worker did of one gives nothing, and its clients are shared anew.
"""

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np

from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import remote


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

  @classmethod
  def of_nobody(cls) -> 'SharedSum':
    """Returns that of a round without clients."""
    return cls([], [], 0, remote.ShareTimes(0.0, 0.0, 0.0))


@dataclasses.dataclass(frozen=True)
class Share:
  """Clients that one worker is to train on, for the `attempt`-th time."""

  clients: tuple[int, ...]
  attempt: int = 1


class Book:
  """What of a round is still to do, and what is done."""

  def __init__(self, sizes: Sequence[int], *, parts: int):
    """Shares all clients of a round.

    Args:
      sizes: Examples of each client.
      parts: How many workers are there.
    """
    self._sizes = sizes
    self.waiting = [
      Share(clients) for clients in split(range(len(sizes)), sizes, parts)
    ]
    self._done: list[tuple[Share, Sequence[np.ndarray]]] = []
    self._placement: dict[str, round_form.Placement] = {}
    self._losses = 0
    self._times = remote.ShareTimes(0.0, 0.0, 0.0)

  def lose(self, share: Share, *, others: int) -> None:
    """Shares the clients of a lost worker anew, among `others`."""
    self._losses += 1
    self.waiting += [
      Share(clients, share.attempt + 1)
      for clients in split(share.clients, self._sizes, others)
    ]

  def finish(
    self,
    share: Share,
    worker: str,
    partial: Sequence[np.ndarray],
    times: remote.ShareTimes,
    seconds: float,
  ) -> None:
    """Keeps the partial sum of a share, and what it took."""
    self._done.append((share, partial))
    self._times = times
    before = self._placement.get(
      worker, round_form.Placement(worker, 0, 0, 0.0)
    )
    self._placement[worker] = round_form.Placement(
      worker,
      before.clients + len(share.clients),
      before.examples + sum(self._sizes[i] for i in share.clients),
      before.seconds + seconds,
    )

  def total(self) -> SharedSum:
    """Returns what is done, in an order that the workers have no part in."""
    done = sorted(self._done, key=lambda item: item[0].clients)
    return SharedSum(
      [partial for _, partial in done],
      [self._placement[name] for name in sorted(self._placement)],
      self._losses,
      self._times,
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
