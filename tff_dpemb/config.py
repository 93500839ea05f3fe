"""Run configuration: one frozen model a stage; TOML in, JSON and a digest out.

A run page is a TOML file (see `launch/configs/`). `load` reads it, applies
`--set section.key=value` overrides, and refuses unknown keys with the nearest
right one. Nothing here imports TensorFlow.
"""

import difflib
import math
import os
import pathlib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from tff_dpemb.artifacts import documents

# Keys that hold a path, or may.
_PATHS = (
  ('data', 'directory'),
  ('privacy', 'ledger'),
  ('runtime', 'tls_authority'),
  ('runtime', 'tls_certificate'),
  ('runtime', 'tls_key'),
)


class ConfigError(ValueError):
  """A run page that breaks a rule: names the key, the rule and the value."""


class _Section(pydantic.BaseModel):
  """Base of every section: immutable, no unknown keys, finite numbers only."""

  model_config = pydantic.ConfigDict(
    frozen=True, extra='forbid', allow_inf_nan=False, strict=False
  )


_PositiveInt = typing.Annotated[int, pydantic.Field(gt=0)]
_PositiveFloat = typing.Annotated[float, pydantic.Field(gt=0)]
_NonNegativeFloat = typing.Annotated[float, pydantic.Field(ge=0)]
_Probability = typing.Annotated[float, pydantic.Field(gt=0, lt=1)]
_Name = typing.Annotated[
  str, pydantic.Field(pattern=r'^[A-Za-z0-9][A-Za-z0-9._-]*$', max_length=64)
]


class DataConfig(_Section):
  """Where the images come from.

  A data set is a directory with four user stores: `public`, `private`,
  `validation` and `test` (`tff_dpemb.data.user_store`).
  """

  directory: str = ''  # an existing data set; empty: make the bundled glyphs
  images_per_identity: _PositiveInt = 12
  validation_identities: _PositiveInt = 200
  test_identities: _PositiveInt = 600
  split_seed: int = 0  # which identities are held out; public
  nuisance_seed: int = 0  # how the bundled glyphs are distorted; public
  show_images: bool = (
    False  # picture held-out images in the report of `directory`
  )


class ModelConfig(_Section):
  """The backbone and its embedding."""

  backbone: Literal['lenet', 'lenet_small', 'mobilenet_v2'] = 'lenet_small'
  embedding_dim: _PositiveInt = 128
  head_scale: _PositiveFloat = 10.0  # scale of the cosine softmax


class PretrainingConfig(_Section):
  """Public, centralised pretraining on the `public` store."""

  enabled: bool = True
  steps: _PositiveInt = 900
  batch_size: _PositiveInt = 128
  learning_rate: _PositiveFloat = 2e-3


class PrivacyConfig(_Section):
  """What is promised. `tff_dpemb.privacy.planning.plan` turns it into one plan."""

  population: _Name = 'glyphs'  # the data set of users that owns one budget
  users_per_round: _PositiveInt = 256  # expected, a public constant
  virtual_clients: _PositiveInt = 8
  share_virtual_clients: bool = True  # False: each sampled user trains alone
  clipping: Literal['adaptive', 'fixed'] = 'adaptive'
  clip_norm: _PositiveFloat = 0.5  # initial clip norm when adaptive
  target_unclipped_quantile: _Probability = 0.5
  clip_learning_rate: _NonNegativeFloat = 0.2
  noise_multiplier: _NonNegativeFloat = 0.03  # std on the sum / clip_norm
  delta: _Probability | None = None  # default: population ** -1.1
  sampler: Literal['poisson', 'fixed-size', 'min-separation'] = 'poisson'
  # Default: add-or-remove-one-user; with fixed-size, replace-one-user.
  adjacency: (
    Literal['add-or-remove-one-user', 'replace-one-user', 'zero-out-one-user']
    | None
  ) = None
  # Of min-separation: rounds between a user's participations, by default
  # population // users_per_round, and how many there are at most.
  min_separation: _PositiveInt | None = None
  max_participations: _PositiveInt | None = None
  # All but 'independent' are correlated over rounds and need min-separation.
  noise: Literal['independent', 'tree', 'banded', 'blt'] = 'independent'
  restart_every: int = pydantic.Field(default=0, ge=0)  # rounds; 0: never
  bands: int = pydantic.Field(default=0, ge=0, le=32)  # 0: chosen by error
  blt_buffers: int = pydantic.Field(default=3, ge=1, le=5)
  budget_epsilon: _PositiveFloat | None = None  # None: no budget is enforced
  simulation: bool = False  # noise stands for a larger population: see docs
  extrapolate_to: tuple[_PositiveInt, ...] = (10**5, 10**6, 10**7)
  ledger: str = ''  # SQLAlchemy URL; empty: sqlite in the runs directory


