"""Mechanisms as frozen values: what is clipped, what noise is added.

Each value bounds the contribution of one virtual client to a sum by
`clip_norm` (L2) and adds Gaussian noise to the sum. `noise_multiplier` is
nominal: standard deviation of the noise on the sum / clip_norm. What it buys
depends on `sensitivity(adjacency)`, which is a multiple of clip_norm:

* A user shares a virtual client with others (the default). Adding, removing,
  replacing or zeroing the user moves that virtual client's clipped update from
  u to u', both of norm <= C: the sum moves by up to 2C.
* No virtual client ever holds more than one user. Adding, removing or zeroing
  a user moves the sum by up to C; replacing one still by up to 2C.

The clipped count of adaptive clipping (bits -1/2 and +1/2) doubles in the same
way: a bit that flips moves the sum by 1, a bit that comes or goes by 1/2.

Independent noise (`FixedClipGaussian`, `AdaptiveClipGaussian`) has an event a
round; correlated noise (`CorrelatedGaussian`) only one for the whole run.
"""

import dataclasses
import math
from typing import Any, TypeGuard

from dp_accounting import dp_event

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_sensitivity

# Standard deviation of the clipped count's noise, as a share of the virtual
# clients: arXiv 1905.03871, section 3, and TFF's default.
CLIPPED_COUNT_SHARE = 0.05

# Below it, float32 may lose a norm to underflow. Below the other one, epsilon
# is beyond 10^17 and accountants overflow.
SMALLEST_CLIP_NORM = 1e-12
_SMALLEST_MULTIPLIER = 1e-9


def sensitivity_multiple(
  adjacency: guarantee.Adjacency, *, shares_virtual_client: bool = True
) -> float:
  """Returns by how many clip norms one user can move the sum: 1 or 2."""
  if shares_virtual_client or adjacency is guarantee.Adjacency.REPLACE_ONE:
    return 2.0
  return 1.0


def smallest_cohort(noise_multiplier: float) -> int:
  """Returns the fewest virtual clients for which adaptive clipping is legal."""
  cohort = max(1, math.floor(noise_multiplier / (2 * CLIPPED_COUNT_SHARE)))
  while noise_multiplier >= 2 * CLIPPED_COUNT_SHARE * cohort:
    cohort += 1
  return cohort


