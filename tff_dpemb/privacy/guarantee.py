"""What was asked (Budget) and what was proved (Guarantee)."""

import dataclasses
import enum
import math


class PrivacyError(ValueError):
  """Base of the errors of this package."""


class PlanError(PrivacyError):
  """A plan or a mechanism that breaks a rule; refused when it is built."""


class AccountingError(PrivacyError):
  """A question that no accountant can answer as asked."""


class PrivacyUnit(enum.StrEnum):
  """Whose data are protected together."""

  USER = 'user'


class Adjacency(enum.StrEnum):
  """Which two data sets must be hard to tell apart."""

  ADD_OR_REMOVE_ONE = 'add-or-remove-one-user'
  REPLACE_ONE = 'replace-one-user'
  ZERO_OUT = 'zero-out-one-user'


NO_GUARANTEE = 'no guarantee'


def epsilon_text(epsilon: float) -> str:
  """Returns epsilon for people: four digits, or 'no guarantee' if infinite."""
  return f'{epsilon:.4g}' if math.isfinite(epsilon) else NO_GUARANTEE


def epsilon_to_json(epsilon: float) -> float | None:
  """Returns epsilon for JSON, which has no infinity: null is no guarantee."""
  return float(epsilon) if math.isfinite(epsilon) else None


def epsilon_from_json(epsilon: float | None) -> float:
  """Inverse of `epsilon_to_json`."""
  return math.inf if epsilon is None else float(epsilon)


@dataclasses.dataclass(frozen=True)
class Budget:
  """What may be spent on one population: epsilon at delta, over all releases.

  Attributes:
    epsilon: Greater than 0, finite.
    delta: In (0, 1).
    adjacency: The relation that the budget speaks of.
  """

  epsilon: float
  delta: float
  adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

  def __post_init__(self):
    if not (math.isfinite(self.epsilon) and self.epsilon > 0):
      raise PrivacyError(
        f'budget epsilon must be finite and > 0, got {self.epsilon}.'
      )
    if not 0 < self.delta < 1:
      raise PrivacyError(f'budget delta must be in (0, 1), got {self.delta}.')


@dataclasses.dataclass(frozen=True)
class Guarantee:
  """An (epsilon, delta) that was proved, with what it rests on.

  Attributes:
    epsilon: At least 0; `math.inf` means that there is no guarantee.
    delta: In (0, 1).
    adjacency: Relation under which it holds.
    unit: Whose data are protected together.
    accountant: 'PLD', 'RDP', 'analytic Gaussian' or 'none'.
    cross_check: Epsilon by RDP, an independent upper bound; None if RDP cannot
      answer or was the accountant itself.
    discretisation: Width of the PLD grid of privacy losses; None if not PLD.
    mu_gdp: mu of Gaussian DP when the whole event is an unsampled Gaussian.
    zcdp_rho: rho of zCDP when the whole event has one.
    assumptions: What the figure rests on, one sentence each.
    warnings: What a reader should look into, one sentence each.
  """

  epsilon: float
  delta: float
  adjacency: Adjacency
  unit: PrivacyUnit = PrivacyUnit.USER
  accountant: str = 'PLD'
  cross_check: float | None = None
  discretisation: float | None = None
  mu_gdp: float | None = None
  zcdp_rho: float | None = None
  assumptions: tuple[str, ...] = ()
  warnings: tuple[str, ...] = ()

  @property
  def is_private(self) -> bool:
    """Whether epsilon is finite."""
    return math.isfinite(self.epsilon)

  def describe(self) -> str:
    """Returns one line for people."""
    if not self.is_private:
      return f'{NO_GUARANTEE} ({self.unit.value} level, {self.adjacency.value})'
    return (
      f'epsilon {epsilon_text(self.epsilon)} at delta {self.delta:.3g}'
      f' ({self.unit.value} level, {self.adjacency.value},'
      f' {self.accountant})'
    )
