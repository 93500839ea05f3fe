"""Figures of a certificate, as stated and as recomputed."""

import math
from collections.abc import Mapping
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import document

TOLERANCE = 1e-6  # Relative; the accounting is deterministic.
_ROWS = ('epsilon_at_deltas', 'profile', 'groups')
_BOUNDS = (
  'epsilon',
  'unamplified_epsilon',
  'mu_gdp',
  'zcdp_rho',
  'unamplified_mu_gdp',
  'unamplified_zcdp_rho',
)


def too_small(
  name: str, stated: float | None, least: float | None, reason: str
) -> list[str]:
  """Checks that a bound is not below the least; None is infinite."""
  bound, value = (guarantee_lib.epsilon_from_json(x) for x in (least, stated))
  if value >= bound or math.isclose(value, bound, rel_tol=TOLERANCE):
    return []
  return [
    f'{name} must be at least {guarantee_lib.epsilon_text(bound)} ({reason}),'
    f' got {stated}.'
  ]


def differs(
  name: str,
  stated: float | None,
  computed: float | None,
  *,
  slack: float = 1e-300,
) -> list[str]:
  """Checks that two numbers are equal but for rounding; None only is None."""
  if stated is None or computed is None:
    same = stated is None and computed is None
  else:
    same = math.isclose(stated, computed, rel_tol=TOLERANCE, abs_tol=slack)
  return [] if same else [f'{name} must be {computed}, got {stated}.']


def problems(
  stated: document.Accounting, found: accounting.Revealed
) -> list[str]:
  """Returns where the stated figures are not what follows.

  Of the method of this release, each must be what is recomputed, but for
  rounding. Of another, no bound may be below what this method computes, and
  nothing may be claimed that it cannot.
  """
  computed = accounting.account(found, stated.delta)
  if stated.method == computed.method:
    return _changes(stated.to_json(), computed.to_json(), name='accounting')
  if not _same_event(stated.event, found.event):
    return ['accounting.event must be what mechanism and sampling come to.']
  computed = accounting.account(
    found,
    stated.delta,
    headline=[row.delta for row in stated.epsilon_at_deltas],
    deltas=[row.delta for row in stated.profile],
    groups=[row.users for row in stated.groups],
  )
  # What is None is not claimed: no number is below it.
  bounds = [
    (name, getattr(stated, name), getattr(computed, name)) for name in _BOUNDS
  ]
  for name in _ROWS:
    rows = zip(getattr(stated, name), getattr(computed, name), strict=True)
    bounds += [
      (f'{name}[{index}].epsilon', one.epsilon, other.epsilon)
      for index, (one, other) in enumerate(rows)
    ]
  if computed.cross_check_epsilon is not None:
    checked = (stated.cross_check_epsilon, computed.cross_check_epsilon)
    bounds.append(('cross_check_epsilon', *checked))
  curve, least = stated.mu_gdp_bound, computed.mu_gdp_bound
  if curve is not None:
    is_known = least is not None and curve.least_delta >= least.least_delta
    mu = least.mu if least is not None and is_known else None
    bounds.append(('mu_gdp_bound.mu', curve.mu, mu))
  return [
    problem
    for name, value, least_value in bounds
    for problem in too_small(
      f'accounting.{name}',
      value,
      least_value,
      "as this release's method computes it",
    )
  ]


def _same_event(stated: Any, found: dp_event.DpEvent) -> bool:
  """Whether two events are compositions of the same ones, however nested."""
  one, other = (
    {
      events.canonical_text(leaf): times
      for leaf, times in events.flatten(event)
    }
    for event in (events.from_json(stated), found)
  )
  return one == other


def _changes(stated: Any, computed: Any, *, name: str) -> list[str]:
  """Returns where two JSON values differ by more than rounding."""
  if isinstance(computed, Mapping) and isinstance(stated, Mapping):
    if set(stated) != set(computed):
      return [f'{name} must have {sorted(computed)}, got {sorted(stated)}.']
    return [
      problem
      for key in computed
      for problem in _changes(stated[key], computed[key], name=f'{name}.{key}')
    ]
  if isinstance(computed, list) and isinstance(stated, list):
    if len(stated) != len(computed):
      return [f'{name} must have {len(computed)} entries, got {len(stated)}.']
    return [
      problem
      for index, (one, other) in enumerate(zip(stated, computed, strict=True))
      for problem in _changes(one, other, name=f'{name}[{index}]')
    ]
  if isinstance(computed, str) or isinstance(stated, str):
    return [] if stated == computed else [f'{name} must be {computed!r}.']
  return differs(name, stated, computed)
