"""The round loop: sample, charge, step, checkpoint, evaluate, stop.

The order inside a round is what the privacy claim rests on. The cohort is
drawn; the ledger entry for the round's noise is made durable; only then does
the round run. A crash at any point can leave an entry for noise that nobody
saw, never noise without an entry. A resumed run draws a new cohort and new
noise for a round that it repeats, and pays for it again.
"""

import dataclasses
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any

import numpy as np

from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import cohorts
from tff_dpemb.data import user_store
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as privacy_plan
from tff_dpemb.training import aggregators
from tff_dpemb.training import checkpoints
from tff_dpemb.training import history
from tff_dpemb.training import participation as participation_lib
from tff_dpemb.training import process
from tff_dpemb.training import virtual_clients
from tff_dpemb.training.execution import executors

# Threads that decode images: each may hold a photograph of 64 megapixels.
_DECODERS = min(8, os.cpu_count() or 1)


class TrainingError(ValueError):
  """A run that cannot start or go on: names the rule and the remedy."""


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """What a finished run did; `weights` are the released backbone weights."""

  weights: Mapping[str, np.ndarray]
  rounds: int
  seconds: float  # of the rounds whose result is in the weights
  final_clip_norm: float
  participation: participation_lib.Verdict  # of the plan's limits, measured


@dataclasses.dataclass(frozen=True)
class Paths:
  """Where a run keeps what it makes. Both are their owner's alone."""

  checkpoints: pathlib.Path  # secret: noise that later rounds need
  restricted: pathlib.Path  # un-noised metrics; never exported


def train(
  run_config: config.RunConfig,
  *,
  plan: privacy_plan.PrivacyPlan,
  store: user_store.UserStore,
  pure: embedding_model.PureBackbone,
  initial_weights: Mapping[str, np.ndarray],
  paths: Paths,
  charge: Callable[[int], int],
  on_round: Callable[[history.RoundReport], None] = lambda report: None,
  on_evaluate: Callable[[int, Mapping[str, np.ndarray]], None] = (
    lambda number, weights: None
  ),
) -> TrainingResult:
  """Runs or resumes DP-FedEmb; must be called inside an executor's context.

  Args:
    run_config: The run page.
    plan: What is promised; yields the cohort's probability and the mechanism.
    store: The private users.
    pure: The backbone.
    initial_weights: Of the backbone by name; public.
    paths: Where checkpoints and restricted metrics go.
    charge: Makes the ledger entry of a round durable and returns the attempt
      (1, or more for a repeated round); raises when the budget refuses it.
    on_round: Called after each round.
    on_evaluate: Called with the backbone's weights every `evaluate_every`
      rounds, and after the last one.

  Raises:
    TrainingError: The population is too small, or does not fit the plan; or
      users took part more often or closer than the plan says.
  """
  training = run_config.training
  _check_fits(training, plan, store, pure)
  iterative = _build(run_config, plan, store, pure, initial_weights)
  template = iterative.initialize()
  restored = checkpoints.load_latest(paths.checkpoints, template)
  number, state = restored if restored is not None else (0, template)
  rounds = history.History(paths.restricted / 'training_metrics.jsonl')
  cohort_records = paths.restricted / 'cohorts'
  schedule_key = _schedule_key(paths.restricted / 'schedule.key', plan, number)
  rng = cohorts.system_rng()
  if number == training.rounds:  # Killed within the last save?
    _save(paths.checkpoints, number, state, plan, training)
  if number and _is_due(number, training):  # Killed before it was evaluated?
    on_evaluate(number, _backbone_weights(state, pure))

  def read(number: int, stop: threading.Event) -> virtual_clients.Cohort:
    return virtual_clients.read_cohort(
      store,
      plan,
      training,
      rng,
      round_number=number,
      schedule_key=schedule_key,
      stop=stop,
      apply=decoders.map,
    )

  with (
    futures.ThreadPoolExecutor(_DECODERS, 'decode') as decoders,
    virtual_clients.ReadAhead(read, number, training.rounds) as read_ahead,
  ):
    while number < training.rounds:
      start = time.monotonic()
      cohort = read_ahead.take()
      wait = time.monotonic() - start
      attempt = charge(number)
      participation_lib.record(
        cohort_records, number, attempt=attempt, slots=cohort.slots
      )
      state, metrics = iterative.next(
        process.with_fresh_noise(state), cohort.data
      )
      _check_finite(state, number)
      number += 1
      _save(paths.checkpoints, number, state, plan, training)
      report = _report(
        number, attempt, start, cohort, wait, state, metrics, training
      )
      rounds.append(report)
      on_round(report)
      if _is_due(number, training):
        on_evaluate(number, _backbone_weights(state, pure))
  return TrainingResult(
    weights=_backbone_weights(state, pure),
    rounds=number,
    seconds=rounds.seconds(),
    final_clip_norm=_clip_norm(state),
    participation=_measure_participation(paths.restricted, plan, number),
  )


