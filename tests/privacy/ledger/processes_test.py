"""Processes that die or race: nothing is under-counted or spent twice.

The children are forked before any ledger is open, which saves them the import
of the accounting library.
"""

import itertools
import multiprocessing
import os
import random
import signal
import time

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_FORK = multiprocessing.get_context('fork')
_GAUSSIAN = dp_event.GaussianDpEvent(10.0)
_ROUND = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))


def _charge(book, number, **changes):
  values = {
    'population': 'p',
    'release': 'm',
    'run': 'r',
    'event': _ROUND,
    'round_number': number,
  }
  return book.charge(**(values | changes))


def _charge_forever(path, handle):
  book = ledger_lib.Ledger.open(path)
  for number in itertools.count():
    _charge(book, number)
    os.write(handle, b'.')  # The noise of this round may be drawn from here on.


def test_kill_9_never_loses_an_acknowledged_draw(database):
  path = database.url
  rng = random.Random(3)
  acknowledged = 0
  for kills in range(1, 9):
    reader, writer = os.pipe()
    process = _FORK.Process(target=_charge_forever, args=(path, writer))
    process.start()
    os.close(writer)
    acknowledged += len(os.read(reader, 1))  # The loop is running.
    time.sleep(rng.uniform(0, 0.15))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while data := os.read(reader, 1 << 16):
      acknowledged += len(data)
    os.close(reader)
    with ledger_lib.Ledger.open(path) as book:
      entries = book.entries()
      assert book.verify() == []
    # At most the draw under way when it was killed is counted without need.
    assert acknowledged <= len(entries) <= acknowledged + kills
  assert acknowledged >= 8
  # Round 0 was drawn by each process, and each draw is counted.
  assert max(entry.attempt for entry in entries) == 8


def _race(path, name, start, results, finish):
  with ledger_lib.Ledger.open(path) as book:
    start.wait()
    won = lost = 0
    try:
      book.acquire_lease('run', 'slot')
      leased = 1
    except errors.LeaseError:
      leased = 0
    for number in range(4):
      try:
        _charge(book, number, run=name, event=_GAUSSIAN)
        won += 1
      except errors.BudgetExceededError:
        lost += 1
    results.put((leased, won, lost))
    finish.wait()  # Stays alive, so that the lease stays held.


def test_eight_processes_race_for_the_last_of_a_budget_and_one_slot(database):
  path = database.url
  with ledger_lib.Ledger.open(path) as book:
    book.set_budget('p', guarantee.Budget(1.0, 1e-5))
    fitting = book.headroom('p', _GAUSSIAN)
    assert fitting > 5
    for number in range(fitting - 5):
      _charge(book, number, event=_GAUSSIAN)
  start, finish, results = _FORK.Event(), _FORK.Event(), _FORK.Queue()
  processes = [
    _FORK.Process(
      target=_race, args=(path, f'run{index}', start, results, finish)
    )
    for index in range(8)
  ]
  for process in processes:
    process.start()
  start.set()
  found = [results.get(timeout=50) for _ in processes]
  finish.set()
  for process in processes:
    process.join()
    assert process.exitcode == 0
  assert sum(leased for leased, _, _ in found) == 1
  assert sum(won for _, won, _ in found) == 5
  assert sum(lost for _, _, lost in found) == 8 * 4 - 5
  with ledger_lib.Ledger.open(path) as book:
    assert len(book.entries(kind='draw')) == fitting
    assert book.spent('p').epsilon <= 1.0
    assert book.verify() == []


def _open_and_charge(path, start):
  start.wait()
  with ledger_lib.Ledger.open(path) as book:
    _charge(book, 0)


def test_eight_processes_make_one_ledger(database):
  path = database.url
  start = _FORK.Event()
  processes = [
    _FORK.Process(target=_open_and_charge, args=(path, start)) for _ in range(8)
  ]
  for process in processes:
    process.start()
  start.set()
  for process in processes:
    process.join()
    assert process.exitcode == 0
  with ledger_lib.Ledger.open(path) as book:
    attempts = sorted(entry.attempt for entry in book.entries())
    assert attempts == list(range(1, 9))
    assert book.verify() == []
