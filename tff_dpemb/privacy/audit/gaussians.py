"""Epsilon of two Gaussians, from what tells them apart."""

import functools
import math

from dp_accounting import gaussian_mechanism

_LARGEST_EPSILON = 1e6


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(mu: float, delta: float) -> float:
  """Returns epsilon at delta of mu-Gaussian DP (arXiv 1905.02383, cor. 1)."""
  if mu <= 0:
    return 0.0
  return float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta))


def epsilon_of_gaussians(
  one: tuple[float, float], other: tuple[float, float], *, delta: float
) -> float:
  """Returns the epsilon at which two Gaussians are (epsilon, delta)-close.

  Each is (mean, standard deviation), the deviations may differ. Infinite if
  no finite epsilon up to 1e6 suffices, as for two different constants.
  """
  (mean, stddev), (mean2, stddev2) = one, other
  if min(stddev, stddev2) <= 0:
    return 0.0 if mean == mean2 and stddev == stddev2 else math.inf

  def needed(epsilon: float) -> float:
    return max(
      _hockey_stick(one, other, epsilon), _hockey_stick(other, one, epsilon)
    )

  if needed(0.0) <= delta:
    return 0.0
  low, high = 0.0, 1.0
  while needed(high) > delta:
    if high > _LARGEST_EPSILON:
      return math.inf
    low, high = high, 2 * high
  for _ in range(60):
    middle = (low + high) / 2
    low, high = (middle, high) if needed(middle) > delta else (low, middle)
  return high


def _hockey_stick(
  one: tuple[float, float], other: tuple[float, float], epsilon: float
) -> float:
  """Returns P(R) - e^epsilon Q(R), R = where log p/q > epsilon."""
  (m, s), (n, t) = one, other
  # log p/q (x) = a x^2 + b x + c.
  a = 0.5 / t**2 - 0.5 / s**2
  b = m / s**2 - n / t**2
  c = 0.5 * (n / t) ** 2 - 0.5 * (m / s) ** 2 + math.log(t / s) - epsilon

  def gap(low: float, high: float) -> float:
    mass = _mass((low - m) / s, (high - m) / s)
    against = _mass((low - n) / t, (high - n) / t)
    if against == 0:
      return mass
    return mass - math.exp(min(epsilon + math.log(against), 700.0))

  if abs(a) < 1e-12 * (0.5 / t**2 + 0.5 / s**2):
    if b == 0:
      return gap(-math.inf, math.inf) if c > 0 else 0.0
    return gap(-c / b, math.inf) if b > 0 else gap(-math.inf, -c / b)
  square = b * b - 4 * a * c
  if square <= 0:
    return gap(-math.inf, math.inf) if a > 0 else 0.0
  root = math.sqrt(square)
  low, high = sorted(((-b - root) / (2 * a), (-b + root) / (2 * a)))
  if a > 0:
    return gap(-math.inf, low) + gap(high, math.inf)
  return gap(low, high)


def _mass(low: float, high: float) -> float:
  """Returns the standard normal's probability of (low, high), tails exact."""
  if low > 0:
    low, high = -high, -low
  root = math.sqrt(2)
  return (math.erfc(-high / root) - math.erfc(-low / root)) / 2
