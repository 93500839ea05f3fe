"""One NaN, Inf or overflowing update in 20: every mechanism's round is finite."""

from typing import Any

import numpy as np

from benchmarks import mechanism_cases
from benchmarks import runner

_CLIENTS = 20
_SIZE = 5000
_BAD = {'NaN': np.nan, '+Inf': np.inf, '-Inf': -np.inf, '1e30': 1e30}
_ROUNDS = 3  # the bad update comes in the second


def measure() -> list[runner.Measure]:
  """Plays rounds with a bad update, and with zeros in its place."""
  import tensorflow_federated as tff

  from tff_dpemb.training.execution import executors

  rng = np.random.default_rng(0)
  value_type = tff.types.to_type([(np.float32, [_SIZE]), (np.float32, [_SIZE])])
  clean = [
    [rng.normal(0, 0.01 * scale, _SIZE).astype(np.float32) for _ in range(2)]
    for scale in np.linspace(0.1, 1, _CLIENTS)
  ]
  cases = mechanism_cases.build(1.0, virtual_clients=_CLIENTS)
  measures = []
  with executors.local():
    stock = tff.learning.dp_aggregator(1.0, _CLIENTS).create(value_type)
    poisoned = _replaced(clean, np.nan)
    result = stock.next(stock.initialize(), poisoned).result
    measures.append(
      runner.noted(
        'values that one NaN leaves finite in tff.learning.dp_aggregator',
        float(np.mean([np.isfinite(x).mean() for x in result])),
      )
    )
    for name, mechanism in cases.items():
      measures += _measure_one(name, mechanism, value_type, clean)
  return measures


def _measure_one(name, mechanism, value_type, clean):
  from tff_dpemb.training import aggregators

  process = aggregators.build_aggregator(
    mechanism, denominator=_CLIENTS, rounds=mechanism_cases.ROUNDS
  ).create(value_type)
  seeds: list[Any] = []  # The first play draws them, the others use them again.

  def play(second):
    state, results, zeroed = process.initialize(), [], 0
    for number in range(_ROUNDS):
      if len(seeds) == number:
        seeds.append(aggregators.with_fresh_noise_seeds(state))
      state = _with_seeds_of(state, seeds[number])
      output = process.next(state, second if number == 1 else clean)
      state = output.state
      results.append([np.asarray(x) for x in output.result])
      zeroed += int(output.measurements['zeroed'])
    return results, zeroed

  expected, none = play(_replaced(clean, 0.0))
  worst, finite, zeroed = 0.0, True, []
  for bad in _BAD.values():
    results, count = play(_replaced(clean, bad))
    zeroed.append(count)
    for ours, theirs in zip(results, expected, strict=True):
      finite = finite and all(np.isfinite(x).all() for x in ours)
      for x, y in zip(ours, theirs, strict=True):
        worst = max(worst, float(np.max(np.abs(x - y))))
  return [
    runner.equal_to(f'{name}: rounds stay finite', finite, target=1),
    runner.equal_to(
      f'{name}: largest difference from zeros in its place', worst, target=0
    ),
    runner.equal_to(
      f'{name}: updates zeroed in {len(_BAD)} plays',
      sum(zeroed) - none,
      target=len(_BAD),
    ),
  ]


def _replaced(clean, value):
  """The updates with the last one's first tensor holding `value`."""
  if value == 0:
    return [*clean[:-1], [np.zeros(_SIZE, np.float32)] * 2]
  bad = [x.copy() for x in clean[-1]]
  bad[0][_SIZE // 2] = value
  return [*clean[:-1], bad]


def _with_seeds_of(state, other):
  """Returns `state` with the noise seeds that `other` holds."""
  from tff_dpemb.training import noise_queries

  if not isinstance(state, tuple) or not hasattr(state, '_fields'):
    return state
  return type(state)(
    **{
      field: (
        getattr(other, field)
        if field == noise_queries.SEEDS_FIELD
        else _with_seeds_of(getattr(state, field), getattr(other, field))
      )
      for field in state._fields
    }
  )
