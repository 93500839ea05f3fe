"""One small real round on an executor: who did how much of it, how fast.

The images are made up here and nothing is released, so no ledger is charged.
"""

import time
from typing import Any

import numpy as np

from launch.doctor import findings
from tff_dpemb import config
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import client_work
from tff_dpemb.training import process
from tff_dpemb.training.execution import executors
from tff_dpemb.training.execution.workers import process as worker_process

_IMAGE_SHAPE = (28, 28, 1)
_CLIENTS, _EXAMPLES = 16, 32
_REMEDY = 'do as it says, then `dpemb doctor --executor'


def examine(runtime: config.RuntimeConfig) -> list[findings.Finding]:
  """Returns where a round ran and its speed; a fault where it could not."""
  name = f'executor {runtime.executor}'
  try:
    with executors.open(runtime):
      return _run_rounds(name)
  except worker_process.ExecutorError as error:
    return [
      findings.fault(
        name,
        ' '.join(str(error).split()),
        f'{_REMEDY} {runtime.executor}` again',
      )
    ]


def _run_rounds(name: str) -> list[findings.Finding]:
  iterative = _build_process()
  rng = np.random.default_rng(0)
  clients = [
    client_work.ClientData(
      images=rng.integers(0, 256, [_EXAMPLES, *_IMAGE_SHAPE]).astype(np.uint8),
      labels=(np.arange(_EXAMPLES) % 8).astype(np.int32),
      seed=rng.integers(0, 1000, 2).astype(np.int32),
    )
    for _ in range(_CLIENTS)
  ]
  state = iterative.initialize()
  seconds = 0.0
  for _ in range(2):  # The first one compiles.
    start = time.monotonic()
    state, metrics = iterative.next(process.with_fresh_noise(state), clients)
    seconds = time.monotonic() - start
  done = int(metrics['local']['examples'])
  finite = all(np.isfinite(weight).all() for weight in state.weights)
  if done != _CLIENTS * _EXAMPLES or not finite:
    return [
      findings.fault(
        name,
        f'a round trained on {done} of {_CLIENTS * _EXAMPLES} examples, weights'
        f' {"finite" if finite else "not finite"}',
        'run `dpemb doctor --deep`; report it if that finds nothing',
      )
    ]
  return [
    findings.ok(
      name,
      f'a round of {_CLIENTS} virtual clients in {seconds:.2f} s,'
      f' {done / seconds:.0f} examples/s',
    ),
    *_placement(),
  ]


def _placement() -> list[findings.Finding]:
  """Returns a line for each worker or device of the last round."""
  times = executors.last_round()
  return [
    findings.ok(
      f'  {place.worker}',
      f'{place.clients} virtual clients, {place.examples} examples,'
      f' {place.examples / max(place.seconds, 1e-9):.0f} examples/s',
    )
    for place in (times.placement if times is not None else ())
  ]


def _build_process():
  page = config.RunConfig(name='doctor')
  page = page.model_copy(
    update={
      'training': page.training.model_copy(
        update={'local_tuning': 'joint', 'backbone_epochs': 1}
      )
    }
  )
  backbone = embedding_model.build_backbone(page.model, _IMAGE_SHAPE)
  return process.build_process(
    embedding_model.lift(backbone),
    process.local_tuning_from_config(page, num_classes=0),
    aggregators.build_aggregator(
      independent.FixedClipGaussian(0.5, 0.1), denominator=float(_CLIENTS)
    ),
    initial_weights=[v.numpy() for v in backbone.trainable_variables],
    server_learning_rate=page.training.server_learning_rate,
    server_momentum=page.training.server_momentum,
  )


def runtime_from_options(
  executor: str, workers: tuple[str, ...], **others: Any
) -> config.RuntimeConfig:
  """Returns the runtime that command-line options ask for.

  Without addresses, `workers` starts two on this machine.

  Args:
    executor: As `runtime.executor` of a page.
    workers: As `runtime.workers`.
    **others: Other keys of `[runtime]`.

  Raises:
    ConfigError: As for a page.
  """
  if executor == 'workers' and not workers:
    others.setdefault('processes', 2)
  page = config.from_mapping(
    {
      'name': 'doctor',
      'runtime': {'executor': executor, 'workers': list(workers), **others},
    }
  )
  return page.runtime
