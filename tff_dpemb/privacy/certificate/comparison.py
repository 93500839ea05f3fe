"""Numbers of a certificate against numbers that were computed anew."""

import math

from tff_dpemb.privacy import guarantee as guarantee_lib

TOLERANCE = 1e-6  # Relative; the accounting is deterministic.


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
