"""A round here against a raw TensorFlow loop, stock TFF, pfl, fedjax, Flower."""

from collections.abc import Collection

from benchmarks import runner
from benchmarks.peers import race
from benchmarks.peers import work as work_lib

_ROUNDS = 5
_OURS = 'this project'
_RAW = ('raw loop, 1 slot', 'raw loop, 2 slots')
_STOCK = 'tff.learning FedAvg'
_PEERS = ('pfl', 'fedjax', 'Flower')
_ENGINES = (
  race.Engine(_OURS, 'ours'),
  race.Engine(_RAW[0], 'raw', '1'),
  race.Engine(_RAW[1], 'raw', '2'),
  race.Engine(_STOCK, 'stock', 'fed_avg'),
  race.Engine('pfl', 'pfl_torch', environment='pfl'),
  race.Engine('fedjax', 'fedjax_jax', environment='fedjax'),
  race.Engine('Flower', 'flower_tf', environment='flower'),
)
_DEFAULTS = race.Engine(
  "tff.learning, TensorFlow's default kernels", 'stock', 'fed_avg/defaults'
)
_PRODUCT = race.Engine('matrix products of as many operations', 'product')
_RECON = race.Engine('tff.learning FedRecon', 'stock', 'fed_recon')
# What `--without` may name; the others are what the figures are made of.
MAY_BE_LEFT_OUT = _PEERS


def measure(*, without: Collection[str] = ()) -> list[runner.Measure]:
  """Races all engines on two models, then the recipe with and without cache."""
  measures = []
  for work, engines in (
    ('lenet', (*_ENGINES, _RECON, _DEFAULTS, _PRODUCT)),
    ('mobilenet_v2', _ENGINES),
  ):
    times = race.run(engines, work, rounds=_ROUNDS, without=without)
    measures += _compare(work, times)
  times = race.run(
    (
      race.Engine('cached', 'head_phase', 'cached'),
      race.Engine('uncached', 'head_phase', 'uncached'),
    ),
    'recipe',
    rounds=_ROUNDS,
  )
  return measures + _compare_cache(times)


def _compare(work, times) -> list[runner.Measure]:
  planned = work_lib.WORKS[work]
  examples = planned.clients * planned.examples
  measures = [
    runner.noted(f'{work}: {name}', examples / result.median, unit='examples/s')
    for name, result in times.items()
  ]
  ours = times[_OURS].median
  best = min(times[name].median for name in _RAW)
  measures.append(
    runner.at_least(f'{work}: speed / best raw loop', best / ours, target=0.9)
  )
  for name in (_STOCK, *_PEERS):
    if name in times:
      target = 1.6 if name == _STOCK else 1.0
      ratio = times[name].median / ours
      measures.append(
        runner.at_least(f'{work}: speed / {name}', ratio, target=target)
      )
  if _DEFAULTS.name in times:
    ratio = times[_DEFAULTS.name].median / ours
    measures.append(runner.noted(f'{work}: speed / {_DEFAULTS.name}', ratio))
  if _PRODUCT.name in times:
    bound = times[_PRODUCT.name].median
    measures.append(
      runner.noted(f'{work}: speed / {_PRODUCT.name}', bound / ours)
    )
    # What an engine without any work of its own would reach.
    measures.append(
      runner.noted(
        f'{work}: {_PRODUCT.name} / {_STOCK}', times[_STOCK].median / bound
      )
    )
  return measures


def _compare_cache(times) -> list[runner.Measure]:
  cached, uncached = times['cached'], times['uncached']
  return [
    runner.noted(
      'recipe: a round with cached embeddings', cached.median, unit='s'
    ),
    runner.noted('recipe: a round without', uncached.median, unit='s'),
    runner.at_least(
      'recipe: speed with cached embeddings / without',
      uncached.median / cached.median,
      target=5,
    ),
  ]
