"""How one release spends its budget: passes, multipliers, event.

A plan is a frozen value. What is drawn (`Pass.multipliers`) and what is
accounted (`ClusteringPlan.event`) come from it and from nothing else. It is part
of the manifest of what was released by it.
"""

import math
from collections.abc import Sequence
from typing import Literal

from tff_dpemb.artifacts import documents
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import queries

WHOLE_PLAN = 'plan'  # the charge of all passes at once


class BudgetSplit(documents.Value):
  """Shares of the budget (of 1 / noise_multiplier^2), summing to 1.

  zCDP is additive in 1 / noise_multiplier^2, so shares compose exactly.

  Attributes:
    counts: Users of each class or component.
    sums: Sums of residuals: the centres.
    scatter: Second moments: the covariances.
    first_pass: Part of `sums` that the first pass gets; the others share the
      rest equally.

  Raises:
    ClusteringError: A share is out of range, or they do not sum to 1.
  """

  counts: float = 0.05
  sums: float = 0.60
  scatter: float = 0.35
  first_pass: float = 0.40

  def __init__(self, **shares: float):
    super().__init__(**shares)
    parts = (self.counts, self.sums, self.scatter)
    if not all(0 < share < 1 for share in (*parts, self.first_pass)):
      raise errors.ClusteringError(
        f'budget shares must be in (0, 1), got {parts} and first_pass'
        f' {self.first_pass}.'
      )
    if abs(sum(parts) - 1) > 1e-9:
      raise errors.ClusteringError(
        f'budget shares must sum to 1, got {sum(parts)}.'
      )


class Pass(documents.Value):
  """One pass over the users: noise multiplier of each query that it asks."""

  name: str
  counts: float | None
  sums: float
  scatter: float | None

  @property
  def multipliers(self) -> dict[str, float]:
    values = {'counts': self.counts, 'sums': self.sums, 'scatter': self.scatter}
    return {name: z for name, z in values.items() if z is not None}

  @property
  def noise_multiplier(self) -> float:
    """One joint Gaussian: a user moves all queries of the pass at once.

    With each query divided by its own noise, one user moves the stacked vector
    by at most sqrt(sum of 1/z^2): the joint sensitivity.
    """
    return sum(z**-2 for z in self.multipliers.values()) ** -0.5

  def event(self):
    """Returns the `dp_accounting` event of the pass."""
    import dp_accounting  # Slow to import.

    return dp_accounting.GaussianDpEvent(self.noise_multiplier)


class ClusteringPlan(documents.Value):
  """User-level (epsilon, delta), add-or-remove one user, no sampling."""

  unit: Literal['user'] = 'user'
  adjacency: Literal['add_or_remove_one'] = 'add_or_remove_one'
  classes: tuple[int, ...]
  components_per_class: int
  projection_dim: int
  covariance: Literal['pooled', 'per_class']
  epsilon: float
  delta: float
  noise_multiplier: float
  split: BudgetSplit
  passes: tuple[Pass, ...]

  def event(self):
    """Returns the composed `dp_accounting` event of all passes."""
    import dp_accounting  # Slow to import.

    return dp_accounting.ComposedDpEvent([step.event() for step in self.passes])

  def event_of(self, charges: Sequence[str]):
    """Returns the composed event of what was charged, repeats included.

    Args:
      charges: 'plan' for all passes, or the name of one pass that was charged
        again; each as often as it was charged.

    Raises:
      ClusteringError: A charge is neither.
    """
    import dp_accounting  # Slow to import.

    steps: dict[str, tuple[Pass, ...]] = {WHOLE_PLAN: self.passes}
    steps.update((step.name, (step,)) for step in self.passes)
    unknown = [name for name in charges if name not in steps]
    if unknown:
      raise errors.ClusteringError(
        f'charges must be among {sorted(steps)}, got {unknown[0]!r}.'
      )
    return dp_accounting.ComposedDpEvent(
      [step.event() for name in charges for step in steps[name]]
    )

  def rho(self) -> float:
    """Returns the zCDP parameter of the release."""
    return 0.5 / self.noise_multiplier**2

  def discrete_delta(self) -> float:
    """Returns what discrete instead of real noise can add to delta."""
    cells = len(self.classes) * self.components_per_class
    matrices = len(self.classes) if self.covariance == 'per_class' else 1
    dim = self.projection_dim
    sizes = {
      'counts': cells,
      'sums': cells * dim,
      'scatter': matrices * dim * (dim + 1) // 2,
    }
    distance = 0.0
    for step in self.passes:
      for name, z in step.multipliers.items():
        scale = z * queries.steps_of(name) / math.sqrt(2)
        distance += noise.distance_to_gaussian(scale, sizes[name])
    return (1 + math.exp(self.epsilon)) * distance

  def digest(self) -> str:
    """Returns the SHA-256 hex digest of the plan."""
    return documents.digest_of(self.to_json())


