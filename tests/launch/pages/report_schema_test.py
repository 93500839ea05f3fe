"""report.json: what its form refuses, each fault named."""

import copy
import json

import pytest

from launch.pages import report_schema
from tff_dpemb.artifacts import documents

_REPORT = {
  'schema': 'dpemb.report/3',
  'training': {
    'rounds': 30,
    'replayed_rounds': 1,
    'population': 2300,
    'users_per_round': 256,
    'virtual_clients': 8,
    'seconds': 141.3,
    'examples_per_second': 4312.7,
  },
  'privacy': {
    'epsilon': 41234.2,
    'delta': 2e-4,
    'adjacency': 'add_or_remove_one',
    'accountant': 'PLD',
    'draws': 31,
    'simulation': True,
    'population_epsilon_all_releases': None,
    'epsilon_naive': 412.3,
    'epsilon_unamplified': None,
    'extrapolated': [
      {
        'population': 10**6,
        'users_per_round': 111304,
        'virtual_clients': 3478,
        'noise_multiplier': 8.7,
        'epsilon': 3.02,
        'delta': 2.5e-7,
        'reached': True,
        'extrapolated': True,
      }
    ],
  },
  'verification': {
    'held_out_identities': 600,
    'pairs': 25916400,
    'recall_at_far': {'0.1': 0.951, '0.001': 0.512},
    'pretraining_only': {'0.001': 0.13, '0.1': 0.62},
    'pixels': {'0.001': 0.02, '0.1': 0.31},
    'intervals': {'0.001': [0.49, 0.53]},
  },
  'retrieval': {
    'recall_at_1': 0.78,
    'interval': {'value': 0.78, 'low': 0.75, 'high': 0.81},
    'mean_average_precision': 0.6,
  },
  'export': {
    'saved_model': 'export/1/saved_model',
    'tflite': 'export/1/model.tflite',
    'min_cosine': 0.99999,
    'digest': 'a' * 64,
  },
  'serving': {'lookups': 200, 'agreement_with_exact': 1.0, 'seconds': 0.4},
  'synthetic': {
    'examples': 5000,
    'epsilon': 8.0,
    'delta': 1e-4,
    'classes': 10,
    'accuracy': 0.61,
    'accuracy_on_real': 0.74,
    'chance': 0.1,
    'share_of_real': 0.797,
  },
  'run': {'name': 'demo <run>', 'versions': {'numpy': '1.26.4'}},
}


def _read(content):
  return report_schema.Report.from_json(content, name='report')


def _changed(path, value):
  changed = copy.deepcopy(_REPORT)
  *parents, last = path.split('.')
  part = changed
  for parent in parents:
    part = part[parent]
  if value is None:
    del part[last]
  else:
    part[last] = value
  return changed


def test_good():
  checked = _read(_REPORT)
  assert checked.verification.recall_at_far['0.001'] == 0.512
  assert checked.privacy.epsilon_unamplified is None


def test_is_what_json_and_a_file_give_back(tmp_path):
  checked = _read(_REPORT)
  assert _read(json.loads(json.dumps(_REPORT))) == checked
  checked.write(tmp_path / 'report.json', is_private=True)
  assert (tmp_path / 'report.json').stat().st_mode & 0o777 == 0o600
  assert report_schema.Report.read(tmp_path / 'report.json') == checked
  assert checked.digest == documents.digest_of(_REPORT)


@pytest.mark.parametrize(
  ('path', 'value', 'match'),
  [
    ('schema', 1, "must have schema 'dpemb.report/3', got 1; `dpemb report`"),
    ('schema', None, "schema 'dpemb.report/3', got None"),
    ('training.rounds', None, 'report.training.rounds must be there'),
    ('training.rounds', -1, 'training.rounds must be >= 0, got -1'),
    ('training.rounds', 2.5, 'training.rounds must be a whole number, got 2.5'),
    ('training.loss_note', 'x', 'loss_note is not part of this form'),
    ('privacy', None, 'report.privacy must be there'),
    ('privacy.delta', 1.0, 'privacy.delta must be < 1'),
    ('privacy.epsilon', float('inf'), 'must hold finite JSON values'),
    ('privacy.extrapolated', [{}], r'extrapolated\[0\].population must be th'),
    ('verification.recall_at_far', {}, 'must hold a false accept rate'),
    ('verification.recall_at_far', {'2': 0.5}, "keyed by rates, got '2'"),
    ('verification.recall_at_far', {'0.1': 1.5}, 'recall_at_far.0.1 must be'),
    ('verification.pixels', {'0.1': 0.3}, 'pixels must have the rates 0.001'),
    ('export.min_cosine', 'high', "min_cosine must be a number, got 'high'"),
    ('export.digest', 'short', "export.digest must match .*, got 'short'"),
    ('synthetic.chance', float('nan'), 'must hold finite JSON values'),
  ],
)
def test_fault(path, value, match):
  with pytest.raises(documents.DocumentError, match=match):
    _read(_changed(path, value))
