"""Noisy second moments made usable: symmetric, shrunk, positive definite.

At small n a noisy moment has negative eigenvalues (33 of 64 at 20 users,
11 of 64 at 5 000 for epsilon 1) and must not be sampled from as it is.
All of this is post-processing of released values.
"""

import dataclasses

import numpy as np

_FLOOR_SHARE = 1e-3  # eigenvalue floor / mean eigenvalue of the target


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
  """A positive definite covariance and what was done to get it.

  Attributes:
    matrix: [d, d] symmetric, eigenvalues >= floor.
    shrinkage: Weight of the target in [0, 1].
    floor: The eigenvalue floor.
    floored: How many eigenvalues were raised to the floor.
  """

  matrix: np.ndarray
  shrinkage: float
  floor: float
  floored: int


def repair(
  noisy: np.ndarray, target: np.ndarray, *, noise_energy: float
) -> Repaired:
  """Returns the noisy covariance shrunk to a public target and made PSD.

  The target is rescaled to the noisy trace (when that is positive); its weight
  is the share of noise in the squared distance between the two, as in Ledoit
  and Wolf (2004), so that it is 1 when the noise explains all of it. The
  result is defined for every input: entries that are not finite count as 0.

  Args:
    noisy: [d, d] noisy covariance.
    target: [d, d] public positive semi-definite matrix, trace > 0.
    noise_energy: Expected squared Frobenius norm of the noise in `noisy`.
  """
  dim = len(target)
  noisy = np.nan_to_num(noisy, nan=0.0, posinf=0.0, neginf=0.0)
  noisy = (noisy + noisy.T) / 2
  trace = float(np.trace(noisy))
  trace_noise = (max(noise_energy, 0.0) / dim) ** 0.5
  scale = max(trace, 0.0) / float(np.trace(target))
  if not np.isfinite(scale) or trace < 2 * trace_noise:
    scale = 1.0  # The trace itself is noise: keep the public scale.
  target = target * scale
  distance = float(np.square(noisy - target).sum())
  shrinkage = 1.0
  if distance > 0 and np.isfinite(noise_energy):
    shrinkage = min(1.0, max(noise_energy, 0.0) / distance)
  mixed = (1 - shrinkage) * noisy + shrinkage * target
  floor = _FLOOR_SHARE * float(np.trace(target)) / dim
  values, vectors = np.linalg.eigh(mixed)
  matrix = (vectors * np.maximum(values, floor)) @ vectors.T
  return Repaired(
    matrix=(matrix + matrix.T) / 2,
    shrinkage=shrinkage,
    floor=floor,
    floored=int((values < floor).sum()),
  )
