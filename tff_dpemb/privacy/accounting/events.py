"""`dp_accounting` events as JSON, and in the shortest equivalent form.

The JSON is the named-tuple form of `dp_accounting.DpEvent` (module name, class
name, fields), so that another program can rebuild the event without this one.
"""

import hashlib
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy import guarantee

Counts = tuple[tuple[dp_event.DpEvent, int], ...]


def to_json(event: dp_event.DpEvent) -> dict[str, Any]:
  """Returns the named-tuple form of an event as a JSON value."""
  return _encode(event.to_named_tuple())


def canonical_text(event: dp_event.DpEvent) -> str:
  """Returns the one JSON text of an event.

  Raises:
    AccountingError: A number of it is none that JSON can hold.
  """
  try:
    return documents.canonical_json(to_json(event)).decode()
  except documents.DocumentError as error:
    raise guarantee.AccountingError(
      f'an event must be a finite JSON value: {error}'
    ) from error


def text_digest(text: str) -> str:
  """Returns the SHA-256 hex digest of an event's canonical text."""
  return hashlib.sha256(text.encode()).hexdigest()


def from_json(content: Mapping[str, Any]) -> dp_event.DpEvent:
  """Returns the event of a JSON value; inverse of `to_json`.

  Raises:
    AccountingError: It names a class that is not an event of `dp_accounting`,
      or its fields do not fit the class.
  """
  name = content.get('class_name')
  cls = getattr(dp_event, str(name), None)
  if (
    content.get('module_name') != dp_event.__name__
    or not isinstance(cls, type)
    or not issubclass(cls, dp_event.DpEvent)
  ):
    raise guarantee.AccountingError(
      f'event must be a class of {dp_event.__name__}, got'
      f' {content.get("module_name")}.{name}; dp_accounting may be too old.'
    )
  fields = {
    key: _decode(value)
    for key, value in content.items()
    if key not in ('module_name', 'class_name')
  }
  inner = [fields['event']] if 'event' in fields else []
  listed = fields.get('events', [])
  inner += listed if isinstance(listed, (list, tuple)) else [listed]
  if not all(isinstance(item, dp_event.DpEvent) for item in inner):
    raise guarantee.AccountingError(
      f'event {name} must hold events of {dp_event.__name__} and nothing else.'
    )
  for key, value in fields.items():
    if isinstance(value, (str, bool)) or (
      key == 'count' and not (isinstance(value, int) and value >= 1)
    ):
      raise guarantee.AccountingError(
        f'event {name} must have numbers, and a whole count >= 1, got'
        f' {key} {value!r}.'
      )
  try:
    return cls(**fields)
  except TypeError as error:
    raise guarantee.AccountingError(
      f'event {name} has the wrong fields: {error}.'
    ) from error


def flatten(event: dp_event.DpEvent, *, count: int = 1) -> Counts:
  """Returns (leaf, times) pairs whose composition is equivalent to the event.

  Equal leaves are counted together, so that 1000 equal rounds are one pair.
  Gaussians under one Poisson sample are merged into the one Gaussian that is
  exactly as revealing (arXiv 1812.06210, section 3); no-ops vanish; noise of
  multiplier 0 becomes `NonPrivateDpEvent`.

  Raises:
    AccountingError: A parameter of the event is negative or not a number.
  """
  return merge([(event, count)])


def merge(counts: Iterable[tuple[dp_event.DpEvent, int]]) -> Counts:
  """Returns the (leaf, times) pairs of a sequence of counted events."""
  found: dict[str, tuple[dp_event.DpEvent, int]] = {}
  for event, count in counts:
    _collect(event, count, found)
  return tuple(found.values())


def compose(counts: Iterable[tuple[dp_event.DpEvent, int]]) -> dp_event.DpEvent:
  """Returns one event for counted events, equal ones self-composed."""
  parts = [
    event if count == 1 else dp_event.SelfComposedDpEvent(event, count)
    for event, count in counts
    if count > 0
  ]
  if not parts:
    return dp_event.NoOpDpEvent()
  return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)


