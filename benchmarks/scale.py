"""What a round costs as clients, examples, parameters, users, workers grow."""

import statistics
import time
from typing import Any

import numpy as np

from benchmarks import rounds
from benchmarks import runner
from tff_dpemb import config

_ROUNDS = 3
_CLIENTS = (8, 16, 32, 64)  # of 32 examples
_EXAMPLES = (16, 64, 256)  # of each of 8 clients
_DIMENSIONS = (128, 1024, 4096)  # of a LeNet's embedding
_POPULATIONS = (10_000, 100_000, 1_000_000)
_WORKERS = (1, 2, 4)
_RECIPE: dict[str, Any] = {'local_tuning': 'joint', 'backbone_epochs': 1}


def measure() -> list[runner.Measure]:
  """Rounds of a LeNet at 28 x 28; the cohort's draw alone for populations."""
  return [
    *_measure_clients_and_examples(),
    *_measure_parameters(),
    *_measure_population(),
    *_measure_workers(),
  ]


def _measure_clients_and_examples() -> list[runner.Measure]:
  from tff_dpemb.training.execution import executors

  measures, each = [], {}
  with executors.local():
    iterative = _process(rounds.build_lenet())
    for count in _CLIENTS:
      found = _median_times(iterative, [32] * count)
      each[count] = found.total / count
      measures.append(
        runner.noted(f'{count} virtual clients: a round', found.total, unit='s')
      )
    measures.append(
      runner.at_most(
        f'time a virtual client, {_CLIENTS[-1]} of them / {_CLIENTS[0]}',
        each[_CLIENTS[-1]] / each[_CLIENTS[0]],
        target=1.2,
      )
    )
    for examples in _EXAMPLES:
      found = _median_times(iterative, [examples] * 8)
      each[examples] = found.total / examples
      measures.append(
        runner.noted(
          f'{examples} examples a client, 8 clients: a round',
          found.total,
          unit='s',
        )
      )
  measures.append(
    runner.at_most(
      f'time an example, {_EXAMPLES[-1]} a client / {_EXAMPLES[0]}',
      each[_EXAMPLES[-1]] / each[_EXAMPLES[0]],
      target=1.2,
    )
  )
  return measures


def _measure_parameters() -> list[runner.Measure]:
  from tff_dpemb.models import embedding_model
  from tff_dpemb.training.execution import executors

  measures = []
  for dimension in _DIMENSIONS:
    backbone = embedding_model.build_backbone(
      config.ModelConfig(embedding_dim=dimension), (28, 28, 1)
    )
    parameters = sum(
      int(np.prod(v.shape)) for v in backbone.trainable_variables
    )
    with executors.local():
      found = _median_times(_process(backbone), [32] * 8)
    name = f'{parameters / 1e6:.2f} M parameters, 8 clients'
    measures += [
      runner.noted(f'{name}: a round', found.total, unit='s'),
      runner.noted(f'{name}: the coordinator', found.server, unit='s'),
    ]
  return measures


def _measure_population() -> list[runner.Measure]:
  """The draw of 320 expected users in 32 virtual clients, by each sampler."""
  from tff_dpemb.data import cohorts
  from tff_dpemb.privacy.planning import settings
  from tff_dpemb.training import virtual_clients

  rng = cohorts.system_rng()
  measures = []
  for sampler in ('poisson', 'min-separation'):
    for population in _POPULATIONS:
      page = config.from_mapping(
        {
          'name': 'scale',
          'training': {'rounds': _ROUNDS},
          'privacy': {
            'delta': 1e-9,
            'users_per_round': 320,
            'virtual_clients': 32,
            'clipping': 'fixed',
            'sampler': sampler,
            'noise': 'tree' if sampler == 'min-separation' else 'independent',
          },
        }
      )
      plan = settings.plan_from_config(
        page.privacy,
        population=population,
        rounds=page.training.rounds,
        shares_virtual_client=page.privacy.share_virtual_clients,
      )
      seconds = []
      for number in range(_ROUNDS):
        start = time.monotonic()
        virtual_clients.draw_slots(
          plan,
          page.training,
          rng,
          round_number=number,
          schedule_key=bytes(16),
        )
        seconds.append(time.monotonic() - start)
      measures.append(
        runner.noted(
          f'{population} users, {sampler}: the draw of a cohort',
          1000 * statistics.median(seconds),
          unit='ms',
        )
      )
  return measures


def _measure_workers() -> list[runner.Measure]:
  """Workers that share this machine's cores: what spreading itself costs."""
  from tff_dpemb.training.execution import executors

  measures = []
  for count in _WORKERS:
    with executors.workers(processes=count):
      found = _median_times(_process(rounds.build_lenet()), [32] * 32)
    measures.append(
      runner.noted(
        f'{count} workers on the same cores, 32 clients: a round',
        found.total,
        unit='s',
      )
    )
  return measures


def _process(backbone) -> Any:
  return rounds.build_process(backbone, virtual_clients=32, **_RECIPE)


def _median_times(iterative, sizes) -> Any:
  """Returns the round of median length, after one to warm up."""
  from tff_dpemb.training import process
  from tff_dpemb.training.execution import executors

  data = rounds.clients(sizes, rng=np.random.default_rng(0))
  state, found = iterative.initialize(), []
  for turn in range(_ROUNDS + 1):
    state, _ = iterative.next(process.with_fresh_noise(state), data)
    last = executors.last_round()
    if turn and last is not None:
      found.append(last)
  return sorted(found, key=lambda times: times.total)[_ROUNDS // 2]
