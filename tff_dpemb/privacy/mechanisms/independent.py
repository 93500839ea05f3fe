"""Mechanisms whose noise is new in each round, and an event a round."""

import dataclasses
import math
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import clipped_sum


def smallest_cohort(noise_multiplier: float) -> int:
  """Returns the fewest virtual clients for which adaptive clipping is legal."""
  cohort = max(
    1, math.floor(noise_multiplier / (2 * clipped_sum.CLIPPED_COUNT_SHARE))
  )
  while noise_multiplier >= 2 * clipped_sum.CLIPPED_COUNT_SHARE * cohort:
    cohort += 1
  return cohort


@dataclasses.dataclass(frozen=True)
class FixedClipGaussian(clipped_sum.ClippedSum):
  """Gaussian noise on a sum of updates clipped to a fixed norm.

  Attributes:
    clip_norm: C > 0, in units of the update.
    noise_multiplier: Standard deviation of the noise on the sum / C; 0 means
      no noise and no guarantee.
  """

  kind = 'fixed'
  clipping = 'fixed'


@dataclasses.dataclass(frozen=True)
class AdaptiveClipGaussian(clipped_sum.CountedSum):
  """Gaussian noise on a sum clipped to a norm that follows a quantile.

  A noisy count of unclipped updates moves the clip norm each round (arXiv
  1905.03871). `noise_multiplier` is the total: the value noise is raised so
  that the sum and the count together reveal exactly as much as one Gaussian of
  `noise_multiplier`. Do not correct for the count again.

  Attributes:
    clip_norm: Initial clip norm C > 0.
    noise_multiplier: z_total; 0 means no noise and no guarantee.
    virtual_clients: V, a public constant; sets the default count noise.
    clipped_count_stddev: sigma_b, noise on the count; default 0.05 V.
    target_unclipped_quantile: In (0, 1); share of updates left unclipped.
    learning_rate: Of the clip norm (geometric), >= 0; 0 never adapts.
  """

  virtual_clients: int
  clipped_count_stddev: float | None = None
  target_unclipped_quantile: float = 0.5
  learning_rate: float = 0.2

  kind = 'adaptive'
  clipping = 'adaptive'

  def __post_init__(self):
    super().__post_init__()
    by_default = self.clipped_count_stddev is None
    self.settle_count_noise()
    stddev = self.count_stddev
    if self.noise_multiplier > 0 and self.noise_multiplier >= 2 * stddev:
      if by_default:
        raise guarantee.PlanError(
          'virtual_clients must be at least'
          f' {smallest_cohort(self.noise_multiplier)} for adaptive clipping'
          f' with noise_multiplier {self.noise_multiplier}, got'
          f' {self.virtual_clients}; raise virtual_clients, lower the noise, or'
          " use clipping = 'fixed'."
        )
      raise guarantee.PlanError(
        'clipped_count_stddev must be > noise_multiplier / 2 ='
        f' {self.noise_multiplier / 2}, got {stddev}; raise it or lower the'
        ' noise.'
      )

  @property
  def value_noise_multiplier(self) -> float:
    """z_value = (z_total^-2 - (2 sigma_b)^-2)^-1/2 (arXiv 1905.03871)."""
    if self.noise_multiplier == 0:
      return 0.0
    return (self.noise_multiplier**-2 - (2 * self.count_stddev) ** -2) ** -0.5

  def components(self, sensitivity: float) -> dp_event.DpEvent:
    """Returns the value's and the count's own events, composed."""
    return dp_event.ComposedDpEvent(
      [
        clipped_sum.gaussian(self.value_noise_multiplier, sensitivity),
        clipped_sum.count_event(self.count_stddev, sensitivity),
      ]
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return self.adaptive_json()