@dataclasses.dataclass(frozen=True)
class _ClippedSum:
  """What all mechanisms share: a clipped sum and Gaussian noise on it."""

  clip_norm: float
  noise_multiplier: float

  def __post_init__(self):
    checks.above('clip_norm', self.clip_norm, 0)
    checks.at_least('clip_norm', self.clip_norm, SMALLEST_CLIP_NORM)
    checks.at_least('noise_multiplier', self.noise_multiplier, 0)
    if self.noise_multiplier > 0:  # None at all is a choice; less is a slip.
      checks.at_least(
        'noise_multiplier', self.noise_multiplier, _SMALLEST_MULTIPLIER
      )

  @property
  def value_noise_multiplier(self) -> float:
    """Standard deviation of a round's fresh noise / clip_norm."""
    return self.noise_multiplier

  @property
  def count_stddev(self) -> float:
    """Noise on the clipped count; 0 where none is released."""
    return 0.0

  def sensitivity(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> float:
    """Returns the L2 sensitivity of one round's sum, in clip norms."""
    return sensitivity_multiple(
      adjacency, shares_virtual_client=shares_virtual_client
    )

  def event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns the event of all that one round releases, unsampled.

    The sum, and with adaptive clipping the count too (one Gaussian that is
    exactly as revealing as both): noise_multiplier / sensitivity.
    """
    return _gaussian(
      self.noise_multiplier,
      self.sensitivity(adjacency, shares_virtual_client=shares_virtual_client),
    )


@dataclasses.dataclass(frozen=True)
class FixedClipGaussian(_ClippedSum):
  """Gaussian noise on a sum of updates clipped to a fixed norm.

  Attributes:
    clip_norm: C > 0, in units of the update.
    noise_multiplier: Standard deviation of the noise on the sum / C; 0 means
      no noise and no guarantee.
  """

  kind = 'fixed'
  clipping = 'fixed'

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return _common_json(self)


@dataclasses.dataclass(frozen=True)
class AdaptiveClipGaussian(_ClippedSum):
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
    _settle_count_noise(self)
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
  def count_stddev(self) -> float:
    """sigma_b; never None, unlike the field of a value in the making."""
    return float(self.clipped_count_stddev or 0.0)

  @property
  def value_noise_multiplier(self) -> float:
    """z_value = (z_total^-2 - (2 sigma_b)^-2)^-1/2 (arXiv 1905.03871)."""
    if self.noise_multiplier == 0:
      return 0.0
    return (self.noise_multiplier**-2 - (2 * self.count_stddev) ** -2) ** -0.5

  def components(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns the value's and the count's own events, composed."""
    multiple = self.sensitivity(
      adjacency, shares_virtual_client=shares_virtual_client
    )
    return dp_event.ComposedDpEvent(
      [
        _gaussian(self.value_noise_multiplier, multiple),
        _count_event(self.count_stddev, multiple),
      ]
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return _common_json(self) | _adaptive_json(self)


@dataclasses.dataclass(frozen=True)
class CorrelatedGaussian(_ClippedSum):
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
    _settle_count_noise(self)
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

  @property
  def count_stddev(self) -> float:
    """sigma_b; never None, unlike the field of a value in the making."""
    return float(self.clipped_count_stddev or 0.0)

  def stream(self, rounds: int) -> correlated.NoiseStream:
    """Returns the tables of a run of `rounds` rounds, restarts inside."""
    return correlated.stream(
      self.strategy, rounds, restart_every=self.restart_every
    )

  def correlated_sensitivity(
    self, rounds: int, *, participation: correlated.Participation
  ) -> correlated_sensitivity.Sensitivity:
    """Returns how far a user moves C x, in units of a round's sensitivity."""
    return correlated_sensitivity.sensitivity(
      self.strategy,
      rounds,
      participation=participation,
      restart_every=self.restart_every,
    )

  def event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Correlated noise has no event of one round: see `run_event`."""
    raise guarantee.PlanError(
      'correlated noise is charged once for all its rounds, not a round at a'
      ' time; use run_event.'
    )

  def run_event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    rounds: int,
    participation: correlated.Participation,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns the event of all sums and counts of rounds 0 .. rounds - 1.

    A user moves C x by at most sensitivity x `Sensitivity.whole`, whichever
    segments that spreads over: a segment's clip norm is set by what was
    released before, and its noise scales with it. The counts see a user
    `Sensitivity.times` times.
    """
    found = self.correlated_sensitivity(rounds, participation=participation)
    multiple = self.sensitivity(
      adjacency, shares_virtual_client=shares_virtual_client
    )
    return self._with_counts(found.whole, multiple, found.times)

  def replay_event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    rounds: int,
    participation: correlated.Participation,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns what one round that is drawn again reveals besides the run.

    Its row of C x, with other fresh noise: `Sensitivity.row`; and its count.
    """
    found = self.correlated_sensitivity(rounds, participation=participation)
    multiple = self.sensitivity(
      adjacency, shares_virtual_client=shares_virtual_client
    )
    return self._with_counts(found.row, multiple, 1)

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value; nothing derived is trusted."""
    content = _common_json(self) | {
      'strategy': self.strategy.to_json(),
      'restart_every': self.restart_every,
      'clipping': self.clipping,
    }
    if self.clipping == 'adaptive':
      content |= _adaptive_json(self)
    return content

  def _with_counts(
    self, sensitivity: float, multiple: float, times: int
  ) -> dp_event.DpEvent:
    value = _gaussian(self.noise_multiplier, multiple * sensitivity)
    if self.clipping == 'fixed' or self.noise_multiplier == 0:
      return value
    count = _count_event(self.count_stddev, multiple * math.sqrt(times))
    return dp_event.ComposedDpEvent([value, count])


Mechanism = FixedClipGaussian | AdaptiveClipGaussian | CorrelatedGaussian


def is_adaptive(
  mechanism: Mechanism,
) -> TypeGuard[AdaptiveClipGaussian | CorrelatedGaussian]:
  """Whether the clip norm moves, hence clipped counts are released."""
  return mechanism.clipping == 'adaptive'


def from_json(content: dict[str, Any]) -> Mechanism:
  """Returns the mechanism of `to_json`'s value.

  Raises:
    PlanError: The kind is unknown, a field is missing or no number, or the two
      noises do not belong to the total.
  """
  try:
    clip_and_noise = (content['clip_norm'], content['noise_multiplier'])
    adaptive = {
      name: content[name] for name in _ADAPTIVE_FIELDS if name in content
    }
    adaptive['clipped_count_stddev'] = content['clipped_count_stddev']
    match content['kind']:
      case 'fixed':
        mechanism: Mechanism = FixedClipGaussian(*clip_and_noise)
      case 'adaptive':
        for name in _ADAPTIVE_FIELDS:
          content[name]  # All must be there.
        mechanism = AdaptiveClipGaussian(*clip_and_noise, **adaptive)
      case 'tree' | 'banded' | 'blt' as kind:
        strategy = correlated.strategy_from_json(content['strategy'])
        if strategy.kind != kind:
          raise guarantee.PlanError(
            f'strategy must be {kind!r} as the mechanism, got'
            f' {strategy.kind!r}.'
          )
        if content['clipping'] == 'adaptive':
          for name in _ADAPTIVE_FIELDS:
            content[name]
        mechanism = CorrelatedGaussian(
          *clip_and_noise,
          strategy,
          restart_every=content['restart_every'],
          clipping=content['clipping'],
          **adaptive,
        )
      case kind:
        raise guarantee.PlanError(
          "mechanism kind must be 'fixed', 'adaptive', 'tree', 'banded' or"
          f" 'blt', got {kind!r}."
        )
  except KeyError as error:
    raise guarantee.PlanError(f'mechanism must have {error}.') from error
  for name, computed in (
    ('value_noise_multiplier', mechanism.value_noise_multiplier),
    ('clipped_count_stddev', mechanism.count_stddev),
  ):
    stated: Any = content.get(name)
    if not checks.is_number(stated) or not math.isclose(
      stated, computed, rel_tol=1e-9
    ):
      raise guarantee.PlanError(
        f'{name} must be {computed!r} for noise_multiplier'
        f' {mechanism.noise_multiplier}, got {stated!r}.'
      )
  return mechanism


_ADAPTIVE_FIELDS = (
  'virtual_clients',
  'target_unclipped_quantile',
  'learning_rate',
)


def _common_json(mechanism: Mechanism) -> dict[str, Any]:
  return {
    'kind': mechanism.kind,
    'clip_norm': mechanism.clip_norm,
    'noise_multiplier': mechanism.noise_multiplier,
    'value_noise_multiplier': mechanism.value_noise_multiplier,
    'clipped_count_stddev': mechanism.count_stddev,
  }


def _adaptive_json(
  mechanism: AdaptiveClipGaussian | CorrelatedGaussian,
) -> dict[str, Any]:
  return {name: getattr(mechanism, name) for name in _ADAPTIVE_FIELDS}


def _settle_count_noise(
  mechanism: AdaptiveClipGaussian | CorrelatedGaussian,
) -> None:
  """Checks the fields of adaptive clipping and sets the default sigma_b."""
  checks.whole('virtual_clients', mechanism.virtual_clients, 1)
  checks.inside(
    'target_unclipped_quantile', mechanism.target_unclipped_quantile, 0, 1
  )
  checks.at_least('clip_learning_rate', mechanism.learning_rate, 0)
  if mechanism.clipped_count_stddev is None:
    noisy = mechanism.noise_multiplier > 0
    default = CLIPPED_COUNT_SHARE * mechanism.virtual_clients if noisy else 0.0
    object.__setattr__(mechanism, 'clipped_count_stddev', default)
  checks.at_least('clipped_count_stddev', mechanism.clipped_count_stddev, 0)


def _gaussian(noise_multiplier: float, multiple: float) -> dp_event.DpEvent:
  if noise_multiplier == 0:
    return dp_event.NonPrivateDpEvent()
  return dp_event.GaussianDpEvent(noise_multiplier / multiple)


def _count_event(stddev: float, multiple: float) -> dp_event.DpEvent:
  """A bit that comes or goes moves the count by 1/2, one that flips by 1."""
  return _gaussian(2 * stddev, multiple)
