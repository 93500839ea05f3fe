"""Every mechanism that training can run, for benchmarks of the aggregator."""

from typing import Any

from tff_dpemb.privacy.mechanisms import correlated_design
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers

ROUNDS = 16
PARTICIPATION = samplers.Participation(4, 4)  # every fourth round, all 16
CLIP_NORM = 0.5


def build(
  noise_multiplier: float,
  *,
  virtual_clients: int,
  learning_rate: float = 0.2,
) -> dict[str, mechanisms.Mechanism]:
  """Returns the mechanisms by name, fitted to `ROUNDS` and `PARTICIPATION`."""
  common = (CLIP_NORM, noise_multiplier)
  adaptive: dict[str, Any] = {
    'virtual_clients': virtual_clients,
    'learning_rate': learning_rate,
  }
  found: dict[str, mechanisms.Mechanism] = {
    'fixed clip': independent.FixedClipGaussian(*common),
    'adaptive clip': independent.AdaptiveClipGaussian(*common, **adaptive),
  }
  for kind in ('tree', 'banded', 'blt'):
    strategy = correlated_design.build(
      kind, ROUNDS, participation=PARTICIPATION
    )
    found[kind] = correlated_gaussian.CorrelatedGaussian(*common, strategy)
  for kind in ('tree', 'blt'):
    strategy = correlated_design.build(
      kind, ROUNDS, participation=PARTICIPATION, restart_every=6
    )
    found[f'{kind}, adaptive clip'] = correlated_gaussian.CorrelatedGaussian(
      *common, strategy, restart_every=6, clipping='adaptive', **adaptive
    )
  return found


def query_state(state: Any) -> Any:
  """Returns the state of a mechanism's query within the aggregator's."""
  return state.query_state.numerator_state


def sum_state(state: Any) -> Any:
  """Returns the state of the sum's query: clip norm, deviation, seeds."""
  found = query_state(state)
  return getattr(found, 'sum_state', found)
