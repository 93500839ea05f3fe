"""What choosing the best of several private runs costs (arXiv 2110.03620).

Looking at n private runs and keeping the best reveals more than the best run
alone: all n count. If the number of runs is random, drawn beforehand from a
known rule and kept secret, and only the best run is released, the cost grows
far slower.
"""

import dataclasses
import math

from dp_accounting import dp_event

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant

# The shape of the truncated negative binomial that each rule is; infinity is
# its limit, Poisson.
_SHAPES = {'poisson': math.inf, 'geometric': 1.0, 'logarithmic': 0.0}
RULES = tuple(_SHAPES)
COMPOSED = 'all runs'


@dataclasses.dataclass(frozen=True)
class TuningCost:
  """Epsilon of a search for settings.

  Attributes:
    rule: How the number of runs is drawn, or 'all runs' for that many, every
      one of which may be looked at.
    mean_runs: Expected number of runs, or the number.
    guarantee: Of everything that is released.
  """

  rule: str
  mean_runs: float
  guarantee: guarantee.Guarantee


def best_of_runs(
  event: dp_event.DpEvent, *, mean_runs: float, rule: str
) -> dp_event.DpEvent:
  """Returns the event of releasing the best of a random number of runs.

  Args:
    event: Of one run, whatever its settings.
    mean_runs: Expected number, > 1 (of the number given that there is one at
      all, but for 'poisson', which may also give none).
    rule: 'poisson', 'geometric' or 'logarithmic'.

  Raises:
    PlanError: The rule is unknown, or the mean too small for any search.
  """
  if rule not in _SHAPES:
    raise guarantee.PlanError(
      f'rule must be one of {", ".join(RULES)}, got {rule!r}.'
    )
  checks.above('runs', mean_runs, 1)
  return dp_event.RepeatAndSelectDpEvent(
    event=event, mean=float(mean_runs), shape=_SHAPES[rule]
  )


def costs(
  event: dp_event.DpEvent,
  *,
  runs: int,
  delta: float,
  adjacency: guarantee.Adjacency,
) -> list[TuningCost]:
  """Returns what a search over `runs` runs costs, a row a rule.

  The first row is one run alone, the last all `runs` of them, composed.
  """
  checks.whole('runs', runs, 2)

  def cost(rule: str, number: float, whole: dp_event.DpEvent) -> TuningCost:
    found = accountant.guarantee_of_event(
      whole, delta=delta, adjacency=adjacency
    )
    return TuningCost(rule, number, found)

  rows = [cost(COMPOSED, 1, event)]
  for rule in RULES:
    rows.append(
      cost(rule, runs, best_of_runs(event, mean_runs=runs, rule=rule))
    )
  rows.append(cost(COMPOSED, runs, dp_event.SelfComposedDpEvent(event, runs)))
  return rows
