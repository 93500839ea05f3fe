"""How far one user moves what is noised: brute force through the real sums."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import mechanism_cases as cases
from benchmarks import runner

_USERS = 48
_CLIENTS = 4  # virtual clients
_SHAPES = ((3, 4), (4,))
_DIMENSION = 16
_FLOAT = 1 + 1e-5  # Sums are in float32.
_SCHEDULES = 100
_PLAYS = 3  # of each phase: the first is the worst case, the others random

_Update = Callable[[np.ndarray], list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class _Moves:
  """What one user moved, in units of what the accounting allows.

  Attributes:
    sums: Largest move of a round's sum / (2 clip norms).
    counts: Of all counts of a round, resp. of a run, together; 0 if none.
    rows: Of all rows of C x together; 0 if noise is independent.
    row: Of one row of C x.
  """

  sums: float
  counts: float
  rows: float
  row: float


def measure() -> list[runner.Measure]:
  """Removes users from populations; compares sums, counts and rows of C x."""
  import tensorflow_federated as tff

  from tff_dpemb.training.execution import executors

  value_type = tff.types.to_type([(np.float32, list(x)) for x in _SHAPES])
  measures = _measure_slots()
  with executors.local():
    for name, mechanism in cases.build(0.0, virtual_clients=_CLIENTS).items():
      measures += _measure_mechanism(name, mechanism, value_type)
    measures += _measure_alone(value_type)
  return measures


def _measure_slots() -> list[runner.Measure]:
  """Which virtual clients change when the last user is removed."""
  taking_part: list[int] = []
  absent: list[int] = []
  overflow = 0
  for number in range(_SCHEDULES):
    rng = np.random.default_rng(number)
    key = rng.bytes(16)
    for t in range(cases.ROUNDS):
      before, after = (
        _slots(_USERS - removed, t, key=key, limit=3) for removed in (0, 1)
      )
      changed = sum(
        not np.array_equal(x, y) for x, y in zip(before, after, strict=True)
      )
      wide = np.concatenate(_slots(_USERS, t, key=key, limit=_USERS))
      overflow += len(wide) > sum(map(len, before))
      (taking_part if _USERS - 1 in wide else absent).append(changed)
  return [
    runner.equal_to(
      'virtual clients that one user changes in a round, most',
      max(taking_part),
      target=1,
    ),
    runner.equal_to(
      'virtual clients that change in rounds without that user',
      max(absent),
      target=0,
    ),
    runner.noted(
      'rounds of these in which a virtual client overflowed',
      overflow / (_SCHEDULES * cases.ROUNDS),
    ),
  ]


def _measure_mechanism(name, mechanism, value_type) -> list[runner.Measure]:
  from tff_dpemb.privacy.mechanisms import correlated_gaussian
  from tff_dpemb.training import aggregators

  process = aggregators.build_aggregator(
    mechanism, denominator=1.0, rounds=cases.ROUNDS
  ).create(value_type)
  rng = np.random.default_rng(0)
  worst: list[_Moves] = []
  random: list[_Moves] = []
  for phase in range(cases.PARTICIPATION.min_separation):
    key = _key_of_phase(rng, phase)
    for play in range(_PLAYS):
      update = _random_update(rng) if play else _worst_update(rng)
      moves = _moves(process, mechanism, key, phase, update)
      (random if play else worst).append(moves)
  fields = {'sums': "a round's sum, of 2 clip norms"}
  if mechanism.clipping == 'adaptive':
    fields['counts'] = 'counts, of the accounted move'
  if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    fields['rows'] = 'rows of C x, of 2 clip norms x sensitivity'
    fields['row'] = 'one row of C x, of 2 clip norms x row sensitivity'
  measures = []
  for field, text in fields.items():
    largest = max(getattr(moves, field) for moves in worst)
    anywhere = max(getattr(moves, field) for moves in (*worst, *random))
    measures += [
      runner.at_least(f'{name}: worst move of {text}', largest, target=0.9),
      runner.at_most(
        f'{name}: largest move found of {text}', anywhere, target=_FLOAT
      ),
    ]
  return measures


def _measure_alone(value_type) -> list[runner.Measure]:
  """Each user a virtual client: one user moves the sum by one clip norm."""
  from tff_dpemb.privacy.mechanisms import independent
  from tff_dpemb.training import aggregators

  process = aggregators.build_aggregator(
    independent.FixedClipGaussian(cases.CLIP_NORM, 0.0), denominator=1.0
  ).create(value_type)
  start = process.initialize()
  rng = np.random.default_rng(1)
  largest = 0.0
  for _ in range(20):
    update = _random_update(rng)
    users = [np.array([user]) for user in range(12)]
    whole, _ = _play(process, start, users, update)
    fewer, _ = _play(process, start, users[:-1], update)
    largest = max(largest, _distance(whole, fewer) / cases.CLIP_NORM)
  return [
    runner.at_most(
      'without shared virtual clients: largest move of the sum, of 1 clip norm',
      largest,
      target=_FLOAT,
    ),
    runner.at_least(
      'without shared virtual clients: worst move of the sum',
      largest,
      target=0.9,
    ),
  ]


def _moves(process, mechanism, key, phase, update: _Update) -> _Moves:
  """Plays all rounds with and without the last user, noise off.

  Every round starts from the first state: the bounds are for each history of
  released values, and with no noise the history is the state's clip norm.
  Rounds in which no virtual client changes move nothing.
  """
  from tff_dpemb.privacy.mechanisms import correlated_gaussian

  moved = np.zeros((cases.ROUNDS, _DIMENSION))
  counted = np.zeros(cases.ROUNDS)
  start = process.initialize()
  for t in range(cases.ROUNDS):
    slots = [_slots(_USERS - removed, t, key=key) for removed in (0, 1)]
    if all(np.array_equal(x, y) for x, y in zip(*slots, strict=True)):
      continue
    (whole, after), (fewer, after_fewer) = (
      _play(process, start, clients, update) for clients in slots
    )
    moved[t] = _flat(whole) - _flat(fewer)
    if mechanism.clipping == 'adaptive':
      counted[t] = _count(mechanism, after) - _count(mechanism, after_fewer)
  scale = 2 * cases.CLIP_NORM
  times = len(cases.PARTICIPATION.pattern(phase, cases.ROUNDS))
  if not isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    return _Moves(
      sums=np.linalg.norm(moved, axis=1).max() / scale,
      counts=np.abs(counted).max(),
      rows=0.0,
      row=0.0,
    )
  from tff_dpemb.privacy.mechanisms import correlated

  rows = (
    correlated.matrix(
      mechanism.strategy, cases.ROUNDS, restart_every=mechanism.restart_every
    )
    @ moved
  )
  allowed = mechanism.correlated_sensitivity(
    cases.ROUNDS, participation=cases.PARTICIPATION
  )
  return _Moves(
    sums=np.linalg.norm(moved, axis=1).max() / scale,
    counts=float(np.linalg.norm(counted) / np.sqrt(times)),
    rows=float(np.linalg.norm(rows)) / (scale * allowed.whole),
    row=np.linalg.norm(rows, axis=1).max() / (scale * allowed.row),
  )


def _play(
  process, start, slots, update: _Update
) -> tuple[list[np.ndarray], Any]:
  """Returns the sum of the round from a state, and the state after it."""
  from tff_dpemb.training import aggregators

  state = aggregators.with_fresh_noise_seeds(start)
  output = process.next(state, [update(users) for users in slots])
  return [np.asarray(x) for x in output.result], output.state


def _count(mechanism, state) -> float:
  """Returns the clipped count of the round that led to `state`."""
  query_state = cases.query_state(state)
  if hasattr(query_state, 'segment_count'):
    return float(query_state.segment_count)
  # clip' = clip exp(-rate (count / V + 1/2 - target))
  moved = np.log(float(query_state.sum_state.l2_norm_clip) / cases.CLIP_NORM)
  share = mechanism.target_unclipped_quantile - moved / mechanism.learning_rate
  return float(mechanism.virtual_clients * (share - 0.5))


def _slots(
  population: int, round_number: int, *, key: bytes, limit: int = 64
) -> list[np.ndarray]:
  """Returns the round's virtual clients, drawn as training draws them.

  A smaller population lacks the last users. Both neighbours draw with the same
  random numbers.
  """
  from tff_dpemb import config
  from tff_dpemb.privacy.mechanisms import independent
  from tff_dpemb.privacy.mechanisms import samplers
  from tff_dpemb.privacy.planning import plan as plan_lib
  from tff_dpemb.training import virtual_clients

  participation = cases.PARTICIPATION
  plan = plan_lib.PrivacyPlan(
    sampler=samplers.MinSeparationSampler(
      population, participation.min_separation, participation.max_participations
    ),
    mechanism=independent.FixedClipGaussian(1.0, 1.0),
    virtual_clients=_CLIENTS,
    rounds=cases.ROUNDS,
    delta=plan_lib.default_delta(population),
  )
  return virtual_clients.draw_slots(
    plan,
    config.TrainingConfig(max_users_per_virtual_client=limit),
    np.random.default_rng(round_number),
    round_number=round_number,
    schedule_key=key,
  )


def _key_of_phase(rng: np.random.Generator, phase: int) -> bytes:
  """Returns a key under which the last user has the given phase."""
  while True:
    key = rng.bytes(16)
    if _USERS - 1 in np.concatenate(_slots(_USERS, phase, key=key)):
      return key


def _worst_update(rng: np.random.Generator) -> _Update:
  """The last user turns its virtual client round, and unclips it."""
  direction = rng.normal(size=_DIMENSION)
  direction *= cases.CLIP_NORM / np.linalg.norm(direction)

  def update(users):
    factor = -0.999 if _USERS - 1 in users else 10.0
    return _shaped(factor * direction)

  return update


def _random_update(rng: np.random.Generator) -> _Update:
  """Every user adds a random vector, of about one clip norm."""
  scale = cases.CLIP_NORM / np.sqrt(_DIMENSION)
  vectors = rng.normal(0, scale, [_USERS, _DIMENSION])
  return lambda users: _shaped(vectors[users].sum(axis=0))


def _shaped(vector: np.ndarray) -> list[np.ndarray]:
  parts = np.split(vector.astype(np.float32), [12])
  return [x.reshape(shape) for x, shape in zip(parts, _SHAPES, strict=True)]


def _flat(tensors: list[np.ndarray]) -> np.ndarray:
  return np.concatenate([np.ravel(x) for x in tensors]).astype(float)


def _distance(one: list[np.ndarray], other: list[np.ndarray]) -> float:
  return float(np.linalg.norm(_flat(one) - _flat(other)))
