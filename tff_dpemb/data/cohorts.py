"""Who takes part in a round, and in which virtual client.

The draws are what the accounting assumes. A user enters a round independently
with one probability (Poisson sampling), or by a phase that is random and
independent of all other users' (minimum separation), or as one of exactly m
distinct users (fixed size). Each user of a round is put into a virtual client
independently of all others, so that adding or removing one user changes
exactly one virtual client.
"""

import functools
import hashlib
import secrets

import numpy as np

_KEY_BYTES = 32
_SCHEDULE_KEY_BYTES = 16


def system_rng() -> np.random.Generator:
  """Returns a generator seeded from the operating system's entropy.

  Private draws use this one; a generator with a chosen seed is for tests.
  It is a statistical generator (Philox), not a cryptographic one: the
  certificate says so.
  """
  return np.random.Generator(np.random.Philox())


def draw_cohort(
  population: int,
  probability: float,
  *,
  rng: np.random.Generator,
) -> np.ndarray:
  """Returns the users of one round: each with the same probability, alone.

  Poisson sampling in O(cohort) time and memory: the cohort's size is binomial,
  and given its size every subset is equally likely, which is the same
  distribution as one coin a user. The cohort may be empty.

  Args:
    population: Number of users, >= 0.
    probability: Chance of each user to take part, in [0, 1].
    rng: Source of the draw; `system_rng()` for a private round.

  Returns:
    int64 [cohort], distinct user indices in ascending order.

  Raises:
    ValueError: An argument is out of its range.
  """
  if population < 0:
    raise ValueError(f'population must be >= 0, got {population}.')
  if not 0 <= probability <= 1:  # Also refuses NaN.
    raise ValueError(f'probability must be in [0, 1], got {probability}.')
  size = int(rng.binomial(population, probability))
  if size == 0:
    return np.empty(0, np.int64)
  # NumPy draws small cohorts by Floyd's method, O(size), and others by a
  # partial shuffle of the population, which then is at most 20 * size.
  cohort = rng.choice(population, size, replace=False, shuffle=False)
  return np.sort(cohort.astype(np.int64))


def draw_fixed_size(
  population: int, size: int, *, rng: np.random.Generator
) -> np.ndarray:
  """Returns exactly `size` distinct users, every such set equally likely.

  Args:
    population: Number of users, >= 0.
    size: How many to draw, in [0, population].
    rng: Source of the draw; `system_rng()` for a private round.

  Returns:
    int64 [size], distinct user indices in ascending order.

  Raises:
    ValueError: An argument is out of its range.
  """
  if not 0 <= size <= population:
    raise ValueError(
      f'size must be in [0, population = {population}], got {size}.'
    )
  cohort = rng.choice(population, size, replace=False, shuffle=False)
  return np.sort(cohort.astype(np.int64))


