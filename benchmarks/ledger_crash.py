"""The ledger under kill -9, tampering and races, on SQLite and PostgreSQL."""

import collections
import contextlib
import multiprocessing
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections.abc import Iterator
from typing import Any

from benchmarks import runner
from tests import postgres_server
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

_ROOT = pathlib.Path(__file__).parent.parent
_PAGE = _ROOT / 'launch/configs/quickstart.toml'
_KILLS = 100
_REAL_KILLS = 5
_REAL_ROUNDS = 8
_RACERS = 8
_SEED = 6
# Children are forked before any ledger is open here: each gets a connection of
# its own, without the seconds of an import.
_FORK = multiprocessing.get_context('fork')
_PLAN = plan_lib.PrivacyPlan(
  sampler=samplers.PoissonSampler(10**6, 1000),
  mechanism=independent.FixedClipGaussian(1.0, 2.0),
  virtual_clients=100,
  rounds=10**6,
  delta=1e-7,
)
_OVERRIDES = (
  'name=small',
  'data.images_per_identity=4',
  'data.test_identities=60',
  'data.validation_identities=20',
  'pretraining.steps=10',
  'privacy.users_per_round=48',
  'privacy.virtual_clients=4',
  f'training.rounds={_REAL_ROUNDS}',
  'training.max_examples_per_user=2',
  'training.evaluate_every=0',
)


def measure() -> list[runner.Measure]:
  """Kills, tampers and races; counts what was lost, missed or overspent."""
  measures = []
  with tempfile.TemporaryDirectory() as folder, _databases(folder) as urls:
    for name, url in urls.items():
      measures += _kill_stand_in(name, url, pathlib.Path(folder) / name)
      measures += _race(name, url)
  measures += _kill_training()
  measures += _tamper()
  return measures


@contextlib.contextmanager
def _databases(folder: str) -> Iterator[dict[str, str]]:
  with postgres_server.serve() as server:
    yield {
      'SQLite': str(pathlib.Path(folder) / 'ledger.sqlite'),
      'PostgreSQL': server.url(),
    }


# ---- kill -9 in the round loop ----