def _check_fits(
  training: config.TrainingConfig,
  plan: privacy_plan.PrivacyPlan,
  store: user_store.UserStore,
  pure: embedding_model.PureBackbone,
) -> None:
  if training.rounds != plan.rounds:
    raise TrainingError(
      f'training.rounds must be the {plan.rounds} rounds of the plan, got'
      f' {training.rounds}; make the plan from this page.'
    )
  if store.num_users != plan.population:
    raise TrainingError(
      f'the plan is for {plan.population} users, the store has'
      f' {store.num_users}; make the plan from this store.'
    )
  if store.num_users < 2:
    raise TrainingError(
      f'the private store must hold at least 2 users, got {store.num_users};'
      ' one user cannot be hidden in a crowd of one.'
    )
  if tuple(store.image_shape) != pure.image_shape:
    raise TrainingError(
      f'images must have shape {pure.image_shape}, got {store.image_shape}.'
    )


def _build(run_config, plan, store, pure, initial_weights):
  training = run_config.training
  tuning = process.local_tuning_from_config(
    run_config, num_classes=store.num_classes(user_store.IDENTITY)
  )
  starting = [initial_weights[name] for name in pure.names]
  if tuning.aggregate_head:
    generator = np.random.default_rng(0)  # Public: nothing of the data is in.
    head = 0.1 * generator.standard_normal(
      [pure.embedding_dim, tuning.num_classes]
    )
    starting.append(head.astype(np.float32))
  denominator = float(
    plan.virtual_clients if plan.shares_virtual_client else plan.users_per_round
  )
  return process.build_process(
    pure,
    tuning,
    aggregators.build_aggregator(
      plan.mechanism, denominator=denominator, rounds=plan.rounds
    ),
    initial_weights=starting,
    server_learning_rate=training.server_learning_rate,
    server_momentum=training.server_momentum,
  )


def _schedule_key(
  path: pathlib.Path, plan: privacy_plan.PrivacyPlan, rounds_done: int
) -> bytes:
  """Returns the run's key of `cohorts.Schedule`; made when the run starts."""
  if not isinstance(plan.sampler, samplers.MinSeparationSampler):
    return b''
  if rounds_done and not path.exists():
    raise TrainingError(
      f'{str(path)!r} must exist: it says which users come next, and'
      f' {rounds_done} rounds were made by it; restore it, or set another name.'
    )
  return storage.read_or_make_secret(path, cohorts.new_schedule_key)


def _save(directory, number, state, plan, training) -> None:
  """Keeps the state; the last one of correlated noise without its memory.

  Buffers are needed by the rounds to come alone. Earlier states, which hold
  some, go with the last save.
  """
  keep = training.checkpoints_kept
  if number == training.rounds and isinstance(
    plan.mechanism, correlated_gaussian.CorrelatedGaussian
  ):
    state, keep = process.without_noise_buffers(state), 1
  checkpoints.save(directory, number, state, keep=keep)


def _measure_participation(
  restricted, plan, rounds
) -> participation_lib.Verdict:
  measured = participation_lib.measure(
    restricted / 'cohorts', plan, rounds=rounds
  )
  storage.atomic_write_json(
    restricted / 'participation.json',
    dataclasses.asdict(measured),
    is_private=True,
  )
  if measured.verdict == 'outside':
    raise TrainingError(
      'every user must take part as seldom and as far apart as the plan says,'
      ' but the drawn cohorts do not keep to it: nothing may be released from'
      ' this run. Report it: this is a defect of the program.'
    )
  return measured.verdict


def _check_finite(state: Any, number: int) -> None:
  if not all(np.isfinite(weight).all() for weight in state.weights):
    raise TrainingError(
      f'round {number} must give finite weights; nothing of it was kept. Lower'
      ' training.server_learning_rate.'
    )


def _is_due(number: int, training: config.TrainingConfig) -> bool:
  if number == training.rounds:
    return True
  return bool(training.evaluate_every) and number % training.evaluate_every == 0


def _backbone_weights(state, pure) -> dict[str, np.ndarray]:
  values = list(state.weights)[: len(pure.names)]
  return dict(zip(pure.names, map(np.asarray, values), strict=True))


def _clip_norm(state: Any) -> float:
  """Returns the clip norm that the next round would use."""
  query_state = state.aggregator.query_state.numerator_state
  sums = getattr(query_state, 'sum_state', query_state)
  return float(sums.l2_norm_clip)


def _report(number, attempt, start, cohort, wait, state, metrics, training):
  local = metrics['local']
  examples = float(local['examples'])
  return history.RoundReport(
    round=number,
    attempt=attempt,
    seconds=time.monotonic() - start,
    clip_norm=_clip_norm(state),
    update_norm=float(metrics['update_norm']),
    loss=float(local['loss_sum']) / max(examples, 1.0),
    accuracy=float(local['correct']) / max(examples, 1.0),
    users=int(sum(len(slot) for slot in cohort.slots)),
    examples=int(examples) * training.backbone_epochs,
    zeroed=int(metrics['aggregation']['zeroed']),
    times=history.Times(cohort.seconds, wait, executors.last_round()),
  )