class Schedule:
  """Who takes part when under minimum separation.

  Every user has one phase in [0, min_separation), a keyed hash of the user's
  own index, and takes part in the rounds t with t % min_separation == phase,
  the first max_participations of them. Nobody's phase depends on anybody else.
  The key is fixed for a run: a resumed run goes on with the same schedule.

  The key is drawn at random and kept as secret as the users' images. Nothing
  is gained from that (no amplification is claimed), but it is needed: with a
  random key every user's phase is uniform and independent of all others,
  wherever in the store the user is. With a known key the phases would follow
  from the positions, and removing one user moves up all users behind.
  """

  def __init__(
    self,
    population: int,
    min_separation: int,
    *,
    max_participations: int,
    key: bytes,
  ):
    """Hashes every user once: O(population).

    Args:
      population: Number of users, >= 0.
      min_separation: Rounds from one participation to the next, >= 1.
      max_participations: Most rounds of one user, >= 1.
      key: 16 bytes, drawn once for the run: `new_schedule_key()`.

    Raises:
      ValueError: An argument is out of its range.
    """
    for name, value, least in (
      ('population', population, 0),
      ('min_separation', min_separation, 1),
      ('max_participations', max_participations, 1),
    ):
      if value < least:
        raise ValueError(f'{name} must be >= {least}, got {value}.')
    if len(key) != _SCHEDULE_KEY_BYTES:
      raise ValueError(
        f'the key of a schedule must be 16 bytes, got {len(key)}; make one by'
        ' new_schedule_key().'
      )
    self._min_separation = min_separation
    self._max_participations = max_participations
    # Philox is a keyed function of a counter: output i depends on i alone.
    generator = np.random.Philox(key=int.from_bytes(key, 'little'))
    hashes = generator.random_raw(population)
    # A 64-bit hash modulo b: the bias is below b / 2**64.
    phases = (hashes % np.uint64(min_separation)).astype(np.int64)
    self._users = np.argsort(phases, kind='stable').astype(np.int64)
    self._bounds = np.searchsorted(
      phases[self._users], np.arange(min_separation + 1)
    )

  def users(self, round_number: int) -> np.ndarray:
    """Returns the users of a round, int64 [cohort], ascending; maybe none."""
    if round_number < 0:
      raise ValueError(f'round_number must be >= 0, got {round_number}.')
    earlier, phase = divmod(round_number, self._min_separation)
    if earlier >= self._max_participations:
      return np.empty(0, np.int64)
    return self._users[self._bounds[phase] : self._bounds[phase + 1]].copy()


@functools.lru_cache(maxsize=1)  # A run asks for the same one every round.
def build_schedule(
  population: int, min_separation: int, max_participations: int, key: bytes
) -> Schedule:
  """Returns the schedule of a run; arguments as of `Schedule`."""
  return Schedule(
    population,
    min_separation,
    max_participations=max_participations,
    key=key,
  )


def new_schedule_key() -> bytes:
  """Returns a key for `Schedule`, from the operating system."""
  return secrets.token_bytes(_SCHEDULE_KEY_BYTES)


def assign_virtual_clients(
  indices: np.ndarray,
  num: int,
  *,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """Returns the users of each virtual client, hashed with a fresh key.

  A key is drawn from `rng` and each user's slot is a keyed hash of its index
  alone. With the key given, removing one user leaves the slot and the order of
  every other user as they were: exactly one virtual client changes. (Cutting a
  shuffled list into groups does not have this property.)

  Users inside a virtual client are in the random order of their hashes, so
  that a cap which keeps the first k of them prefers nobody and, too, changes
  nothing outside that virtual client.

  Args:
    indices: int [cohort], distinct user indices.
    num: Number of virtual clients, > 0.
    rng: Source of the key.

  Returns:
    `num` int64 arrays that partition `indices`; some may be empty.

  Raises:
    ValueError: `num` is not positive or a user is listed twice.
  """
  if num <= 0:
    raise ValueError(f'num must be > 0, got {num}.')
  indices = np.asarray(indices, np.int64)
  if len(np.unique(indices)) != len(indices):
    raise ValueError('indices must be distinct users, got one twice.')
  key = rng.bytes(_KEY_BYTES)
  hashes = np.array(
    [_hash(key, index) for index in indices.tolist()], np.uint64
  ).reshape(-1, 2)
  # A 64-bit hash modulo num: the bias is below num / 2**64.
  slots = (hashes[:, 0] % np.uint64(num)).astype(np.int64)
  order = np.lexsort((indices, hashes[:, 1], slots))
  bounds = np.searchsorted(slots[order], np.arange(1, num))
  return np.split(indices[order], bounds)


def _hash(key: bytes, index: int) -> tuple[int, int]:
  """Returns two independent 64-bit hashes of a user index."""
  digest = hashlib.blake2b(
    index.to_bytes(8, 'little', signed=True), key=key, digest_size=16
  ).digest()
  return (
    int.from_bytes(digest[:8], 'little'),
    int.from_bytes(digest[8:], 'little'),
  )
