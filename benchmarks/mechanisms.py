"""Noise of every mechanism as stated, and what each teaches at equal epsilon."""

import math
import pathlib
import tempfile

import numpy as np

from benchmarks import glyph_runs
from benchmarks import mechanism_cases as cases
from benchmarks import runner
from tff_dpemb.privacy.planning import calibration

_SIZE = 50_000
# In standard errors: a false alarm in 6e-7 of statistics, of which there are
# some 500.
_BOUND = 5.0
_RATE = '0.001'
# As in the ablation: 20 rounds, and so much noise that it shows. The guarantee
# of that noise under Poisson sampling is what all others are calibrated to: a
# large epsilon, since the bundle's few thousand users stand for a larger
# population.
_COMMON = ('training.rounds=20', 'privacy.clipping=fixed')
_POISSON_NOISE = 0.1
_SCHEDULE = 'privacy.sampler=min-separation'
_RESTARTS = ('privacy.clipping=adaptive', 'privacy.restart_every=5')
_VARIANTS = {
  'Poisson, independent': (),
  'schedule, independent': (_SCHEDULE,),
  'schedule, tree': (_SCHEDULE, 'privacy.noise=tree'),
  'schedule, tree, adaptive clip': (
    _SCHEDULE,
    'privacy.noise=tree',
    *_RESTARTS,
  ),
  'schedule, banded': (_SCHEDULE, 'privacy.noise=banded'),
  'schedule, BLT': (_SCHEDULE, 'privacy.noise=blt'),
  'schedule, BLT, adaptive clip': (
    _SCHEDULE,
    'privacy.noise=blt',
    *_RESTARTS,
  ),
}


def measure() -> list[runner.Measure]:
  """Measures the noise on sums, then trains on the glyphs with each."""
  return [*_measure_noise(), *_measure_training()]


def _measure_noise() -> list[runner.Measure]:
  import tensorflow_federated as tff

  from tff_dpemb.training import aggregators
  from tff_dpemb.training.execution import executors

  value_type = tff.types.to_type([(np.float32, [_SIZE]), (np.float32, [_SIZE])])
  zeros = [[np.zeros([_SIZE], np.float32)] * 2] * 20
  measures = []
  with executors.local():
    for name, mechanism in cases.build(1.5, virtual_clients=20).items():
      process = aggregators.build_aggregator(
        mechanism, denominator=1.0, rounds=cases.ROUNDS
      ).create(value_type)
      state = process.initialize()
      noise, clips = [], []
      for _ in range(cases.ROUNDS):
        state = aggregators.with_fresh_noise_seeds(state)
        clips.append(float(cases.sum_state(state).l2_norm_clip))
        output = process.next(state, zeros)
        state = output.state
        noise.append([np.asarray(x) for x in output.result])
      measures += _measure_one_noise(
        name, mechanism, np.array(noise, float), np.array(clips)
      )
  return measures


def _measure_one_noise(name, mechanism, noise, clips) -> list[runner.Measure]:
  """Holds noise [rounds, 2, size] to what the mechanism says of it."""
  from tff_dpemb.privacy.mechanisms import correlated_gaussian

  # Row t: how round t's noise is made of the rounds' fresh noise.
  mixing = np.diag(clips) * mechanism.value_noise_multiplier
  if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
    # The clip norm is constant within the segments that noise spreads over.
    mixing = mechanism.stream(cases.ROUNDS).noise(np.eye(cases.ROUNDS)) @ mixing
  error = 1 / math.sqrt(2 * _SIZE)  # of a deviation, relative
  off = []
  for values, made in (
    (noise, mixing),
    (np.cumsum(noise, axis=0), np.cumsum(mixing, axis=0)),
  ):
    expected = np.linalg.norm(made, axis=1)[:, None]
    off.append(np.abs(values.std(axis=2) / expected - 1).max() / error)
  shared = max(
    abs(np.corrcoef(first, second)[0, 1]) for first, second in noise
  ) * math.sqrt(_SIZE)
  return [
    runner.at_most(
      f"{name}: a round's noise off its deviation, at most",
      off[0],
      target=_BOUND,
      unit='standard errors',
    ),
    runner.at_most(
      f"{name}: a running total's noise off its deviation, at most",
      off[1],
      target=_BOUND,
      unit='standard errors',
    ),
    runner.at_most(
      f'{name}: correlation of two tensors of one shape, at most',
      shared,
      target=_BOUND,
      unit='standard errors',
    ),
  ]


def _measure_training() -> list[runner.Measure]:
  from tff_dpemb import config

  measures = []
  with tempfile.TemporaryDirectory() as folder:
    runs = pathlib.Path(folder)
    population, target = 0, 0.0
    for index, (name, settings) in enumerate(_VARIANTS.items()):
      overrides = [*_COMMON, *settings]
      noise = _POISSON_NOISE
      if index:
        page = config.load(glyph_runs.PAGE, overrides=overrides)
        noise = _calibrated(page, population, target)
      figures, run = glyph_runs.train_and_evaluate(
        f'variant-{index}',
        runs=runs,
        overrides=[*overrides, f'privacy.noise_multiplier={noise!r}'],
      )
      plan = glyph_runs.plan_of(run)
      population = plan.population
      epsilon = plan.guarantee(plan.rounds).epsilon
      target = target or epsilon
      measures += [
        runner.noted(
          f'{name}: recall@FAR {_RATE}', glyph_runs.recall(figures, _RATE)
        ),
        runner.noted(f'{name}: noise multiplier', noise),
        runner.at_most(
          f'{name}: epsilon against the first', epsilon / target, target=1.0001
        ),
      ]
      if not index:
        measures.append(runner.noted('epsilon of all', target))
    measures.append(
      runner.noted(
        f'recall@FAR {_RATE}, pretraining only',
        glyph_runs.recall(figures, _RATE, of='pretraining_only'),
      )
    )
  return measures


def _calibrated(page, population: int, epsilon: float) -> float:
  """Returns the least noise multiplier of a page's plan for `epsilon`."""
  from tff_dpemb.privacy.planning import settings

  plan = settings.plan_from_config(
    page.privacy, population=population, rounds=page.training.rounds
  )
  return calibration.calibrate(plan, epsilon).mechanism.noise_multiplier
