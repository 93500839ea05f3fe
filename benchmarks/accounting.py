"""Epsilon: published figures reproduced, and an answer in seconds to anything."""

import math
import random
import time

from dp_accounting import dp_event

from benchmarks import runner
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import profile
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE
_QUESTIONS = 200
_SEED = 20


def measure() -> list[runner.Measure]:
  """Recomputes the published figures, then asks random legal questions."""
  return [*_published(), *_identities(), *_fuzz()]


def _published() -> list[runner.Measure]:
  rounds = _rounds(3.0, 0.1, 512)
  golden = accountant.guarantee_of_event(
    rounds, delta=1e-6, adjacency=_ADD_REMOVE
  )
  # Paper A's published EMNIST command: noise .62, 256 users in 32 virtual
  # clients, 200 rounds, 6 800 users, delta N^-1.1.
  emnist = plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(6800, 256),
    mechanism=independent.FixedClipGaussian(1.0, 0.62),
    virtual_clients=32,
    rounds=200,
    delta=plan_lib.default_delta(6800),
  )
  # One user moves a tree node's sum by 2 x clip: the multiplier is z / 2.
  tree = accountant.guarantee_of_event(
    dp_event.SingleEpochTreeAggregationDpEvent(
      noise_multiplier=3.84 / 2, step_counts=30
    ),
    delta=plan_lib.default_delta(10**6),
    adjacency=guarantee.Adjacency.ZERO_OUT,
  )
  group = profile.group_guarantee(
    rounds, users=2, delta=1e-6, adjacency=_ADD_REMOVE
  )
  bound = profile.gdp_bound(rounds, adjacency=_ADD_REMOVE)
  measures = [
    _near('DP-SGD, z 3, q .1, T 512, delta 1e-6', golden.epsilon, 3.77, 0.005),
    _near('EMNIST command, naive', emnist.naive_epsilon(), 9.67, 0.005),
    _near('EMNIST command, honest', emnist.guarantee(200).epsilon, 64.2, 0.05),
    _near('tree, z 3.84, T 30, N 1e6', tree.epsilon, 6.53, 0.005),
    runner.noted('DP-SGD above, for 2 users together', group.epsilon),
  ]
  if bound is not None:
    measures.append(
      runner.noted('DP-SGD above, mu-GDP bound for delta >= 1e-10', bound.mu)
    )
  return measures


def _identities() -> list[runner.Measure]:
  """Adaptive clipping: value and count together are the total, once."""
  worst = 0.0
  for total, clients in ((0.3, 10), (1.0, 20), (2.0, 40), (9.0, 1000)):
    mechanism = independent.AdaptiveClipGaussian(
      1.0, total, virtual_clients=clients
    )
    parts, whole = (
      accountant.guarantee_of_event(event, delta=1e-5, adjacency=_ADD_REMOVE)
      for event in (mechanism.components(2.0), mechanism.event(2.0))
    )
    worst = max(worst, abs(parts.epsilon / whole.epsilon - 1))
  return [
    runner.at_most('adaptive split against the total', worst, target=1e-6)
  ]


def _fuzz() -> list[runner.Measure]:
  rng = random.Random(_SEED)
  worst = answered = refused = 0.0
  for _ in range(_QUESTIONS):
    event = dp_event.ComposedDpEvent(
      [_random_rounds(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    )
    low = 1e-300 if rng.random() < 0.3 else 1e-12
    delta = _log_uniform(rng, low, 1e-2)
    start = time.process_time()
    try:
      found = accountant.guarantee_of_event(
        event, delta=delta, adjacency=_ADD_REMOVE
      )
      answered += math.isfinite(found.epsilon)
    except guarantee.AccountingError:
      refused += 1
    worst = max(worst, time.process_time() - start)
  return [
    runner.at_most(
      f'longest of {_QUESTIONS} random questions (noise 1e-3 to 1e3, q 1e-6 to'
      ' 1, T 1 to 1e6, delta 1e-300 to 1e-2, mixtures of up to 3)',
      worst,
      target=5,
      unit='CPU s',
    ),
    runner.equal_to(
      'of them answered or refused', answered + refused, target=_QUESTIONS
    ),
  ]


def _near(
  name: str, value: float, target: float, tolerance: float
) -> runner.Measure:
  return runner.Measure(
    f'epsilon, {name}',
    value,
    target=f'= {target:g} +- {tolerance:g}',
    holds=abs(value - target) <= tolerance,
  )


def _rounds(
  noise_multiplier: float, probability: float, count: int
) -> dp_event.DpEvent:
  return dp_event.SelfComposedDpEvent(
    dp_event.PoissonSampledDpEvent(
      probability, dp_event.GaussianDpEvent(noise_multiplier)
    ),
    count,
  )


def _random_rounds(rng: random.Random) -> dp_event.DpEvent:
  return _rounds(
    _log_uniform(rng, 1e-3, 1e3),
    1.0 if rng.random() < 0.1 else _log_uniform(rng, 1e-6, 1),
    int(_log_uniform(rng, 1, 1e6)),
  )


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
  return math.exp(rng.uniform(math.log(low), math.log(high)))
