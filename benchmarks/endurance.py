"""200 rounds with cohorts of 3 to 64 virtual clients: memory, threads, files."""

import numpy as np
import psutil

from benchmarks import rounds
from benchmarks import runner

_ROUNDS = 200
_WARM_UP = 60
_COHORTS = (3, 65)  # virtual clients of a round, from the first to the last - 1
_EXAMPLES = (0, 13)  # of a virtual client
_MIB = 2**20


def measure() -> list[runner.Measure]:
  """Runs the rounds on two workers, watching them and this process."""
  from tff_dpemb.training import process
  from tff_dpemb.training.execution import executors

  rng = np.random.default_rng(0)
  iterative = rounds.build_process(
    rounds.build_lenet('lenet_small'),
    virtual_clients=64,
    local_tuning='joint',
    backbone_epochs=1,
    backbone_batch_size=8,
  )
  memory: list[list[float]] = []
  threads, files = [], []
  with executors.workers(processes=2, concurrent_calls=1) as context:
    watched = [
      psutil.Process(),
      *(psutil.Process(worker.pid) for worker in context.owned_workers()),
    ]
    state = iterative.initialize()
    for _ in range(_ROUNDS):
      sizes = rng.integers(*_EXAMPLES, size=rng.integers(*_COHORTS))
      data = rounds.clients(sizes.tolist(), rng=rng)
      state, _ = iterative.next(process.with_fresh_noise(state), data)
      memory.append([p.memory_info().rss / _MIB for p in watched])
      threads.append([p.num_threads() for p in watched])
      files.append([p.num_fds() for p in watched])
    traces = [worker.computations for worker in context.connections()]
  measures = []
  for index, name in enumerate(('coordinator', 'worker 0', 'worker 1')):
    slope, error = _slope([row[index] for row in memory[_WARM_UP:]])
    measures += [
      runner.at_most(
        f'memory slope of the {name} after {_WARM_UP} rounds',
        slope,
        target=0.2,
        unit='MiB/round',
      ),
      runner.noted('  its standard error', error, unit='MiB/round'),
      runner.noted(
        f'  memory of the {name} at the end', memory[-1][index], unit='MiB'
      ),
      runner.at_most(
        f'threads that the {name} gained after {_WARM_UP} rounds',
        _growth([row[index] for row in threads]),
        target=0,
      ),
      runner.at_most(
        f'files that the {name} gained after {_WARM_UP} rounds',
        _growth([row[index] for row in files]),
        target=0,
      ),
    ]
  return [
    *measures,
    runner.equal_to(
      'rounds that each worker was sent, of any number and size of clients',
      max(traces),
      target=1,
    ),
  ]


def _slope(values: list[float]) -> tuple[float, float]:
  """Returns the least-squares slope by round and its standard error."""
  x = np.arange(len(values)) - (len(values) - 1) / 2
  y = np.array(values) - np.mean(values)
  slope = float(x @ y / (x @ x))
  residual = y - slope * x
  error = float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))
  return slope, error


def _growth(counts: list[int]) -> int:
  """Returns how far the last 20 rounds are above what came after warm-up."""
  return min(counts[-20:]) - max(counts[_WARM_UP : _WARM_UP + 20])
