"""Who is drawn, what a virtual client holds, and reading ahead."""

import threading
from concurrent import futures

import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.privacy.planning import settings
from tff_dpemb.training import virtual_clients

_USERS = 40  # Of the store.


def _page(*, rounds=3, **privacy):
  return config.from_mapping(
    {
      'name': 'test',
      'privacy': {'users_per_round': 12, 'virtual_clients': 3, **privacy},
      'training': {'rounds': rounds, 'max_examples_per_user': 4},
    }
  )


def _plan(page):
  return settings.plan_from_config(
    page.privacy,
    population=_USERS,
    rounds=page.training.rounds,
    shares_virtual_client=page.privacy.share_virtual_clients,
  )


def test_removing_one_user_changes_exactly_one_virtual_client(store):
  """The bound of 2C rests on this: checked for every user of a cohort."""
  page = _page(users_per_round=30, virtual_clients=4)
  training = page.training.model_copy(
    update={'max_users_per_virtual_client': 5}
  )
  plan = _plan(page)

  class _Draws:
    """A generator whose cohort is given; the hash key is fixed."""

    def __init__(self, users):
      self._users = users

    def binomial(self, n, p):
      return len(self._users)

    def choice(self, *args, **kwargs):
      return np.asarray(self._users)

    def bytes(self, count):
      return bytes(range(count))

  cohort = list(range(3, 33))
  before = virtual_clients.draw_slots(plan, training, _Draws(cohort))
  assert max(map(len, before)) == 5  # Overflow really happens.
  for user in cohort:
    others = [other for other in cohort if other != user]
    after = virtual_clients.draw_slots(plan, training, _Draws(others))
    changed = sum(
      not np.array_equal(x, y) for x, y in zip(before, after, strict=True)
    )
    assert changed <= 1


def test_client_data_caps_each_user_and_numbers_identities_locally(store):
  page = _page()
  rng = np.random.default_rng(0)
  data = virtual_clients.client_data(
    store, np.array([7, 30, 2]), page.training, rng
  )
  assert data.images.shape == (12, 8, 8, 1)
  assert sorted(set(data.labels.tolist())) == [0, 1, 2]
  none = virtual_clients.client_data(
    store, np.array([], int), page.training, rng
  )
  assert none.images.shape == (0, 8, 8, 1)


def test_without_virtual_clients_each_user_is_a_client(store):
  page = _page(share_virtual_clients=False, virtual_clients=12)
  slots = virtual_clients.draw_slots(
    _plan(page), page.training, np.random.default_rng(0)
  )
  assert all(len(slot) == 1 for slot in slots)
  assert _plan(page).sensitivity == 1


def test_fixed_size_draws_exactly_so_many(store):
  page = _page(sampler='fixed-size')
  rng = np.random.default_rng(0)
  for _ in range(5):
    slots = virtual_clients.draw_slots(_plan(page), page.training, rng)
    assert len(slots) == 3
    assert len(np.unique(np.concatenate(slots))) == 12


def test_the_next_cohort_is_read_while_a_round_runs():
  began = [threading.Event() for _ in range(3)]

  def read(number, stop):
    del stop
    began[number].set()
    if number == 2:
      raise OSError('the disk is gone')
    return number

  with virtual_clients.ReadAhead(read, 0, 3) as read_ahead:
    assert read_ahead.take() == 0
    assert began[1].wait(timeout=10)  # Nobody has asked for it yet.
    assert read_ahead.take() == 1
    with pytest.raises(OSError, match='the disk is gone'):
      read_ahead.take()


def test_minimum_separation_draws_by_the_schedule(store):
  """7 rounds, 3 apart, at most 2 times: all 40 twice, nobody in round 6."""
  page = _page(
    rounds=6,
    sampler='min-separation',
    min_separation=3,
    max_participations=2,
  )
  plan, rng = _plan(page), np.random.default_rng(0)
  rounds = [
    np.concatenate(
      virtual_clients.draw_slots(
        plan, page.training, rng, round_number=number, schedule_key=bytes(16)
      )
    )
    for number in range(7)
  ]
  for number in range(3):
    assert set(rounds[number]) == set(rounds[number + 3])
  assert sorted(np.concatenate(rounds[:3])) == list(range(_USERS))
  assert not len(rounds[6])
  with pytest.raises(ValueError, match='the key of a schedule must be'):
    virtual_clients.draw_slots(plan, page.training, rng)


def _read(store, stop):
  page = _page()
  return virtual_clients.read_cohort(
    store,
    _plan(page),
    page.training,
    np.random.default_rng(0),
    round_number=0,
    schedule_key=b'',
    stop=stop,
    apply=map,
  )


def test_a_cohort_is_its_slots_and_what_they_hold(store):
  cohort = _read(store, threading.Event())
  assert len(cohort.slots) == len(cohort.data) == 3
  for slot, data in zip(cohort.slots, cohort.data, strict=True):
    assert len(data.images) == len(data.labels) == 4 * len(slot)
  assert cohort.seconds > 0


def test_a_cohort_that_nobody_waits_for_is_not_read(store):
  stop = threading.Event()
  stop.set()
  with pytest.raises(futures.CancelledError):
    _read(store, stop)


def test_the_last_round_reads_no_cohort_more():
  with virtual_clients.ReadAhead(lambda number, _: number, 4, 5) as read_ahead:
    assert read_ahead.take() == 4
    with pytest.raises(IndexError, match='no round left'):
      read_ahead.take()