def _rounds(url: str, folder: pathlib.Path, started: Any) -> None:
  """The round loop without the training: lease, charge, draw, checkpoint."""
  checkpoint = folder / 'checkpoint.json'
  first = 0
  if checkpoint.exists():
    first = storage.read_json(checkpoint)['next_round']
  with ledger_lib.Ledger.open(url) as book:
    lease = book.acquire_lease('run', 'train')
    draws = os.open(
      folder / 'draws', os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    started.set()
    for number in range(first, _PLAN.rounds):
      attempt = 1 + book.count_draws(
        run='run', release='model', round_number=number
      )
      entry = book.charge(
        population='users',
        release='model',
        run='run',
        event=_PLAN.charge_event(number, attempt),
        round_number=number,
        plan_digest=_PLAN.digest(),
        lease=lease,
      )
      # From here on the noise is out.
      os.write(draws, f'{number} {entry.attempt}\n'.encode())
      os.fsync(draws)
      storage.atomic_write_json(checkpoint, {'next_round': number + 1})


def _kill_stand_in(
  name: str, url: str, folder: pathlib.Path
) -> list[runner.Measure]:
  folder.mkdir()
  rng = random.Random(_SEED)
  kills = 0
  for _ in range(_KILLS):
    started = _FORK.Event()
    child = _FORK.Process(target=_rounds, args=(url, folder, started))
    child.start()
    if not started.wait(60):
      raise RuntimeError('the round loop must start.')
    time.sleep(rng.uniform(0, 0.2))
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    kills += child.exitcode == -signal.SIGKILL
  lines = (folder / 'draws').read_text().splitlines()
  pairs = [line.split() for line in lines]
  made = {(int(number), int(attempt)) for number, attempt in pairs}
  with ledger_lib.Ledger.open(url) as book:
    entries = book.entries(kind='draw')
    problems = book.verify()
  return [
    runner.equal_to(f'{name}: kills in the round loop', kills, target=_KILLS),
    *_compare(name, entries, made, kills),
    runner.equal_to(
      f'{name}: problems that verify finds then', len(problems), target=0
    ),
  ]


def _compare(
  name: str,
  entries: list[ledger_state.Entry],
  made: set[tuple[int, int]],
  kills: int,
) -> list[runner.Measure]:
  charged = {(entry.round_number, entry.attempt) for entry in entries}
  attempts = collections.Counter(entry.round_number for entry in entries)
  wrong = sum(
    {entry.attempt for entry in entries if entry.round_number == number}
    != set(range(1, count + 1))
    for number, count in attempts.items()
    if count > 1
  )
  return [
    runner.noted(f'{name}: draws made', len(made)),
    runner.equal_to(
      f'{name}: draws made but not in the ledger', len(made - charged), target=0
    ),
    runner.at_most(
      f'{name}: draws in the ledger that were not made',
      len(charged - made),
      target=kills,
    ),
    runner.equal_to(f'{name}: rounds with wrong attempts', wrong, target=0),
  ]


def _kill_training() -> list[runner.Measure]:
  """The real thing: `dpemb train` on a small page."""
  rng = random.Random(_SEED)
  kills = 0
  with tempfile.TemporaryDirectory() as folder:
    runs = pathlib.Path(folder)
    ledger = runs / 'ledger.sqlite'
    for _ in range(_REAL_KILLS):
      with _training(runs) as program:
        before = _draws(ledger)
        while program.poll() is None and len(_draws(ledger)) == len(before):
          time.sleep(0.1)
        time.sleep(rng.uniform(0, 1.5))
        program.send_signal(signal.SIGKILL)
        program.wait()
        kills += program.returncode == -signal.SIGKILL
    with _training(runs) as program:
      code = program.wait()
    entries = _draws(ledger)
    # Training notes the users of each draw before its noise is drawn.
    names = [
      re.fullmatch(r'round-(\d+)-attempt-(\d+)\.npz', path.name)
      for path in runs.rglob('round-*.npz')
    ]
    made = {(int(name[1]), int(name[2])) for name in names if name}
    with ledger_lib.Ledger.open(ledger) as book:
      problems = book.verify()
  name = 'dpemb train'
  return [
    runner.noted(f'{name}: kills', kills),
    runner.equal_to(f'{name}: exit code at last', code, target=0),
    runner.equal_to(
      f'{name}: rounds in the ledger',
      len({entry.round_number for entry in entries}),
      target=_REAL_ROUNDS,
    ),
    *_compare(name, entries, made, kills),
    runner.equal_to(
      f'{name}: problems that verify finds then', len(problems), target=0
    ),
  ]


def _training(runs: pathlib.Path) -> subprocess.Popen[bytes]:
  arguments = [sys.executable, '-m', 'launch.cli', 'train', str(_PAGE)]
  arguments += ['--runs', str(runs)]
  for override in _OVERRIDES:
    arguments += ['--set', override]
  return subprocess.Popen(
    arguments,
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )


def _draws(ledger: pathlib.Path) -> list[ledger_state.Entry]:
  if not ledger.exists():
    return []
  with ledger_lib.Ledger.open(ledger) as book:
    return book.entries(kind='draw')


# ---- races ----


def _spend(url: str, name: str, start: Any, results: Any, finish: Any) -> None:
  won = leased = 0
  with ledger_lib.Ledger.open(url) as book:
    start.wait()
    with contextlib.suppress(errors.LeaseError):
      book.acquire_lease('race', 'slot')
      leased = 1
    for number in range(4):
      with contextlib.suppress(errors.BudgetExceededError):
        book.charge(
          population='race',
          release='model',
          run=name,
          event=_PLAN.round_event(),
          round_number=number,
        )
        won += 1
    results.put((leased, won))
    finish.wait()  # Stays alive, so that the lease stays held.


def _race(name: str, url: str) -> list[runner.Measure]:
  event = _PLAN.round_event()
  with ledger_lib.Ledger.open(url) as book:
    for number in range(20):
      book.charge(
        population='race',
        release='model',
        run='before',
        event=event,
        round_number=number,
      )
    # Room for exactly three draws more, for thirty-two that are tried.
    room = accountant.guarantee_of_event(
      _PLAN.event(23), delta=1e-7, adjacency=_PLAN.adjacency
    ).epsilon
    budget = guarantee.Budget(room * (1 + 1e-9), 1e-7)
    book.set_budget('race', budget)
  start, finish, results = _FORK.Event(), _FORK.Event(), _FORK.Queue()
  racers = [
    _FORK.Process(target=_spend, args=(url, f'run{i}', start, results, finish))
    for i in range(_RACERS)
  ]
  for racer in racers:
    racer.start()
  start.set()
  found = [results.get(timeout=120) for _ in racers]
  finish.set()
  for racer in racers:
    racer.join()
  with ledger_lib.Ledger.open(url) as book:
    spent = book.spent('race').epsilon
    draws = len(book.entries(kind='draw', population='race'))
  return [
    runner.equal_to(
      f'{name}: of {_RACERS} processes for one slot, those that got it',
      sum(leased for leased, _ in found),
      target=1,
    ),
    runner.equal_to(
      f'{name}: of {4 * _RACERS} draws for the last 3 of a budget, those that'
      ' were let through',
      sum(won for _, won in found),
      target=3,
    ),
    runner.equal_to(f'{name}: draws then in the ledger', draws, target=23),
    runner.at_most(
      f'{name}: spent / budget then', spent / budget.epsilon, target=1
    ),
  ]


# ---- tampering ----


def _tamper() -> list[runner.Measure]:
  """Counts the kinds of tampering that the tests show to be found."""
  with tempfile.TemporaryDirectory() as folder:
    report = pathlib.Path(folder) / 'report.xml'
    subprocess.run(
      [
        *(sys.executable, '-m', 'pytest', '-q', f'--junitxml={report}'),
        'tests/privacy/ledger/verification_test.py',
      ],
      cwd=_ROOT,
      stdout=subprocess.DEVNULL,
      check=False,
    )
    cases = list(xml.etree.ElementTree.parse(report).iter('testcase'))
  if not cases:
    raise runner.BenchmarkError('the tests of tampering must be there.')
  return [
    measure_
    for name, key in (('SQLite', 'sqlite'), ('PostgreSQL', 'postgresql'))
    for measure_ in _kinds(name, key, cases)
  ]


def _kinds(
  name: str, key: str, cases: list[xml.etree.ElementTree.Element]
) -> list[runner.Measure]:
  tried, found = set(), set()
  for case in cases:
    # Not those on PostgreSQL with a mirror: where there is none, the tests ask
    # for a head that was noted.
    parts = re.fullmatch(
      r'test_(?:tampering_is|a_chain_made_anew_is)_found_\w+'
      rf'\[{key}-(\w+)\]',
      case.get('name', ''),
    )
    if parts is None:
      continue
    tried.add(parts[1])
    if not len(case):  # No failure, error or skip.
      found.add(parts[1])
  return [
    runner.at_least(
      f'{name}: kinds of tampering that verify finds', len(found), target=20
    ),
    runner.equal_to(
      f'{name}: kinds that it misses', len(tried - found), target=0
    ),
  ]
