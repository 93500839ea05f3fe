"""What all mechanisms share: clipped sums and counts with Gaussian noise.

Each value bounds the contribution of one virtual client to a sum by
`clip_norm` (L2) and adds Gaussian noise to the sum. `noise_multiplier` is
nominal: standard deviation of the noise on the sum / clip_norm. What it buys
depends on `sensitivity_multiple`, how many clip norms one user moves the sum by:

* A user shares a virtual client with others (the default). Adding, removing,
  replacing or zeroing the user moves that virtual client's clipped update from
  u to u', both of norm <= C: the sum moves by up to 2C.
* No virtual client ever holds more than one user. Adding, removing or zeroing
  a user moves the sum by up to C; replacing one still by up to 2C.

The clipped count of adaptive clipping (bits -1/2 and +1/2) doubles in the same
way: a bit that flips moves the sum by 1, a bit that comes or goes by 1/2.
"""

import dataclasses
from typing import Any, ClassVar

from dp_accounting import dp_event

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee

# Standard deviation of the clipped count's noise, as a share of the virtual
# clients: arXiv 1905.03871, section 3, and TFF's default.
CLIPPED_COUNT_SHARE = 0.05

# What adaptive clipping needs besides sigma_b.
ADAPTIVE_FIELDS = (
  'virtual_clients',
  'target_unclipped_quantile',
  'learning_rate',
)

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


@dataclasses.dataclass(frozen=True)
class ClippedSum:
  """What all mechanisms share: a clipped sum and Gaussian noise on it."""

  clip_norm: float
  noise_multiplier: float

  kind: ClassVar[Any]  # A text, or a property of the value.

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

  def event(self, sensitivity: float) -> dp_event.DpEvent:
    """Returns the event of all that one round releases, unsampled.

    The sum, and with adaptive clipping the count too (one Gaussian that is
    exactly as revealing as both): noise_multiplier / sensitivity.

    Args:
      sensitivity: `sensitivity_multiple` of the plan.
    """
    return gaussian(self.noise_multiplier, sensitivity)

  def to_json(self) -> dict[str, Any]:
    """Returns the parameters as a JSON value; nothing derived is trusted."""
    return {
      'kind': self.kind,
      'clip_norm': self.clip_norm,
      'noise_multiplier': self.noise_multiplier,
      'value_noise_multiplier': self.value_noise_multiplier,
      'clipped_count_stddev': self.count_stddev,
    }


class CountedSum(ClippedSum):
  """One whose clip norm may follow noisy counts of the unclipped updates."""

  virtual_clients: int
  clipped_count_stddev: float | None
  target_unclipped_quantile: float
  learning_rate: float

  @property
  def count_stddev(self) -> float:
    """sigma_b; never None, unlike the field of a value in the making."""
    return float(self.clipped_count_stddev or 0.0)

  def settle_count_noise(self) -> None:
    """Checks the fields of adaptive clipping and sets the default sigma_b."""
    checks.whole('virtual_clients', self.virtual_clients, 1)
    checks.inside(
      'target_unclipped_quantile', self.target_unclipped_quantile, 0, 1
    )
    checks.at_least('clip_learning_rate', self.learning_rate, 0)
    if self.clipped_count_stddev is None:
      noisy = self.noise_multiplier > 0
      default = CLIPPED_COUNT_SHARE * self.virtual_clients if noisy else 0.0
      object.__setattr__(self, 'clipped_count_stddev', default)
    checks.at_least('clipped_count_stddev', self.clipped_count_stddev, 0)

  def adaptive_json(self) -> dict[str, Any]:
    """Returns `to_json` with the fields of adaptive clipping."""
    return ClippedSum.to_json(self) | {
      name: getattr(self, name) for name in ADAPTIVE_FIELDS
    }


def gaussian(noise_multiplier: float, multiple: float) -> dp_event.DpEvent:
  if noise_multiplier == 0:
    return dp_event.NonPrivateDpEvent()
  return dp_event.GaussianDpEvent(noise_multiplier / multiple)


def count_event(stddev: float, multiple: float) -> dp_event.DpEvent:
  """A bit that comes or goes moves the count by 1/2, one that flips by 1."""
  return gaussian(2 * stddev, multiple)
