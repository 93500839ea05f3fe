"""The round loop: sample, charge, step, checkpoint, evaluate, stop.

The order inside a round is what the privacy claim rests on. The cohort is
drawn; the ledger entry for the round's noise is made durable; only then does
the round run. A crash at any point can leave an entry for noise that nobody
saw, never noise without an entry. A resumed run draws a new cohort and new
noise for a round that it repeats, and pays for it again.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any

import numpy as np

from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import cohorts
from tff_dpemb.data import user_store
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as privacy_plan
from tff_dpemb.training import aggregators
from tff_dpemb.training import checkpoints
from tff_dpemb.training import client_work
from tff_dpemb.training import participation as participation_lib
from tff_dpemb.training import process
from tff_dpemb.training.execution import executors
from tff_dpemb.training.execution import round_form

# Threads that decode images: each may hold a photograph of 64 megapixels.
_DECODERS = min(8, os.cpu_count() or 1)


class TrainingError(ValueError):
  """A run that cannot start or go on: names the rule and the remedy."""


@dataclasses.dataclass(frozen=True)
class RoundReport:
  """What one finished round shows its operator. Partly private: see below.

  `clip_norm` and `update_norm` (of the noised mean) follow from released
  values. `loss` and `accuracy` (of the last local epoch's steps, each batch as
  its step saw it), `users`, `examples`, `zeroed` and `times` come from private
  data without noise and may only be kept under `restricted/`.
  """

  round: int
  attempt: int
  seconds: float
  clip_norm: float
  update_norm: float
  loss: float
  accuracy: float
  users: int
  examples: int
  zeroed: int
  times: 'RoundTimes'


@dataclasses.dataclass(frozen=True)
class RoundTimes:
  """Where the seconds of a round went; parts that overlap add up to more.

  Attributes:
    read: Drawing and reading the cohort, during the round before.
    wait: What was left of that to wait for, before the round could start.
    executor: What the executor measured; None in another context of TFF.
  """

  read: float
  wait: float
  executor: round_form.RoundTimes | None


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
  on_round: Callable[[RoundReport], None] = lambda report: None,
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
  iterative = _build(run_config, plan, store, pure, initial_weights)
  template = iterative.initialize()
  restored = checkpoints.load_latest(paths.checkpoints, template)
  number, state = restored if restored is not None else (0, template)
  history = _History(paths.restricted / 'training_metrics.jsonl')
  cohort_records = paths.restricted / 'cohorts'
  schedule_key = _schedule_key(paths.restricted / 'schedule.key', plan, number)
  rng = cohorts.system_rng()
  if number == training.rounds:  # Killed within the last save?
    _save(paths.checkpoints, number, state, plan, training)
  if number and _is_due(number, training):  # Killed before it was evaluated?
    on_evaluate(number, _backbone_weights(state, pure))

  def read(number: int, stop: threading.Event) -> _Cohort:
    start = time.monotonic()
    slots = draw_slots(
      plan, training, rng, round_number=number, schedule_key=schedule_key
    )
    data = []
    for users in slots:
      if stop.is_set():
        raise futures.CancelledError
      data.append(client_data(store, users, training, rng, decoders.map))
    return _Cohort(slots, data, time.monotonic() - start)

  with (
    futures.ThreadPoolExecutor(_DECODERS, 'decode') as decoders,
    _ReadAhead(read, number, training.rounds) as read_ahead,
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
      history.append(report)
      on_round(report)
      if _is_due(number, training):
        on_evaluate(number, _backbone_weights(state, pure))
  return TrainingResult(
    weights=_backbone_weights(state, pure),
    rounds=number,
    seconds=history.seconds(),
    final_clip_norm=_clip_norm(state),
    participation=_measure_participation(paths.restricted, plan, number),
  )


@dataclasses.dataclass(frozen=True)
class _Cohort:
  """The virtual clients of one round: users, what they hold; reading time."""

  slots: list[np.ndarray]
  data: list[client_work.ClientData]
  seconds: float


class _ReadAhead:
  """Reads the next round's cohort in a thread while one is trained on.

  Cohorts of two rounds are in memory then. One that is read and never used,
  because the run stops, costs nothing: no noise was drawn for it. `read` is
  told by an event when nobody waits for it any more.
  """

  def __init__(
    self,
    read: Callable[[int, threading.Event], _Cohort],
    number: int,
    rounds: int,
  ):
    self._read, self._numbers = read, iter(range(number, rounds))
    self._stop = threading.Event()
    self._thread = futures.ThreadPoolExecutor(1, 'read-ahead')
    self._next: futures.Future[_Cohort] | None = None

  def __enter__(self) -> '_ReadAhead':
    self._start()
    return self

  def __exit__(self, *unused) -> None:
    self._stop.set()
    self._thread.shutdown(cancel_futures=True)

  def take(self) -> _Cohort:
    """Returns the next round's cohort; raises what reading it raised."""
    if self._next is None:
      raise IndexError('there is no round left to read a cohort for.')
    cohort = self._next.result()
    self._start()
    return cohort

  def _start(self) -> None:
    number = next(self._numbers, None)
    self._next = None
    if number is not None:
      self._next = self._thread.submit(self._read, number, self._stop)