class TrainingConfig(_Section):
  """DP-FedEmb rounds (arXiv 2211.10844)."""

  rounds: _PositiveInt = 30
  local_tuning: Literal['head_first', 'joint'] = 'head_first'
  # 'backbone_and_head' is a baseline: a global head, always trained jointly.
  aggregate: Literal['backbone', 'backbone_and_head'] = 'backbone'
  max_examples_per_user: _PositiveInt = 8  # per round
  max_users_per_virtual_client: _PositiveInt = 64  # overflow is dropped
  head_steps: _PositiveInt = 30
  head_learning_rate: _PositiveFloat = 2.0
  head_momentum: _NonNegativeFloat = 0.9
  backbone_epochs: _PositiveInt = 2
  backbone_batch_size: _PositiveInt = 32
  backbone_learning_rate: _PositiveFloat = 0.1
  backbone_momentum: _NonNegativeFloat = 0.9
  server_learning_rate: _PositiveFloat = 0.5
  server_momentum: _NonNegativeFloat = 0.9
  # Of the backbone's layers in local training; all else is float32.
  precision: Literal['float32', 'mixed_bfloat16'] = 'float32'
  evaluate_every: int = pydantic.Field(default=5, ge=0)  # 0: never
  checkpoints_kept: _PositiveInt = 2


class EvaluationConfig(_Section):
  """Figures on held-out identities."""

  false_accept_rates: tuple[_Probability, ...] = (1e-3, 1e-2, 1e-1)
  confidence: _Probability = 0.95


class ExportConfig(_Section):
  """SavedModel and TFLite; refused below the parity gate."""

  min_cosine: _Probability = 0.9999
  parity_images: _PositiveInt = 64


class ServingConfig(_Section):
  """The gRPC server."""

  host: str = '127.0.0.1'
  port: int = pydantic.Field(default=0, ge=0, le=65535)  # 0: any free port
  neighbours: _PositiveInt = 8


class SynthesisConfig(_Section):
  """DP Gaussian mixture per class, sampled (arXiv 2506.16661)."""

  release: _Name = 'synthetic'  # release id within the run, and its directory
  label: str = 'category'  # store column of the classes
  class_names: tuple[str, ...] = ()  # the declared, public class set
  classes: _PositiveInt = 10  # how many, where a public rule chooses them
  components_per_class: _PositiveInt = 1
  clustering_rounds: _PositiveInt = 2
  projection_dim: _PositiveInt = 128
  epsilon: _PositiveFloat = 8.0
  delta: _Probability | None = None  # default: as for training
  examples_per_class: _PositiveInt = 500
  hidden_units: _PositiveInt = 64
  epochs: _PositiveInt = 30


class RuntimeConfig(_Section):
  """Where rounds run. Nothing here changes what a run promises or learns."""

  executor: Literal['local', 'workers', 'accelerator'] = 'local'
  workers: tuple[str, ...] = ()  # host:port of each `dpemb worker`
  processes: int = pydantic.Field(default=0, ge=0)  # workers started here
  # Virtual clients at a time, on each worker or device; 0: as suits them.
  concurrent_calls: int = pydantic.Field(default=0, ge=0)
  devices: tuple[str, ...] = ()  # of the accelerator; empty: all
  # PEM files of this side of the channels to workers; all or none.
  tls_authority: str = ''
  tls_certificate: str = ''
  tls_key: str = ''
  insecure_network: bool = False  # a mesh or VPN protects the network

  @pydantic.model_validator(mode='after')
  def _check_workers(self) -> 'RuntimeConfig':
    for address in self.workers:
      host, _, port = address.rpartition(':')
      if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f'workers must be host:port each, got {address!r}')
    if self.executor == 'workers' and not (self.workers or self.processes):
      raise ValueError(
        'workers must name a worker, or processes be at least 1, for executor'
        " 'workers'"
      )
    named = [self.tls_authority, self.tls_certificate, self.tls_key]
    if any(named) and not all(named):
      raise ValueError(
        'tls_authority, tls_certificate and tls_key must be given together'
      )
    return self


