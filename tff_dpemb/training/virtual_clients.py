"""The virtual clients of a round: whose they are, what they hold, read ahead."""

import dataclasses
import threading
import time
import typing
from collections.abc import Callable, Iterable
from concurrent import futures

import numpy as np

from tff_dpemb import config
from tff_dpemb.data import cohorts
from tff_dpemb.data import user_store
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as privacy_plan
from tff_dpemb.training import client_work


@dataclasses.dataclass(frozen=True)
class Cohort:
  """The virtual clients of one round.

  Attributes:
    slots: The users of each.
    data: What each holds.
    seconds: How long drawing and reading took.
  """

  slots: list[np.ndarray]
  data: list[client_work.ClientData]
  seconds: float


class ReadAhead:
  """Reads the next round's cohort in a thread while one is trained on.

  Cohorts of two rounds are in memory then. One that is read and never used,
  because the run stops, costs nothing: no noise was drawn for it. `read` is
  told by an event when nobody waits for it any more.
  """

  def __init__(
    self,
    read: Callable[[int, threading.Event], Cohort],
    number: int,
    rounds: int,
  ):
    """Reads nothing before the block is entered.

    Args:
      read: Returns the cohort of a round.
      number: The first round.
      rounds: The last one, and one more.
    """
    self._read, self._numbers = read, iter(range(number, rounds))
    self._stop = threading.Event()
    self._thread = futures.ThreadPoolExecutor(1, 'read-ahead')
    self._next: futures.Future[Cohort] | None = None

  def __enter__(self) -> 'ReadAhead':
    self._start()
    return self

  def __exit__(self, *unused) -> None:
    self._stop.set()
    self._thread.shutdown(cancel_futures=True)

  def take(self) -> Cohort:
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


def read_cohort(
  store: user_store.UserStore,
  plan: privacy_plan.PrivacyPlan,
  training: config.TrainingConfig,
  rng: np.random.Generator,
  *,
  round_number: int,
  schedule_key: bytes,
  stop: threading.Event,
  apply: Callable[..., Iterable[np.ndarray]],
) -> Cohort:
  """Returns the cohort of a round; the arguments are those of what it calls.

  Raises:
    CancelledError: `stop` was set meanwhile.
  """
  start = time.monotonic()
  slots = draw_slots(
    plan, training, rng, round_number=round_number, schedule_key=schedule_key
  )
  data = []
  for users in slots:
    if stop.is_set():
      raise futures.CancelledError
    data.append(client_data(store, users, training, rng, apply))
  return Cohort(slots, data, time.monotonic() - start)


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


def _draw_users(
  plan: privacy_plan.PrivacyPlan,
  rng: np.random.Generator,
  round_number: int,
  schedule_key: bytes,
) -> np.ndarray:
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
      typing.assert_never(sampler)


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