def gaussian_multiplier(event: dp_event.DpEvent) -> float | None:
  """Returns the noise multiplier of the one Gaussian equal to nested ones.

  None if anything but Gaussians is inside; 0 if one has no noise.
  """
  if isinstance(event, dp_event.GaussianDpEvent):
    return float(event.noise_multiplier)
  if isinstance(event, dp_event.SelfComposedDpEvent):
    inner = gaussian_multiplier(event.event)
    return None if inner is None else inner / math.sqrt(event.count)
  if isinstance(event, dp_event.ComposedDpEvent) and event.events:
    precision = 0.0
    for item in event.events:
      inner = gaussian_multiplier(item)
      if inner is None:
        return None
      precision += math.inf if inner == 0 else inner**-2
    return precision**-0.5
  return None


def _collect(
  event: dp_event.DpEvent,
  count: int,
  found: dict[str, tuple[dp_event.DpEvent, int]],
) -> None:
  if count < 0:
    raise guarantee.AccountingError(f'count must be >= 0, got {count}.')
  if count == 0 or isinstance(event, dp_event.NoOpDpEvent):
    return
  if isinstance(event, dp_event.SelfComposedDpEvent):
    _collect(event.event, count * event.count, found)
    return
  if isinstance(event, dp_event.ComposedDpEvent):
    for item in event.events:
      _collect(item, count, found)
    return
  leaf = _simplify(event)
  if isinstance(leaf, dp_event.NoOpDpEvent):
    return
  key = canonical_text(leaf)
  previous = found.get(key, (leaf, 0))[1]
  found[key] = (leaf, previous + count)


def _simplify(event: dp_event.DpEvent) -> dp_event.DpEvent:
  if isinstance(event, dp_event.GaussianDpEvent):
    multiplier = float(event.noise_multiplier)
    if not multiplier >= 0:  # Also refuses NaN.
      raise guarantee.AccountingError(
        f'noise_multiplier of an event must be >= 0, got {multiplier}.'
      )
    if multiplier == 0:
      return dp_event.NonPrivateDpEvent()
    if math.isinf(multiplier):
      return dp_event.NoOpDpEvent()
    return dp_event.GaussianDpEvent(multiplier)
  if isinstance(event, dp_event.PoissonSampledDpEvent):
    probability = float(event.sampling_probability)
    if not 0 <= probability <= 1:
      raise guarantee.AccountingError(
        f'sampling_probability must be in [0, 1], got {probability}.'
      )
    if probability == 0:
      return dp_event.NoOpDpEvent()
    nested = gaussian_multiplier(event.event)
    if nested is None:
      inner = event.event
    else:
      inner = _simplify(dp_event.GaussianDpEvent(nested))
    if probability == 1 or isinstance(
      inner, (dp_event.NonPrivateDpEvent, dp_event.NoOpDpEvent)
    ):
      return inner
    return dp_event.PoissonSampledDpEvent(probability, inner)
  return event


def _encode(value: Any) -> Any:
  if isinstance(value, dp_event.DpEvent):
    return _encode(value.to_named_tuple())
  if hasattr(value, '_fields'):
    return {name: _encode(getattr(value, name)) for name in value._fields}
  if isinstance(value, (str, bool)) or value is None:
    return value
  if isinstance(value, numbers.Integral):
    return int(value)
  if isinstance(value, numbers.Real):
    number = float(value)
    return number if math.isfinite(number) else {'float': str(number)}
  if isinstance(value, Sequence):
    return [_encode(item) for item in value]
  raise guarantee.AccountingError(
    f'an event field must be a number, a text, a list or an event, got'
    f' {type(value).__name__}.'
  )


def _decode(value: Any) -> Any:
  if isinstance(value, Mapping):
    if set(value) == {'float'}:
      return float(value['float'])
    return from_json(value)
  if isinstance(value, list):
    return [_decode(item) for item in value]
  return value
