"""Checks of numbers where frozen values are made: name, rule, value.

Numbers may come from JSON, so a text, a bool, NaN or infinity is refused in
the same words as one that is out of range.
"""

from typing import Any

from tff_dpemb.privacy import guarantee

_LARGEST = 2.0**63


def is_number(value: Any) -> bool:
  """Whether it is a finite number (below 2^63 in size, and no bool)."""
  return (
    isinstance(value, int | float)
    and not isinstance(value, bool)
    and -_LARGEST < value < _LARGEST  # False for NaN too.
  )


def at_least(name: str, value: Any, least: float) -> None:
  """Raises PlanError unless `value` is finite and >= `least`."""
  if not (is_number(value) and value >= least):
    raise guarantee.PlanError(
      f'{name} must be finite and >= {least:g}, got {value!r}.'
    )


def above(name: str, value: Any, bound: float) -> None:
  """Raises PlanError unless `value` is finite and > `bound`."""
  if not (is_number(value) and value > bound):
    raise guarantee.PlanError(
      f'{name} must be finite and > {bound:g}, got {value!r}.'
    )


def inside(name: str, value: Any, low: float, high: float) -> None:
  """Raises PlanError unless `value` is in (`low`, `high`)."""
  if not (is_number(value) and low < value < high):
    raise guarantee.PlanError(
      f'{name} must be in ({low:g}, {high:g}), got {value!r}.'
    )


def whole(name: str, value: Any, least: int, most: int | None = None) -> None:
  """Raises PlanError unless `value` is an int in [`least`, `most`]."""
  is_whole = isinstance(value, int) and is_number(value)
  if not is_whole or value < least or (most is not None and value > most):
    rule = f'>= {least}' if most is None else f'in [{least}, {most}]'
    raise guarantee.PlanError(
      f'{name} must be whole and {rule}, got {value!r}.'
    )
