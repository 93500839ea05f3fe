"""Part 6 of a certificate: what was clipped, and what noise was drawn."""

from typing import Annotated, Any, Literal

import pydantic

from tff_dpemb.artifacts import documents

# Whoever verifies composes them: a stranger's may not take for ever.
_Rounds = Annotated[int, pydantic.Field(ge=0, le=10**6)]


class _ModelMechanism(documents.Value):
  clip_norm: float
  final_clip_norm: float | None
  noise_multiplier: float
  value_noise_multiplier: float
  clipped_count_stddev: float
  rounds_planned: _Rounds
  rounds_completed: _Rounds
  draws: _Rounds
  # Draws beyond one for each completed round, and those among all draws whose
  # round had been drawn before.
  replays: _Rounds
  redrawn: _Rounds


class FixedMechanism(_ModelMechanism):
  """6, of a model: `mechanisms.FixedClipGaussian`."""

  kind: Literal['fixed']


class AdaptiveMechanism(_ModelMechanism):
  """6, of a model: `mechanisms.AdaptiveClipGaussian`."""

  kind: Literal['adaptive']
  virtual_clients: documents.Count
  target_unclipped_quantile: float
  learning_rate: float


class CorrelatedMechanism(_ModelMechanism):
  """6, of a model: `mechanisms.CorrelatedGaussian` with a fixed clip norm."""

  kind: Literal['tree', 'banded', 'blt']
  clipping: Literal['fixed']
  restart_every: documents.Count
  strategy: dict[str, Any]  # With all its parameters.


class CorrelatedAdaptiveMechanism(CorrelatedMechanism):
  """6, of a model: `mechanisms.CorrelatedGaussian`, its clip norm adaptive."""

  clipping: Literal['adaptive']  # type: ignore[assignment]
  virtual_clients: documents.Count
  target_unclipped_quantile: float
  learning_rate: float


class Draws(documents.Value):
  """An event, as `accounting.events` writes it, and how often it was drawn."""

  event: dict[str, Any]
  count: documents.PositiveCount


class Query(documents.Value):
  """One query of a synthetic set; its noise in units of its sensitivity."""

  name: str
  noise_multiplier: float | None = None  # None: it is not stated.
  sensitivity: float = 1.0
  times: documents.PositiveCount = 1


class QueriesMechanism(documents.Value):
  """6, of a synthetic set."""

  kind: Literal['queries'] = 'queries'
  draws: Annotated[tuple[Draws, ...], pydantic.Field(max_length=256)]
  queries: Annotated[tuple[Query, ...], pydantic.Field(max_length=1024)]
  # 1 / noise_multiplier^2 charged beyond the queries; None: not all are stated.
  overcharge: Annotated[float, pydantic.Field(ge=0)] | None
  norm_bound: float | None
  covariance_floor: float | None
  thresholds: str


def _mechanism_tag(content: Any) -> str | None:
  def get(name: str) -> Any:
    is_json = isinstance(content, dict)
    return content.get(name) if is_json else getattr(content, name, None)

  kind = get('kind')
  if kind in ('tree', 'banded', 'blt'):
    adaptive = get('clipping') == 'adaptive'
    return '<correlated adaptive>' if adaptive else '<correlated>'
  return f'<{kind}>'


ModelMechanism = (
  Annotated[FixedMechanism, pydantic.Tag('<fixed>')]
  | Annotated[AdaptiveMechanism, pydantic.Tag('<adaptive>')]
  | Annotated[CorrelatedMechanism, pydantic.Tag('<correlated>')]
  | Annotated[
    CorrelatedAdaptiveMechanism, pydantic.Tag('<correlated adaptive>')
  ]
)
Mechanism = Annotated[
  ModelMechanism | Annotated[QueriesMechanism, pydantic.Tag('<queries>')],
  pydantic.Discriminator(_mechanism_tag),
]
