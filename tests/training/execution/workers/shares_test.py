import itertools

import numpy as np
import pytest

from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import remote
from tff_dpemb.training.execution.workers import shares


@pytest.mark.parametrize(
  ('sizes', 'parts', 'expected'),
  [
    ([1, 1, 1, 1], 2, [(0, 2), (1, 3)]),
    ([5, 1, 1, 1, 1, 1], 2, [(0, 4), (1, 2, 3, 5)]),
    ([3], 4, [(0,)]),
    ([0, 0, 0], 2, [(0, 2), (1,)]),
    ([1, 2], 0, [(0, 1)]),
    ([], 3, []),
  ],
)
def test_shares_are_nearly_equal(sizes, parts, expected):
  assert shares.split(range(len(sizes)), sizes, parts) == expected


def test_every_client_is_in_one_share():
  rng = np.random.default_rng(0)
  for _ in range(200):
    count, parts = int(rng.integers(0, 40)), int(rng.integers(1, 9))
    sizes = rng.integers(0, 64, count).tolist()
    found = shares.split(range(count), sizes, parts)
    assert sorted(itertools.chain(*found)) == list(range(count))
    assert len(found) == min(parts, count)
    loads = [sum(sizes[i] + 1 for i in share) for share in found]
    best = max(sum(loads) / parts, max(sizes, default=0) + 1, 0)
    assert max(loads, default=0) <= best * (2 - 1 / parts) + 1e-9


def _times(value):
  return remote.ShareTimes(value, value, value)


class TestBook:
  def test_what_is_done_is_in_the_order_of_the_clients(self):
    book = shares.Book([1, 1, 1, 1], parts=2)
    first, second = book.waiting
    assert (first.clients, second.clients) == ((0, 2), (1, 3))
    book.finish(second, 'a', ['odd'], _times(1.0), 3.0)
    book.finish(first, 'a', ['even'], _times(2.0), 4.0)
    total = book.total()
    assert total.partials == [['even'], ['odd']]
    assert total.placement == [round_form.Placement('a', 4, 4, 7.0)]
    assert (total.losses, total.times) == (0, _times(2.0))

  def test_a_lost_share_is_shared_anew_and_counts_once(self):
    book = shares.Book([5, 1, 1], parts=1)
    lost = book.waiting.pop()
    assert (lost.clients, lost.attempt) == ((0, 1, 2), 1)
    book.lose(lost, others=2)
    assert [(s.clients, s.attempt) for s in book.waiting] == [
      ((0,), 2),
      ((1, 2), 2),
    ]
    for name, share in zip('ba', book.waiting, strict=True):
      book.finish(share, name, [name], _times(1.0), 1.0)
    total = book.total()
    assert total.losses == 1
    assert total.placement == [
      round_form.Placement('a', 2, 2, 1.0),
      round_form.Placement('b', 1, 5, 1.0),
    ]

  def test_without_others_it_waits_whole(self):
    book = shares.Book([1, 1], parts=2)
    lost = book.waiting.pop(0)
    book.lose(lost, others=0)
    assert book.waiting[-1] == shares.Share(lost.clients, attempt=2)


def test_of_nobody():
  total = shares.SharedSum.of_nobody()
  assert (total.partials, total.placement, total.losses) == ([], [], 0)
