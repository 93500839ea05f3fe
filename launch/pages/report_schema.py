"""The keys of report.json, and the check that a report has them.

A report may hold more keys than these (facts of a run, more figures); those
here are what readers may rely on.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

SCHEMA = 1

_Count = Annotated[int, pydantic.Field(ge=0)]
_Share = Annotated[float, pydantic.Field(ge=0, le=1)]
_NonNegative = Annotated[float, pydantic.Field(ge=0)]
# None stands for infinity, which JSON does not have.
_Epsilon = _NonNegative | None


class ReportError(ValueError):
  """A report without a key that it must have, or with an illegal value."""


class _Part(pydantic.BaseModel):
  model_config = pydantic.ConfigDict(
    frozen=True, extra='allow', allow_inf_nan=False
  )


class Training(_Part):
  rounds: _Count
  population: _Count
  users_per_round: _NonNegative
  virtual_clients: _Count
  seconds: _NonNegative
  examples_per_second: _NonNegative


class Extrapolated(_Part):
  """What a larger population would give; never a guarantee of this run."""

  population: _Count
  users_per_round: _NonNegative
  epsilon: _Epsilon


class Privacy(_Part):
  epsilon: _Epsilon
  delta: Annotated[float, pydantic.Field(gt=0, lt=1)]
  adjacency: str
  epsilon_naive: _Epsilon
  epsilon_unamplified: _Epsilon
  extrapolated: tuple[Extrapolated, ...]
  # Of all models and synthetic sets of the population together.
  population_epsilon_all_releases: _Epsilon = None


class Verification(_Part):
  """Recall by false accept rate (its decimal text), of three embeddings."""

  held_out_identities: _Count
  pairs: _Count
  recall_at_far: dict[str, _Share]
  pretraining_only: dict[str, _Share]
  pixels: dict[str, _Share]
  intervals: dict[str, tuple[_Share, _Share]] = {}

  @pydantic.model_validator(mode='after')
  def _rates(self) -> 'Verification':
    if not self.recall_at_far:
      raise ValueError('recall_at_far must hold a false accept rate')
    for rate in self.recall_at_far:
      if not 0 < float(rate) < 1:
        raise ValueError(f'recall_at_far must be keyed by rates, got {rate!r}')
    for name in ('pretraining_only', 'pixels'):
      missing = sorted(set(self.recall_at_far) - set(getattr(self, name)))
      if missing:
        raise ValueError(f'{name} must have the rates {", ".join(missing)} too')
    return self


class Retrieval(_Part):
  recall_at_1: _Share


class Export(_Part):
  saved_model: str
  tflite: str
  min_cosine: Annotated[float, pydantic.Field(ge=-1, le=1)]


class Serving(_Part):
  lookups: _Count
  agreement_with_exact: _Share


class Synthetic(_Part):
  examples: _Count
  epsilon: _Epsilon
  classes: _Count
  accuracy: _Share
  accuracy_on_real: _Share
  chance: _Share


class Report(_Part):
  """report.json."""

  schema_version: Literal[1] = pydantic.Field(alias='schema')
  training: Training
  privacy: Privacy
  verification: Verification
  retrieval: Retrieval
  export: Export
  serving: Serving
  synthetic: Synthetic
  run: dict[str, Any] = {}  # facts: name, versions, machine, digests


def validate_report(report: Mapping[str, Any]) -> Report:
  """Returns the report, checked.

  Raises:
    ReportError: A key is missing or a value breaks its rule; all are named.
  """
  try:
    return Report.model_validate(report)
  except pydantic.ValidationError as error:
    faults = []
    for item in error.errors():
      name = '.'.join(map(str, item['loc']))
      rule = item['msg'].removeprefix('Input should be ')
      rule = rule.removeprefix('Value error, ')
      if item['type'] == 'missing':
        faults.append(f'{name} is missing.')
      elif item['type'] == 'value_error':
        faults.append(f'{name}: {rule}.')
      else:
        faults.append(f'{name} must be {rule}, got {item["input"]!r}.')
    raise ReportError('report: ' + ' '.join(faults)) from error
