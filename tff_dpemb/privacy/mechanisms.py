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
"""

import dataclasses
import math
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee

# Standard deviation of the clipped count's noise, as a share of the virtual
# clients: arXiv 1905.03871, section 3, and TFF's default.
CLIPPED_COUNT_SHARE = 0.05


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
class FixedClipGaussian:
  """Gaussian noise on a sum of updates clipped to a fixed norm.

  Attributes:
    clip_norm: C > 0, in units of the update.
    noise_multiplier: Standard deviation of the noise on the sum / C; 0 means
      no noise and no guarantee.
  """

  clip_norm: float
  noise_multiplier: float

  def __post_init__(self):
    _check_common(self)

  @property
  def kind(self) -> str:
    """'fixed'."""
    return 'fixed'

  @property
  def value_noise_multiplier(self) -> float:
    """Noise on the sum of updates / C: all of it."""
    return self.noise_multiplier

  @property
  def clipped_count_stddev(self) -> float:
    """0: no count is released."""
    return 0.0

  def sensitivity(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> float:
    """Returns the L2 sensitivity of the sum as a multiple of clip_norm."""
    return sensitivity_multiple(
      adjacency, shares_virtual_client=shares_virtual_client
    )

  def event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns the event of one noisy sum: noise / sensitivity, unsampled."""
    return _gaussian(
      self.noise_multiplier,
      self.sensitivity(adjacency, shares_virtual_client=shares_virtual_client),
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return {
      'kind': self.kind,
      'clip_norm': self.clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'value_noise_multiplier': self.value_noise_multiplier,
      'clipped_count_stddev': self.clipped_count_stddev,
    }


@dataclasses.dataclass(frozen=True)
class AdaptiveClipGaussian:
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

  clip_norm: float
  noise_multiplier: float
  virtual_clients: int
  clipped_count_stddev: float | None = None
  target_unclipped_quantile: float = 0.5
  learning_rate: float = 0.2

  def __post_init__(self):
    _check_common(self)
    if self.virtual_clients < 1:
      raise guarantee.PlanError(
        f'virtual_clients must be >= 1, got {self.virtual_clients}.'
      )
    if not 0 < self.target_unclipped_quantile < 1:
      raise guarantee.PlanError(
        'target_unclipped_quantile must be in (0, 1), got'
        f' {self.target_unclipped_quantile}.'
      )
    if not (math.isfinite(self.learning_rate) and self.learning_rate >= 0):
      raise guarantee.PlanError(
        f'clip_learning_rate must be finite and >= 0, got {self.learning_rate}.'
      )
    by_default = self.clipped_count_stddev is None
    if by_default:
      noisy = self.noise_multiplier > 0
      default = CLIPPED_COUNT_SHARE * self.virtual_clients if noisy else 0.0
      object.__setattr__(self, 'clipped_count_stddev', default)
    stddev = self._count_stddev
    if not (math.isfinite(stddev) and stddev >= 0):
      raise guarantee.PlanError(
        f'clipped_count_stddev must be finite and >= 0, got {stddev}.'
      )
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
  def _count_stddev(self) -> float:
    """sigma_b; never None once the value is made."""
    return float(self.clipped_count_stddev or 0.0)

  @property
  def kind(self) -> str:
    """'adaptive'."""
    return 'adaptive'

  @property
  def value_noise_multiplier(self) -> float:
    """z_value = (z_total^-2 - (2 sigma_b)^-2)^-1/2 (arXiv 1905.03871)."""
    if self.noise_multiplier == 0:
      return 0.0
    return (self.noise_multiplier**-2 - (2 * self._count_stddev) ** -2) ** -0.5

  def sensitivity(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> float:
    """Returns the L2 sensitivity of the sum as a multiple of clip_norm."""
    return sensitivity_multiple(
      adjacency, shares_virtual_client=shares_virtual_client
    )

  def event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns the event of one round's sum *and* count, unsampled.

    One Gaussian that is exactly as revealing as `components` together.
    """
    return _gaussian(
      self.noise_multiplier,
      self.sensitivity(adjacency, shares_virtual_client=shares_virtual_client),
    )

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
        # A bit that comes or goes moves the count by 1/2, one that flips by 1.
        _gaussian(2 * self._count_stddev, multiple),
      ]
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return {
      'kind': self.kind,
      'clip_norm': self.clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'value_noise_multiplier': self.value_noise_multiplier,
      'clipped_count_stddev': self.clipped_count_stddev,
      'virtual_clients': self.virtual_clients,
      'target_unclipped_quantile': self.target_unclipped_quantile,
      'learning_rate': self.learning_rate,
    }


@dataclasses.dataclass(frozen=True)
class TreeGaussian:
  """Tree-aggregated noise on prefix sums (DP-FTRL, arXiv 2103.00039).

  No sampling is assumed: each user takes part in at most one round of a tree.
  Accounting only: no runtime draws it yet.

  Attributes:
    clip_norm: Fixed for the whole tree, > 0.
    noise_multiplier: Noise of one tree node / C; 0 means no guarantee.
  """

  clip_norm: float
  noise_multiplier: float

  def __post_init__(self):
    _check_common(self)

  @property
  def kind(self) -> str:
    """'tree'."""
    return 'tree'

  @property
  def value_noise_multiplier(self) -> float:
    """Noise of one tree node / C."""
    return self.noise_multiplier

  @property
  def clipped_count_stddev(self) -> float:
    """0: no count is released."""
    return 0.0

  def sensitivity(
    self,
    adjacency: guarantee.Adjacency,
    *,
    shares_virtual_client: bool = True,
  ) -> float:
    """Returns how far one user moves one node's sum, in clip norms."""
    return sensitivity_multiple(
      adjacency, shares_virtual_client=shares_virtual_client
    )

  def event(
    self,
    adjacency: guarantee.Adjacency,
    *,
    steps: int,
    shares_virtual_client: bool = True,
  ) -> dp_event.DpEvent:
    """Returns the event of one whole tree of `steps` rounds."""
    if self.noise_multiplier == 0:
      return dp_event.NonPrivateDpEvent()
    multiple = self.sensitivity(
      adjacency, shares_virtual_client=shares_virtual_client
    )
    # By keyword: the order of these two is easily mistaken.
    return dp_event.SingleEpochTreeAggregationDpEvent(
      noise_multiplier=self.noise_multiplier / multiple, step_counts=steps
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value."""
    return {
      'kind': self.kind,
      'clip_norm': self.clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'value_noise_multiplier': self.value_noise_multiplier,
      'clipped_count_stddev': self.clipped_count_stddev,
    }


Mechanism = FixedClipGaussian | AdaptiveClipGaussian | TreeGaussian


def from_json(content: dict[str, Any]) -> Mechanism:
  """Returns the mechanism of `to_json`'s value.

  Raises:
    PlanError: The kind is unknown, a field is missing, or the two noises do
      not belong to the total.
  """
  try:
    match content['kind']:
      case 'fixed':
        mechanism: Mechanism = FixedClipGaussian(
          content['clip_norm'], content['noise_multiplier']
        )
      case 'tree':
        mechanism = TreeGaussian(
          content['clip_norm'], content['noise_multiplier']
        )
      case 'adaptive':
        mechanism = AdaptiveClipGaussian(
          content['clip_norm'],
          content['noise_multiplier'],
          virtual_clients=content['virtual_clients'],
          clipped_count_stddev=content['clipped_count_stddev'],
          target_unclipped_quantile=content['target_unclipped_quantile'],
          learning_rate=content['learning_rate'],
        )
      case kind:
        raise guarantee.PlanError(
          f"mechanism kind must be 'fixed', 'adaptive' or 'tree', got {kind!r}."
        )
  except KeyError as error:
    raise guarantee.PlanError(f'mechanism must have {error}.') from error
  for name in ('value_noise_multiplier', 'clipped_count_stddev'):
    stated, computed = content.get(name), getattr(mechanism, name)
    if stated is None or not math.isclose(stated, computed, rel_tol=1e-9):
      raise guarantee.PlanError(
        f'{name} must be {computed!r} for noise_multiplier'
        f' {mechanism.noise_multiplier}, got {stated!r}.'
      )
  return mechanism


def _gaussian(noise_multiplier: float, multiple: float) -> dp_event.DpEvent:
  if noise_multiplier == 0:
    return dp_event.NonPrivateDpEvent()
  return dp_event.GaussianDpEvent(noise_multiplier / multiple)


def _check_common(mechanism: Any) -> None:
  if not (math.isfinite(mechanism.clip_norm) and mechanism.clip_norm > 0):
    raise guarantee.PlanError(
      f'clip_norm must be finite and > 0, got {mechanism.clip_norm}.'
    )
  if not (
    math.isfinite(mechanism.noise_multiplier)
    and mechanism.noise_multiplier >= 0
  ):
    raise guarantee.PlanError(
      'noise_multiplier must be finite and >= 0, got'
      f' {mechanism.noise_multiplier}.'
    )
