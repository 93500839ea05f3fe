"""A report, as JSON, and the same with one value changed."""

import copy

REPORT = {
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


def changed_report(path, value):
  changed = copy.deepcopy(REPORT)
  *parents, last = path.split('.')
  part = changed
  for parent in parents:
    part = part[parent]
  if value is None:
    del part[last]
  else:
    part[last] = value
  return changed
