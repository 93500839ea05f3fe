"""report.json: the figures of a finished run, as a typed document."""

from typing import Annotated, Any, ClassVar, Literal

import pydantic

from tff_dpemb.artifacts import documents

_Count = documents.Count
_Share = Annotated[float, pydantic.Field(ge=0, le=1)]
_NonNegative = Annotated[float, pydantic.Field(ge=0)]
_Delta = Annotated[float, pydantic.Field(gt=0, lt=1)]
# None stands for infinity, which JSON does not have.
_Epsilon = _NonNegative | None


class Interval(documents.Value):
  """A figure in [0, 1] with the ends of its interval over identities."""

  value: _Share
  low: _Share
  high: _Share


class Training(documents.Value):
  rounds: _Count
  replayed_rounds: _Count
  population: _Count
  users_per_round: _NonNegative
  virtual_clients: _Count
  seconds: _NonNegative
  examples_per_second: _NonNegative


class Extrapolated(documents.Value):
  """What a larger population would give; never a guarantee of this run."""

  population: _Count
  users_per_round: _NonNegative
  virtual_clients: _Count
  noise_multiplier: _NonNegative
  epsilon: _Epsilon
  delta: _Delta
  reached: bool  # whether epsilon is at most the target
  extrapolated: Literal[True]


class Privacy(documents.Value):
  epsilon: _Epsilon
  delta: _Delta
  adjacency: str
  accountant: str
  draws: _Count
  epsilon_naive: _Epsilon
  epsilon_unamplified: _Epsilon
  extrapolated: tuple[Extrapolated, ...]
  simulation: bool
  # Of all models and synthetic sets of the population together.
  population_epsilon_all_releases: _Epsilon


class Verification(documents.Value):
  """Recall by false accept rate (its decimal text), of three embeddings."""

  held_out_identities: _Count
  pairs: _Count
  recall_at_far: dict[str, _Share]
  pretraining_only: dict[str, _Share]
  pixels: dict[str, _Share]
  intervals: dict[str, tuple[_Share, _Share]]

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


class Retrieval(documents.Value):
  recall_at_1: _Share
  interval: Interval
  mean_average_precision: _Share


class Export(documents.Value):
  saved_model: str
  tflite: str
  min_cosine: Annotated[float, pydantic.Field(ge=-1, le=1)]
  digest: documents.Sha256


class Serving(documents.Value):
  lookups: _Count
  agreement_with_exact: _Share
  seconds: _NonNegative


class Synthetic(documents.Value):
  examples: _Count
  epsilon: _Epsilon
  delta: _Delta
  classes: _Count
  accuracy: _Share
  accuracy_on_real: _Share
  chance: _Share
  share_of_real: float


class Report(documents.Document):
  """report.json. An operator's view: it holds figures without noise."""

  remedy: ClassVar[str] = '`dpemb report` makes it again'

  schema_name: Literal['dpemb.report/3'] = documents.schema('dpemb.report/3')
  training: Training
  privacy: Privacy
  verification: Verification
  retrieval: Retrieval
  export: Export
  serving: Serving
  synthetic: Synthetic | None  # None: there are no public images for it.
  run: dict[str, Any]  # facts: name, versions, machine, digests
