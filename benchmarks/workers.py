"""Rounds on several workers: speed, equality, and workers that are killed."""

import os
import pathlib
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import glyph_runs
from benchmarks import rounds
from benchmarks import runner

_ROUNDS = 7
_SIZES = [64] * 32
_KILLED_ROUNDS = 20
_RECIPE: dict[str, Any] = {'local_tuning': 'joint', 'backbone_epochs': 1}


def measure() -> list[runner.Measure]:
  """Times, compares and kills workers on this machine."""
  iterative = rounds.build_process(
    rounds.build_lenet(), virtual_clients=32, **_RECIPE
  )
  data = rounds.clients(_SIZES, rng=np.random.default_rng(0))
  return [
    *_measure_speed(iterative, data),
    *_measure_equality(iterative, data),
    *_measure_losses(iterative, data),
    *_measure_ledger(),
  ]


def _measure_speed(iterative, data) -> list[runner.Measure]:
  """One worker on one core against two on a core each, in turns."""
  from tff_dpemb.training.execution import executors

  cores = sorted(os.sched_getaffinity(0))
  if len(cores) < 2:
    return [runner.noted('cores; two are needed for the speed', len(cores))]
  seconds: dict[int, list[float]] = {1: [], 2: []}
  # One context of three workers would share its rounds among all; so each
  # count has a context, and the inner one is left to reach the outer one.
  with executors.workers(processes=1, concurrent_calls=1) as one:
    with executors.workers(processes=2, concurrent_calls=1) as two:
      state = _first_state(iterative)
      for context in (one, two):
        context.invoke(iterative.next, _argument(state, data))
        for worker, core in zip(_processes(context), cores, strict=False):
          _pin(worker.pid, core)
      for turn in range(_ROUNDS + 1):
        for count, context in ((1, one), (2, two)):
          start = time.monotonic()
          context.invoke(iterative.next, _argument(state, data))
          if turn:  # The first turn after pinning warms up.
            seconds[count].append(time.monotonic() - start)
  medians = {
    count: statistics.median(times) for count, times in seconds.items()
  }
  ratios = [a / b for a, b in zip(seconds[1], seconds[2], strict=True)]
  return [
    runner.at_least(
      'speed-up: two workers on two cores / one on one core',
      medians[1] / medians[2],
      target=1.7,
    ),
    runner.noted('the same, smallest of the turns', min(ratios)),
    runner.noted('round on one worker, median', medians[1], unit='s'),
    runner.noted('round on two workers, median', medians[2], unit='s'),
  ]


def _measure_equality(iterative, data) -> list[runner.Measure]:
  from tff_dpemb.training.execution import executors

  with executors.local():
    state = _first_state(iterative)
    alone, _ = iterative.next(state, data)
  with executors.workers(processes=4, concurrent_calls=1):
    four, _ = iterative.next(state, data)
  return [
    runner.at_most(
      'largest difference of the weights, four workers / one',
      rounds.largest_difference(alone, four),
      target=1e-5,
    )
  ]


def _measure_ledger() -> list[runner.Measure]:
  """The same page trained on one worker and on four: what was charged."""
  pages = {
    'alone': [],
    'four': ['runtime.executor="workers"', 'runtime.processes=4'],
  }
  charged = {}
  with tempfile.TemporaryDirectory() as folder:
    for name, overrides in pages.items():
      charged[name] = _charges(pathlib.Path(folder), name, overrides)
  same = charged['alone'] == charged['four'] and len(charged['alone']) == 3
  return [
    runner.equal_to(
      'ledgers of one and four workers agree in every charge', same, target=1
    )
  ]


def _charges(runs: pathlib.Path, name: str, overrides: Sequence[str]) -> Any:
  from launch.run import opened

  _, paths = glyph_runs.train_and_evaluate(
    name,
    runs=runs,
    overrides=[
      'training.rounds=3',
      'pretraining.enabled=false',
      'data.test_identities=60',
      'data.validation_identities=60',
      *overrides,
    ],
  )
  with opened.open_run(paths) as run:
    return [
      (
        entry.round_number,
        entry.attempt,
        entry.event,
        entry.adjacency,
        entry.plan_digest,
        entry.details,
      )
      for entry in run.ledger.entries(run=name, kind='draw')
    ]


def _measure_losses(iterative, data) -> list[runner.Measure]:
  """Kills a worker at a random time in each round."""
  from tff_dpemb.training.execution import executors

  rng = np.random.default_rng(1)
  completed, losses, largest = 0, 0, 0.0
  draws: list[int] = []
  with executors.local() as _, executors.workers(processes=2) as context:
    state = _first_state(iterative)
    iterative.next(state, data)
    start = time.monotonic()
    iterative.next(state, data)
    typical = time.monotonic() - start
    form: Any = context.form_of(iterative.next)
    update = form.update

    def counted(*arguments):
      draws[-1] += 1
      return update(*arguments)

    form.update = counted
    for number in range(_KILLED_ROUNDS):
      state = _fresh(state)
      draws.append(0)
      quiet, _ = iterative.next(state, data)
      draws.append(0)
      victim = _processes(context)[number % 2]
      timer = threading.Timer(
        rng.uniform(0.05, 0.7) * typical, os.kill, (victim.pid, signal.SIGKILL)
      )
      timer.start()
      disturbed, metrics = iterative.next(state, data)
      timer.join()
      if metrics['local']['examples'] == sum(_SIZES):
        completed += 1
      if context.last_round is not None:
        losses += context.last_round.losses
      largest = max(largest, rounds.largest_difference(quiet, disturbed))
      state = disturbed
  return [
    runner.equal_to(
      f'rounds completed of {_KILLED_ROUNDS} with a worker killed',
      completed,
      target=_KILLED_ROUNDS,
    ),
    runner.at_least('losses that rounds met', losses, target=1),
    runner.at_most(
      'largest difference of the weights, disturbed / undisturbed round',
      largest,
      target=1e-5,
    ),
    runner.equal_to('most noise draws of a round', max(draws), target=1),
    runner.equal_to('fewest noise draws of a round', min(draws), target=1),
  ]


def _first_state(iterative) -> Any:
  return _fresh(iterative.initialize())


def _fresh(state) -> Any:
  from tff_dpemb.training import process

  return process.with_fresh_noise(state)


def _argument(state, data) -> Any:
  import tensorflow_federated as tff

  return tff.structure.Struct([(None, state), (None, data)])


def _processes(context) -> list[Any]:
  return list(context.owned_workers())


def _pin(pid: int, core: int) -> None:
  """Keeps a process, and the threads that it has and makes, to one core."""
  for thread in pathlib.Path(f'/proc/{pid}/task').iterdir():
    os.sched_setaffinity(int(thread.name), {core})