def build(
  classes: tuple[int, ...],
  *,
  epsilon: float,
  delta: float,
  projection_dim: int,
  components_per_class: int = 1,
  clustering_rounds: int = 2,
  covariance: Literal['pooled', 'per_class'] = 'pooled',
  split: BudgetSplit = BudgetSplit(),
) -> ClusteringPlan:
  """Returns the plan that meets (epsilon, delta) with the least noise.

  Passes: `clustering_rounds` rounds of Lloyd's algorithm with noisy sums. The
  first has one component per class about the public mean; the last also asks
  for the scatter. With several components per class at least two rounds are
  made, each with counts; with one component counts are asked once.

  Raises:
    ClusteringError: A value breaks its rule.
  """
  classes = tuple(int(label) for label in classes)
  if not classes or len(set(classes)) != len(classes) or min(classes) < 0:
    raise errors.ClusteringError(
      f'classes must be distinct and >= 0, at least one, got {classes}.'
    )
  for name, value in (
    ('components_per_class', components_per_class),
    ('clustering_rounds', clustering_rounds),
    ('projection_dim', projection_dim),
  ):
    if value < 1:
      raise errors.ClusteringError(f'{name} must be >= 1, got {value}.')
  if covariance not in ('pooled', 'per_class'):
    raise errors.ClusteringError(
      f"covariance must be 'pooled' or 'per_class', got {covariance!r}."
    )
  several = components_per_class > 1
  rounds = max(clustering_rounds, 2 if several else 1)
  multiplier = noise_multiplier_for(epsilon, delta)
  plan = ClusteringPlan(
    classes=classes,
    components_per_class=components_per_class,
    projection_dim=projection_dim,
    covariance=covariance,
    epsilon=epsilon,
    delta=delta,
    noise_multiplier=multiplier,
    split=split,
    passes=_passes(multiplier, rounds, several, split),
  )
  if plan.discrete_delta() > 1e-6 * delta:
    raise errors.ClusteringError(
      f'delta must be >= {1e6 * plan.discrete_delta():.1e} for discrete noise'
      f' at epsilon {epsilon}, got {delta}; ask for a smaller epsilon.'
    )
  return plan


def noise_multiplier_for(epsilon: float, delta: float) -> float:
  """Returns the least noise multiplier whose PLD epsilon is <= `epsilon`.

  Raises:
    ClusteringError: epsilon or delta is out of range.
  """
  if not (math.isfinite(epsilon) and 0 < epsilon <= 100):
    raise errors.ClusteringError(f'epsilon must be in (0, 100], got {epsilon}.')
  if not 0 < delta < 1:
    raise errors.ClusteringError(f'delta must be in (0, 1), got {delta}.')
  import dp_accounting  # Slow to import.

  # Exact for Gaussians; the margin pays for the PLD accountant's grid.
  return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * (1 + 2e-4)


def epsilon_of_event(event, delta: float) -> float:
  """Returns the proved epsilon of an event under add-or-remove-one."""
  from tff_dpemb.privacy import guarantee
  from tff_dpemb.privacy.accounting import accountant  # Slow to import.

  return accountant.guarantee_of_event(
    event, delta=delta, adjacency=guarantee.Adjacency.ADD_OR_REMOVE_ONE
  ).epsilon


def _passes(
  multiplier: float, rounds: int, several: bool, split: BudgetSplit
) -> tuple[Pass, ...]:
  def spend(share: float) -> float:
    return multiplier / math.sqrt(share)

  first = split.first_pass if rounds > 1 else 1.0
  sums = [first] + [(1 - first) / max(rounds - 1, 1)] * (rounds - 1)
  return tuple(
    Pass(
      name=f'centres_{i}',
      counts=spend(split.counts / (rounds if several else 1))
      if several or i == 0
      else None,
      sums=spend(split.sums * sums[i]),
      scatter=spend(split.scatter) if i == rounds - 1 else None,
    )
    for i in range(rounds)
  )
