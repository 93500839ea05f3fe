"""Each part of DP-FedEmb taken away: the orderings of arXiv 2211.10844."""

import pathlib
import tempfile
import time

from benchmarks import glyph_runs
from benchmarks import runner

# One fixed clip norm and 20 rounds for all, and more noise than the quick
# start's, so that the parts show (on the sum of 8 virtual clients). The variant
# without virtual clients has the same noise of the mean: 256 clients, 32 times
# on the sum.
_COMMON = ('privacy.clipping=fixed', 'training.rounds=20')
_NOISE = 'privacy.noise_multiplier=0.1'
_VARIANTS = {
  'full': (*_COMMON, _NOISE),
  'no_head_first': (*_COMMON, _NOISE, 'training.local_tuning=joint'),
  'no_pretraining': (*_COMMON, _NOISE, 'pretraining.enabled=false'),
  'no_virtual_clients': (
    *_COMMON,
    'privacy.noise_multiplier=3.2',
    'privacy.share_virtual_clients=false',
    'privacy.virtual_clients=256',
  ),
  'global_head': (
    *_COMMON,
    _NOISE,
    'training.aggregate=backbone_and_head',
    'training.head_learning_rate=0.5',
  ),
}
_RATE = '0.001'


def measure() -> list[runner.Measure]:
  """Trains five variants from the same data and pretraining, once each."""
  start = time.monotonic()
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    for name, overrides in _VARIANTS.items():
      figures, _ = glyph_runs.train_and_evaluate(
        name, runs=pathlib.Path(folder), overrides=overrides
      )
      found[name] = glyph_runs.recall(figures, _RATE)
      if name == 'full':
        pretrained = glyph_runs.recall(figures, _RATE, of='pretraining_only')
  minutes = (time.monotonic() - start) / 60
  measures = [
    runner.noted(f'recall@FAR {_RATE}, {name}', value)
    for name, value in found.items()
  ]
  measures.append(
    runner.noted(f'recall@FAR {_RATE}, pretraining only', pretrained)
  )
  order = [
    ('full', 'no_head_first'),
    ('no_head_first', 'no_pretraining'),
    ('no_pretraining', 'no_virtual_clients'),
    ('no_pretraining', 'global_head'),
    ('full', 'no_pretraining'),
  ]
  measures += [
    runner.at_least(
      f'{better} - {worse}', found[better] - found[worse], target=0.01
    )
    for better, worse in order
  ]
  measures.append(
    runner.at_most('time of all five', minutes, target=20, unit='min')
  )
  return measures
