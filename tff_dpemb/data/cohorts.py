"""Who takes part in a round, and in which virtual client.

Both draws are what the accounting assumes: each user enters a round
independently with one probability (Poisson sampling), and each sampled user is
put into a virtual client independently of all others, so that adding or
removing one user changes exactly one virtual client.
"""

import hashlib

import numpy as np

_KEY_BYTES = 32


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
