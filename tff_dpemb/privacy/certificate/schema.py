"""The published form of a certificate, as JSON Schema, and a checker for it.

`published()` is plain JSON Schema (draft 2020-12) that any validator reads; it
lies beside this module as `certificate.schema.json`, and `dpemb certificate
show --schema` prints it. `problems` checks the few keywords that it uses, so
that verifying needs no further library.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

from tff_dpemb.privacy import guarantee

SCHEMA_NAME = 'dpemb.certificate/3'

NOT_RUN = 'not run'
NOT_COVERED = 'not covered'
NOT_MEASURED = 'not measured'
EVERYONE = 'every user takes part in every query'
# Of the plan's limits: measured on a run's cohorts, or what needs no measure.
PARTICIPATION = ('within', 'outside', 'incomplete', NOT_MEASURED, EVERYONE)

_TEXT = {'type': 'string'}
_NUMBER = {'type': 'number'}
_COUNT = {'type': 'integer', 'minimum': 0}
_FLAG = {'type': 'boolean'}
_TEXTS = {'type': 'array', 'items': _TEXT}
_DIGEST = {'type': 'string', 'pattern': '^([0-9a-f]{64})?$'}
_EPSILON = {'type': ['number', 'null'], 'minimum': 0}  # null: no guarantee
_MAYBE = {'type': ['number', 'null']}
_FREE = {'type': 'object'}


def _object(
  properties: dict[str, Any], *, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
  return {
    'type': 'object',
    'properties': properties,
    'required': [name for name in properties if name not in optional],
    'additionalProperties': False,
  }


_PROFILE = {
  'type': 'array',
  'items': _object({'delta': _NUMBER, 'epsilon': _EPSILON}),
}

SCHEMA: dict[str, Any] = {
  '$schema': 'https://json-schema.org/draft/2020-12/schema',
  'title': SCHEMA_NAME,
  **_object(
    {
      'schema': {'type': 'string', 'enum': [SCHEMA_NAME]},
      'kind': {'type': 'string', 'enum': ['model', 'synthetic']},
      'run': _TEXT,
      'release': _TEXT,
      'created_at': _TEXT,
      'simulation': _FLAG,
      # 1 to 16 of the rules for certificates, in order.
      'setting': _object({'model': _TEXT, 'trust': _TEXT}),
      'unit': _object(
        {
          'unit': {'type': 'string', 'enum': ['user']},
          'user_definition': _TEXT,
          'duplicate_ids': _TEXT,
          'max_examples_per_user': {'type': ['integer', 'null'], 'minimum': 1},
        }
      ),
      'adjacency': _object(
        {
          'relation': {
            'type': 'string',
            'enum': [item.value for item in guarantee.Adjacency],
          },
          'sensitivity_multiple': _NUMBER,
          'shares_virtual_client': _FLAG,
          'population_is_public': _FLAG,
        }
      ),
      'released': _object(
        {
          'protected': _TEXTS,
          'seen_without_protection': _TEXTS,
        }
      ),
      'data_accesses': {
        'type': 'array',
        'items': _object(
          {
            'what': _TEXT,
            'status': {
              'type': 'string',
              'enum': ['covered', 'public', NOT_COVERED],
            },
          }
        ),
      },
      'mechanism': _FREE,  # By kind: MODEL_MECHANISM or SYNTHETIC_MECHANISM.
      'sampling': _object(
        {
          'sampler': _TEXT,
          'population': {'type': 'integer', 'minimum': 2},
          'users_per_round': _NUMBER,
          'probability': _NUMBER,
          'virtual_clients': _COUNT,
          'participation': {'type': 'string', 'enum': list(PARTICIPATION)},
          'min_separation': _COUNT,
          'max_participations': _COUNT,
        },
        optional=('min_separation', 'max_participations'),
      ),
      'accounting': _object(
        {
          'library': _TEXT,
          'accountant': _TEXT,
          'epsilon': _EPSILON,
          'delta': {'type': 'number', 'minimum': 0},
          'statement': _TEXT,
          'cross_check_epsilon': _EPSILON,
          'discretisation': {'type': ['number', 'null']},
          'epsilon_at_deltas': _PROFILE,
          'profile': _PROFILE,
          # Of that many users who come or go together.
          'groups': {
            'type': 'array',
            'items': _object(
              {'users': _COUNT, 'delta': _NUMBER, 'epsilon': _EPSILON}
            ),
          },
          # Of the whole trade-off curve; null: it has none.
          'mu_gdp': _MAYBE,
          # Bounds epsilon at every delta >= least_delta; null: none is known.
          'mu_gdp_bound': {
            **_object({'mu': _NUMBER, 'least_delta': _NUMBER}),
            'type': ['object', 'null'],
          },
          'zcdp_rho': _MAYBE,
          'unamplified_epsilon': _EPSILON,
          'unamplified_mu_gdp': _MAYBE,
          'unamplified_zcdp_rho': _MAYBE,
          'event': _FREE,
          'assumptions': _TEXTS,
          'warnings': _TEXTS,
        }
      ),
      # runs_in_ledger: runs that the population paid for, this one included.
      'tuning': _object(
        {'private_runs': _TEXT, 'cost': _TEXT, 'runs_in_ledger': _COUNT}
      ),
      'public_data': _object(
        {
          'pretraining': _TEXT,
          'overlap_check': _TEXT,
        }
      ),
      'randomness': _object(
        {'source': _TEXT, 'seed': _TEXT, 'numerics': _TEXT}
      ),
      'audit': _object(
        {
          'status': _TEXT,
          'results': {
            'type': 'array',
            'items': {
              **_object(
                {
                  'method': _TEXT,
                  'mode': _TEXT,
                  'canaries': _COUNT,
                  'confidence': _NUMBER,
                  'delta': _NUMBER,
                  'lower_bound': _MAYBE,
                  'verdict': _TEXT,
                },
                optional=('mode', 'canaries'),
              ),
              'additionalProperties': True,
            },
          },
        }
      ),
      'utility': _object(
        {
          'status': _TEXT,
          'measures': _FREE,
          'dropped_classes': {'type': ['array', 'string']},
        }
      ),
      # At the release's own delta, over all draws of the population up to
      # provenance.ledger_entries.
      'composition': _object(
        {
          'population': _TEXT,
          'epsilon': _EPSILON,
          'delta': _NUMBER,
          'releases': _TEXTS,
          'budget_epsilon': {'type': ['number', 'null']},
          'budget_delta': {'type': ['number', 'null']},
          'remaining_epsilon': {'type': ['number', 'null']},
        }
      ),
      'provenance': _object(
        {
          'plan_digest': _DIGEST,
          'config_digest': _DIGEST,
          'code_revision': _TEXT,
          'data_digest': _TEXT,
          'lock_digest': _TEXT,
          'artifacts': {**_FREE, 'additionalProperties': _DIGEST},
          'artifact_digest': _DIGEST,
          'ledger_entries': _COUNT,
          'ledger_digest': _DIGEST,
        }
      ),
      'statement': _object(
        {
          'text': _TEXT,
          'strength': _TEXT,
          'groups': _TEXT,
          'void_if': _TEXTS,
        }
      ),
      'digest': _DIGEST,  # Of all but itself and the signature.
      'signature': _object(
        {
          'algorithm': {'type': 'string', 'enum': ['ed25519']},
          'public_key': {'type': 'string', 'pattern': '^[0-9a-f]{64}$'},
          'value': {'type': 'string', 'pattern': '^[0-9a-f]{128}$'},
        }
      ),
    },
    optional=('signature',),
  ),
}

MODEL_MECHANISM: dict[str, Any] = _object(
  {
    'kind': {
      'type': 'string',
      'enum': ['fixed', 'adaptive', 'tree', 'banded', 'blt'],
    },
    'clip_norm': _NUMBER,
    'final_clip_norm': {'type': ['number', 'null']},
    'noise_multiplier': _NUMBER,
    'value_noise_multiplier': _NUMBER,
    'clipped_count_stddev': _NUMBER,
    'virtual_clients': _COUNT,
    'target_unclipped_quantile': _NUMBER,
    'learning_rate': _NUMBER,
    'clipping': {'type': 'string', 'enum': ['fixed', 'adaptive']},
    'restart_every': _COUNT,
    'strategy': _FREE,  # Of correlated noise, with all its parameters.
    'rounds_planned': _COUNT,
    'rounds_completed': _COUNT,
    'draws': _COUNT,
    # Draws beyond one for each completed round, and those among all draws
    # whose round had been drawn before.
    'replays': _COUNT,
    'redrawn': _COUNT,
  },
  optional=(
    'virtual_clients',
    'target_unclipped_quantile',
    'learning_rate',
    'clipping',
    'restart_every',
    'strategy',
  ),
)

SYNTHETIC_MECHANISM: dict[str, Any] = _object(
  {
    'kind': {'type': 'string', 'enum': ['queries']},
    'draws': {
      'type': 'array',
      'items': _object(
        {
          'event': _FREE,
          'count': {'type': 'integer', 'minimum': 1},
        }
      ),
    },
    'queries': {'type': 'array', 'items': _FREE},
    # 1 / noise_multiplier^2 that was charged beyond the queries; null if the
    # queries state no multipliers.
    'overcharge': {'type': ['number', 'null'], 'minimum': 0},
    'norm_bound': {'type': ['number', 'null']},
    'covariance_floor': {'type': ['number', 'null']},
    'thresholds': _TEXT,
  }
)


def published() -> dict[str, Any]:
  """Returns the whole schema as it is published, mechanisms by kind."""
  parts = (('model', MODEL_MECHANISM), ('synthetic', SYNTHETIC_MECHANISM))
  return {
    **SCHEMA,
    'allOf': [
      {
        'if': {'properties': {'kind': {'const': kind}}},
        'then': {'properties': {'mechanism': mechanism}},
      }
      for kind, mechanism in parts
    ],
  }


def problems(content: Any) -> list[str]:
  """Returns what breaks the schema, one sentence each."""
  found = _check(content, SCHEMA, 'certificate')
  if not found:
    part = {'model': MODEL_MECHANISM, 'synthetic': SYNTHETIC_MECHANISM}
    found = _check(
      content['mechanism'], part[content['kind']], 'certificate.mechanism'
    )
  return found


_TYPES: dict[str, Any] = {
  'object': Mapping,
  'array': (list, tuple),
  'string': str,
  'null': type(None),
}


def _has_type(value: Any, name: str) -> bool:
  if name == 'boolean':
    return isinstance(value, bool)
  if name in ('number', 'integer'):
    kinds = (int, float) if name == 'number' else int
    if not isinstance(value, kinds) or isinstance(value, bool):
      return False
    # Neither NaN nor 400 digits; an integer is one in JSON of any language.
    return abs(value) <= (2**53 if name == 'integer' else sys.float_info.max)
  return isinstance(value, _TYPES[name])


def _check(value: Any, schema: Mapping[str, Any], name: str) -> list[str]:
  kinds = schema['type']
  kinds = [kinds] if isinstance(kinds, str) else kinds
  if not any(_has_type(value, kind) for kind in kinds):
    got = type(value).__name__
    return [f'{name} must be of type {" or ".join(kinds)}, got {got}.']
  found = []
  if 'enum' in schema and value not in schema['enum']:
    found.append(f'{name} must be one of {schema["enum"]}, got {value!r}.')
  if (
    'minimum' in schema and value is not None and not value >= schema['minimum']
  ):
    found.append(f'{name} must be >= {schema["minimum"]}, got {value}.')
  if 'pattern' in schema and not re.search(schema['pattern'], value):
    found.append(f'{name} must match {schema["pattern"]}, got {value!r}.')
  if isinstance(value, Mapping) and 'properties' in schema:
    for key in schema['required']:
      if key not in value:
        found.append(f'{name}.{key} must be there.')
    for key in value:
      if key in schema['properties']:
        found += _check(value[key], schema['properties'][key], f'{name}.{key}')
      elif not schema['additionalProperties']:
        found.append(f'{name}.{key} is not part of a certificate.')
  elif isinstance(value, Mapping) and 'additionalProperties' in schema:
    for key, item in value.items():
      found += _check(item, schema['additionalProperties'], f'{name}.{key}')
  if 'items' in schema and isinstance(value, (list, tuple)):
    for index, item in enumerate(value):
      found += _check(item, schema['items'], f'{name}[{index}]')
  return found