def draw_slots(
  plan: privacy_plan.PrivacyPlan,
  training: config.TrainingConfig,
  rng: np.random.Generator,
  *,
  round_number: int = 0,
  schedule_key: bytes = b'',
) -> list[np.ndarray]:
  """Returns the users of each virtual client of one round.

  Users are drawn as the plan's sampler says. Each is hashed independently into
  one of the plan's slots, so that one user changes one slot. Overflow of a
  slot is dropped by position within the slot, which depends on that slot
  alone. Without virtual clients each user of the round is a slot.

  Args:
    plan: The plan.
    training: For the cap of users in a slot.
    rng: Source of the draws.
    round_number: Round, from 0; it matters to minimum separation only.
    schedule_key: Of `cohorts.Schedule`, the same for all rounds of a run;
      minimum separation needs it.
  """
  users = _draw_users(plan, rng, round_number, schedule_key)
  if not plan.shares_virtual_client:
    return [users[i : i + 1] for i in range(len(users))]
  slots = cohorts.assign_virtual_clients(users, plan.virtual_clients, rng=rng)
  limit = training.max_users_per_virtual_client
  return [slot[:limit] for slot in slots]


def _draw_users(plan, rng, round_number, schedule_key) -> np.ndarray:
  match plan.sampler:
    case samplers.PoissonSampler(population=population) as sampler:
      return cohorts.draw_cohort(population, sampler.probability, rng=rng)
    case samplers.FixedSizeSampler(population=population) as sampler:
      size = int(sampler.users_per_round)
      return cohorts.draw_fixed_size(population, size, rng=rng)
    case samplers.MinSeparationSampler() as sampler:
      schedule = cohorts.build_schedule(
        sampler.population,
        sampler.min_separation,
        sampler.max_participations,
        schedule_key,
      )
      return schedule.users(round_number)
    case sampler:
      raise TrainingError(
        'the sampler must be one that is drawn here, got'
        f' {type(sampler).__name__}.'
      )


def client_data(
  store: user_store.UserStore,
  users: np.ndarray,
  training: config.TrainingConfig,
  rng: np.random.Generator,
  apply: Callable[..., Iterable[np.ndarray]] = map,
) -> client_work.ClientData:
  """Returns what the virtual client of `users` (possibly none) holds.

  `apply` decodes images, as in `UserStore.read_user`.
  """
  images, labels = [], []
  for user in users:
    examples = store.read_user(
      int(user),
      max_examples=training.max_examples_per_user,
      rng=rng,
      apply=apply,
    )
    images.append(examples.images)
    labels.append(examples.labels[user_store.IDENTITY])
  seed = rng.integers(0, 2**31 - 1, 2).astype(np.int32)
  if not images:
    return client_work.ClientData(
      np.zeros([0, *store.image_shape], np.uint8), np.zeros([0], np.int32), seed
    )
  identities = np.concatenate(labels).astype(np.int32)
  if training.aggregate == 'backbone':
    _, identities = np.unique(identities, return_inverse=True)
  return client_work.ClientData(
    np.concatenate(images), identities.astype(np.int32), seed
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
    plan.mechanism, mechanisms.CorrelatedGaussian
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
  return RoundReport(
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
    times=RoundTimes(cohort.seconds, wait, executors.last_round()),
  )


def _open_private(path: str, flags: int) -> int:
  return os.open(path, flags, 0o600)


class _History:
  """Restricted metrics as JSON lines; a line cut short by a crash is skipped."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700)

  def append(self, report: RoundReport) -> None:
    line = json.dumps(dataclasses.asdict(report))
    try:
      with open(
        self._path, 'a', encoding='utf-8', opener=_open_private
      ) as file:
        file.write('\n' + line)  # A torn line stays alone.
    except OSError as error:
      raise storage.ArtifactError(
        f'{str(self._path)!r} could not be written ({error.strerror}); free'
        ' space, then run the same command again to resume.'
      ) from error

  def seconds(self) -> float:
    """Returns the time of the rounds, the last report of each counted."""
    rounds: dict[int, float] = {}
    if self._path.exists():
      for line in self._path.read_text(encoding='utf-8').splitlines():
        with contextlib.suppress(ValueError):  # An empty or torn line.
          report = json.loads(line)
          rounds[report['round']] = report['seconds']
    return sum(rounds.values())
