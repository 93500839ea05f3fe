"""One holder at a time for a (run, slot)."""

import datetime
import multiprocessing
import os
import signal

import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib


class _Clock:
  """A clock that the test moves."""

  def __init__(self):
    self.now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)

  def __call__(self):
    return self.now

  def move(self, seconds):
    self.now += datetime.timedelta(seconds=seconds)


@pytest.fixture(name='clock')
def _clock():
  return _Clock()


@pytest.fixture(name='book')
def _book(database, clock):
  with ledger_lib.Ledger.open(database.url, clock=clock) as book:
    yield book


def _charge(book, lease):
  return book.charge(
    population='p',
    release='m',
    run='r',
    event=dp_event.GaussianDpEvent(10.0),
    lease=lease,
  )


def test_a_held_lease_is_refused_and_names_its_holder(book):
  book.acquire_lease('r', 'monday', ttl_seconds=60)
  with pytest.raises(errors.LeaseError, match='is held by .* another 60 s'):
    book.acquire_lease('r', 'monday')
  book.acquire_lease('r', 'tuesday')
  book.acquire_lease('other', 'monday')


def test_an_expired_lease_is_taken_over_and_fences_the_old_one(book, clock):
  old = book.acquire_lease('r', ttl_seconds=60)
  clock.move(61)
  new = book.acquire_lease('r', ttl_seconds=60)
  assert new.generation == old.generation + 1
  with pytest.raises(errors.LeaseError, match='another process took over'):
    _charge(book, old)
  assert book.entries(kind='draw') == []
  _charge(book, new)
  with pytest.raises(errors.LeaseError):
    book.renew_lease(old)
  with pytest.raises(errors.LeaseError):
    book.release_lease(old)


def test_a_charge_renews_the_lease(book, clock):
  lease = book.acquire_lease('r', ttl_seconds=60)
  for _ in range(3):
    clock.move(40)
    _charge(book, lease)
  with pytest.raises(errors.LeaseError, match='is held by'):
    book.acquire_lease('r')
  clock.move(40)
  book.renew_lease(lease)
  clock.move(40)
  with pytest.raises(errors.LeaseError, match='is held by'):
    book.acquire_lease('r')


def test_a_released_lease_is_free_again(book):
  lease = book.acquire_lease('r')
  book.release_lease(lease)
  with pytest.raises(errors.LeaseError, match='must be held'):
    _charge(book, lease)
  book.acquire_lease('r')


def test_a_complete_slot_never_runs_again(book, clock):
  book.release_lease(book.acquire_lease('r', 'monday'), complete=True)
  clock.move(10**6)
  with pytest.raises(errors.LeaseError, match='ran already'):
    book.acquire_lease('r', 'monday')


def _acquire_and_die(path):
  book = ledger_lib.Ledger.open(path)
  book.acquire_lease('r', ttl_seconds=1e9)
  os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_gives_way_at_once(database):
  path = database.url
  process = multiprocessing.get_context('fork').Process(
    target=_acquire_and_die, args=(path,)
  )
  process.start()
  process.join()
  assert process.exitcode == -signal.SIGKILL
  with ledger_lib.Ledger.open(path) as book:
    assert book.acquire_lease('r').generation == 2


def test_illegal_time_to_live_is_refused(book):
  with pytest.raises(errors.LeaseError, match='ttl_seconds must be > 0'):
    book.acquire_lease('r', ttl_seconds=0)


def test_each_change_of_hands_is_an_entry(book, clock):
  first = book.acquire_lease('r', 'monday', ttl_seconds=60)
  _charge(book, first)  # Renews it, which is none.
  clock.move(61)
  second = book.acquire_lease('r', 'monday')
  book.release_lease(second, complete=True)
  entries = book.entries(kind='lease')
  assert [entry.details['status'] for entry in entries] == [
    'held',
    'held',
    'complete',
  ]
  assert [entry.details['holder'] for entry in entries] == [
    first.holder,
    second.holder,
    second.holder,
  ]
  assert book.populations() == ['p']  # A lease is no population's.
  assert book.verify() == []
