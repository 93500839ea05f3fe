"""The mechanism whose noise is correlated over rounds: one event a run."""

import dataclasses
import math
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_sensitivity
from tff_dpemb.privacy.mechanisms import noise_stream
from tff_dpemb.privacy.mechanisms import samplers


@dataclasses.dataclass(frozen=True)
class CorrelatedGaussian(clipped_sum.CountedSum):
  """Gaussian noise that is correlated over rounds, by a `Strategy`.

  Every round adds y_t = (C^-1 z)_t to its clipped sum, z fresh noise of
  standard deviation noise_multiplier x clip_norm a coordinate. Needs a schedule
  that limits how often a user takes part and how far apart; no sampling is
  assumed. The whole run is one event: no round has one of its own.

  With clipping 'adaptive' the clip norm is constant from one restart to the
  next, where the buffers are forgotten too, so that noise never cancels noise
  of another scale; at a restart it moves by

      clip *= exp(-learning_rate x restart_every x (fraction - target))

  where `fraction` is the mean noisy unclipped fraction of the segment that
  ended (arXiv 1905.03871, a segment at a time). Each round's count is released
  with independent noise; unlike in `AdaptiveClipGaussian`, noise_multiplier is
  that of the sum alone and the count's event is composed with it.

  Attributes:
    clip_norm: C > 0, or the initial one.
    noise_multiplier: Fresh noise / clip norm; 0 means no guarantee.
    strategy: C, with parameters.
    restart_every: Rounds of a segment; 0 never restarts.
    clipping: 'fixed' or 'adaptive'.
    virtual_clients: V, a public constant; for adaptive clipping.
    clipped_count_stddev: sigma_b, noise on a round's count; default 0.05 V, 0
      with fixed clipping.
    target_unclipped_quantile: In (0, 1); share of updates left unclipped.
    learning_rate: Of the clip norm (geometric), a round, >= 0.
  """

  strategy: correlated.Strategy
  restart_every: int = 0
  clipping: str = 'fixed'
  virtual_clients: int = 1
  clipped_count_stddev: float | None = None
  target_unclipped_quantile: float = 0.5
  learning_rate: float = 0.2

  def __post_init__(self):
    super().__post_init__()
    if not isinstance(self.strategy, correlated.Strategy):
      raise guarantee.PlanError(
        'strategy must be Tree, Banded or Blt, got'
        f' {type(self.strategy).__name__}.'
      )
    checks.whole('restart_every', self.restart_every, 0)
    if self.clipping not in ('fixed', 'adaptive'):
      raise guarantee.PlanError(
        f"clipping must be 'fixed' or 'adaptive', got {self.clipping!r}."
      )
    if self.clipping == 'fixed' and self.clipped_count_stddev is None:
      object.__setattr__(self, 'clipped_count_stddev', 0.0)
    self.settle_count_noise()
    if self.clipping == 'fixed' and self.clipped_count_stddev != 0:
      raise guarantee.PlanError(
        'clipped_count_stddev must be 0 with fixed clipping, which counts'
        f' nothing, got {self.clipped_count_stddev}.'
      )
    if self.clipping == 'adaptive' and self.restart_every == 0:
      raise guarantee.PlanError(
        'restart_every must be > 0 for adaptive clipping with correlated'
        ' noise (the clip norm moves at restarts only), got 0; set'
        " restart_every, or clipping = 'fixed'."
      )
    adaptive = self.clipping == 'adaptive' and self.noise_multiplier > 0
    if adaptive and self.clipped_count_stddev == 0:
      raise guarantee.PlanError(
        'clipped_count_stddev must be > 0 with noise, got 0; leave it out for'
        ' 5 % of the virtual clients.'
      )

  @property
  def kind(self) -> str:
    """'tree', 'banded' or 'blt'."""
    return self.strategy.kind

  def stream(self, rounds: int) -> noise_stream.NoiseStream:
    """Returns the tables of a run of `rounds` rounds, restarts inside."""
    return correlated.stream(
      self.strategy, rounds, restart_every=self.restart_every
    )

  def correlated_sensitivity(
    self, rounds: int, *, participation: samplers.Participation
  ) -> correlated_sensitivity.Sensitivity:
    """Returns how far a user moves C x, in units of a round's sensitivity."""
    return correlated_sensitivity.sensitivity(
      self.strategy,
      rounds,
      participation=participation,
      restart_every=self.restart_every,
    )

  def event(self, sensitivity: float) -> dp_event.DpEvent:
    """Correlated noise has no event of one round: see `run_event`."""
    raise guarantee.PlanError(
      'correlated noise is charged once for all its rounds, not a round at a'
      ' time; use run_event.'
    )

  def run_event(
    self,
    sensitivity: float,
    *,
    rounds: int,
    participation: samplers.Participation,
  ) -> dp_event.DpEvent:
    """Returns the event of all sums and counts of rounds 0 .. rounds - 1.

    A user moves C x by at most sensitivity x `Sensitivity.whole`, whichever
    segments that spreads over: a segment's clip norm is set by what was
    released before, and its noise scales with it. The counts see a user
    `Sensitivity.times` times.
    """
    found = self.correlated_sensitivity(rounds, participation=participation)
    return self._with_counts(sensitivity, found.whole, found.times)

  def replay_event(
    self,
    sensitivity: float,
    *,
    rounds: int,
    participation: samplers.Participation,
  ) -> dp_event.DpEvent:
    """Returns what one round that is drawn again reveals besides the run.

    Its row of C x, with other fresh noise: `Sensitivity.row`; and its count.
    """
    found = self.correlated_sensitivity(rounds, participation=participation)
    return self._with_counts(sensitivity, found.row, 1)

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value; nothing derived is trusted."""
    is_adaptive = self.clipping == 'adaptive'
    return (self.adaptive_json() if is_adaptive else super().to_json()) | {
      'strategy': self.strategy.to_json(),
      'restart_every': self.restart_every,
      'clipping': self.clipping,
    }

  def _with_counts(
    self, sensitivity: float, moved: float, times: int
  ) -> dp_event.DpEvent:
    value = clipped_sum.gaussian(self.noise_multiplier, sensitivity * moved)
    if self.clipping == 'fixed' or self.noise_multiplier == 0:
      return value
    count = clipped_sum.count_event(
      self.count_stddev, sensitivity * math.sqrt(times)
    )
    return dp_event.ComposedDpEvent([value, count])
