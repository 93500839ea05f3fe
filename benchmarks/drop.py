"""What the noise costs: the quick start's recipe with and without it."""

import pathlib
import statistics
import tempfile

from benchmarks import glyph_runs
from benchmarks import runner
from tff_dpemb.privacy.planning import extrapolation

_REPEATS = 2
_POPULATION = 10**6
_RATE = '0.001'


def measure() -> list[runner.Measure]:
  """Trains twice with the quick start's noise and twice without any."""
  noisy, clean = [], []
  with tempfile.TemporaryDirectory() as folder:
    runs = pathlib.Path(folder)
    for repeat in range(_REPEATS):
      figures, run = glyph_runs.train_and_evaluate(f'noisy-{repeat}', runs=runs)
      noisy.append(glyph_runs.recall(figures, _RATE))
      figures, _ = glyph_runs.train_and_evaluate(
        f'clean-{repeat}', runs=runs, overrides=['privacy.noise_multiplier=0']
      )
      clean.append(glyph_runs.recall(figures, _RATE))
    plan = glyph_runs.plan_of(run)
    (extrapolated,) = extrapolation.extrapolate(plan, [_POPULATION])
  drop = 1 - statistics.mean(noisy) / statistics.mean(clean)
  measures = [
    runner.noted(f'recall@FAR {_RATE} with noise, run {i}', value)
    for i, value in enumerate(noisy)
  ]
  measures += [
    runner.noted(f'recall@FAR {_RATE} without noise, run {i}', value)
    for i, value in enumerate(clean)
  ]
  measures += [
    runner.at_most(
      f'drop of mean recall@FAR {_RATE}', 100 * drop, target=5, unit='%'
    ),
    runner.at_most(
      f'honest epsilon extrapolated to {_POPULATION:.0e} users',
      extrapolated.epsilon,
      target=4,
    ),
    runner.noted(
      'users a round that this supposes', extrapolated.users_per_round
    ),
  ]
  return measures
