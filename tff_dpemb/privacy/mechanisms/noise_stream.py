"""Correlated noise round by round, from a few buffers."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class NoiseStream:
  """Tables with which one round's noise follows from the buffers S [m, ...].

      y_t = z_t - read_t . S_t
      S_t+1 = keep_t S_t + write_noise_t (x) y_t + write_fresh_t (x) z_t

  with S_0 = 0, z_t fresh independent noise, y_t what is added to the sum.

  Attributes:
    read: float64 [n, m].
    keep: float64 [n, m, m].
    write_noise: float64 [n, m].
    write_fresh: float64 [n, m].
  """

  read: np.ndarray
  keep: np.ndarray
  write_noise: np.ndarray
  write_fresh: np.ndarray

  @property
  def rounds(self) -> int:
    """n."""
    return self.read.shape[0]

  @property
  def buffers(self) -> int:
    """m, how many tensors of the model's size are kept between rounds."""
    return self.read.shape[1]

  def noise(self, fresh: np.ndarray) -> np.ndarray:
    """Returns y = C^-1 z.

    Args:
      fresh: z, float [at most n, ...], one entry a round.

    Returns:
      float64 of the same shape.
    """
    fresh = np.asarray(fresh, np.float64)
    buffers = np.zeros((self.buffers, *fresh.shape[1:]))
    noise = np.empty_like(fresh)
    for t, new in enumerate(fresh):
      noise[t] = new - np.tensordot(self.read[t], buffers, 1)
      buffers = (
        np.tensordot(self.keep[t], buffers, 1)
        + np.multiply.outer(self.write_noise[t], noise[t])
        + np.multiply.outer(self.write_fresh[t], new)
      )
    return noise

  def restarted(self, rounds: int, every: int) -> 'NoiseStream':
    """Returns the stream of `rounds` that forgets its buffers `every` rounds.

    Args:
      rounds: Rounds of the new stream.
      every: Rounds between restarts, at most this stream's; 0 never restarts.
    """
    if every == 0:
      return self
    local = np.arange(rounds) % every
    last = local == every - 1
    tables = [self.read[local]]
    for table in (self.keep, self.write_noise, self.write_fresh):
      table = table[local]
      table[last] = 0.0
      tables.append(table)
    return NoiseStream(*tables)