class RunConfig(_Section):
  """One run page: every stage of one run."""

  name: _Name
  data: DataConfig = DataConfig()
  model: ModelConfig = ModelConfig()
  pretraining: PretrainingConfig = PretrainingConfig()
  privacy: PrivacyConfig = PrivacyConfig()
  training: TrainingConfig = TrainingConfig()
  evaluation: EvaluationConfig = EvaluationConfig()
  export: ExportConfig = ExportConfig()
  serving: ServingConfig = ServingConfig()
  synthesis: SynthesisConfig = SynthesisConfig()
  runtime: RuntimeConfig = RuntimeConfig()

  def digest(self, *sections: str) -> str:
    """Returns the SHA-256 (hex) of the canonical JSON of some sections.

    Of the whole page, if none is named, but for `[runtime]`, which changes no
    result.

    Raises:
      DocumentError: An integer is of 2^53 or more, which JSON cannot hold.
    """
    content = self.model_dump(mode='json')
    if not sections:
      del content['runtime']
    else:
      content = {section: content[section] for section in sections}
    return documents.digest_of(content)


def load(
  path: str | pathlib.Path, *, overrides: Sequence[str] = ()
) -> RunConfig:
  """Returns the run page at `path` with `section.key=value` overrides applied.

  Relative paths in a page are relative to the page's directory, those of an
  override to the working directory.

  Raises:
    ConfigError: The file is missing or is not TOML, a key is unknown (the
      message names the nearest right one), or a value breaks its rule.
  """
  path = pathlib.Path(path)
  try:
    content = tomllib.loads(path.read_text(encoding='utf-8'))
  except OSError as error:
    raise ConfigError(
      f'config must be a readable file, got {str(path)!r} ({error.strerror}).'
    ) from error
  except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
    raise ConfigError(f'config {str(path)!r} must be TOML: {error}.') from error
  content.setdefault('name', path.stem)
  _resolve_paths(content, path.parent)
  for override in overrides:
    _apply_override(content, override)
  return from_mapping(content, source=str(path))


def from_mapping(
  content: Mapping[str, Any], *, source: str = 'config'
) -> RunConfig:
  """Returns the run page of a nested mapping; errors as in `load`."""
  try:
    return RunConfig.model_validate(content)
  except pydantic.ValidationError as error:
    lines = [_explain(dict(item)) for item in error.errors()]
    raise ConfigError(f'{source}: ' + ' '.join(lines)) from error


def _resolve_paths(content: dict[str, Any], folder: pathlib.Path) -> None:
  """Makes paths of a page absolute."""
  for section, key in _PATHS:
    values = content.get(section)
    value = values.get(key) if isinstance(values, dict) else None
    if isinstance(value, str) and value and '://' not in value:
      content[section][key] = os.path.abspath(folder / value)


def _apply_override(content: dict[str, Any], override: str) -> None:
  key, separator, text = override.partition('=')
  parts = key.strip().split('.')
  if not separator or not all(parts) or '\n' in text:
    raise ConfigError(
      f'--set must be section.key=value, got {override!r};'
      ' for example --set training.rounds=10.'
    )
  try:
    value = tomllib.loads(f'value = {text}')['value']
  except tomllib.TOMLDecodeError:
    value = text.strip()  # A bare word is a string.
  for part in parts[:-1]:
    content = content.setdefault(part, {})
    if not isinstance(content, dict):
      raise ConfigError(
        f'--set {key}: {part!r} must be a section, not a value.'
      )
  content[parts[-1]] = value


def _explain(item: dict[str, Any]) -> str:
  location = tuple(part for part in item['loc'] if isinstance(part, str))
  name = '.'.join(str(part) for part in item['loc'])
  value = item.get('input')
  if item['type'] == 'extra_forbidden':
    fields = _fields_at(location[:-1])
    prefix = '.'.join(location[:-1])
    near = difflib.get_close_matches(location[-1], fields, n=1, cutoff=0.0)
    if near:
      nearest = f'{prefix}.{near[0]}' if prefix else near[0]
      return f'unknown key {name!r}; the nearest right one is {nearest!r}.'
    return f'unknown key {name!r}.'
  if item['type'] == 'missing':
    return f'{name} must be set.'
  if isinstance(value, float) and not math.isfinite(value):
    return f'{name} must be a finite number, got {value}.'
  match item['type']:
    case 'string_pattern_mismatch' | 'string_too_long':
      return (
        f"{name} must be letters, digits, '.', '_' and '-' (at most 64, a letter"
        f' or digit first), got {value!r}.'
      )
    case 'model_type' | 'dict_type':
      return f'{name} must be a section, such as [{name}], got {value!r}.'
    case 'tuple_type':
      return f'{name} must be a list, such as ["a", "b"], got {value!r}.'
  message = item['msg'].removeprefix('Input should be ')
  return f'{name} must be {message}, got {value!r}.'


def _fields_at(location: tuple[str, ...]) -> list[str]:
  model: Any = RunConfig
  for part in location:
    if isinstance(model, types.UnionType) or part not in model.model_fields:
      return []
    model = model.model_fields[part].annotation
  return list(getattr(model, 'model_fields', ()))
