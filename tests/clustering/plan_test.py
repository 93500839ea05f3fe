"""The plan meets what was asked, and is exactly what is accounted."""

import math

import dp_accounting
import pytest
from dp_accounting import pld
from dp_accounting import rdp

from tff_dpemb.clustering import errors
from tff_dpemb.clustering import plan as plan_lib


def build(**overrides):
  settings = dict(epsilon=8.0, delta=2e-4, projection_dim=16)
  return plan_lib.build(tuple(range(5)), **{**settings, **overrides})


@pytest.mark.parametrize('epsilon', [0.3, 1.0, 8.0])
@pytest.mark.parametrize('delta', [1e-3, 1e-6])
def test_pld_epsilon_is_at_most_what_was_asked(epsilon, delta):
  plan = build(epsilon=epsilon, delta=delta)
  found = pld.PLDAccountant().compose(plan.event()).get_epsilon(delta)
  assert 0.995 * epsilon <= found <= epsilon
  assert plan_lib.epsilon_of_event(plan.event(), delta) <= epsilon
  upper = rdp.RdpAccountant().compose(plan.event()).get_epsilon(delta)
  assert found <= upper <= 1.3 * epsilon


@pytest.mark.parametrize('rounds', [1, 2, 4])
@pytest.mark.parametrize('components', [1, 3])
@pytest.mark.parametrize('covariance', ['pooled', 'per_class'])
def test_passes_compose_to_the_whole_budget(rounds, components, covariance):
  plan = build(
    clustering_rounds=rounds,
    components_per_class=components,
    covariance=covariance,
  )
  spent = sum(step.noise_multiplier**-2 for step in plan.passes)
  assert math.isclose(spent, plan.noise_multiplier**-2, rel_tol=1e-9)
  assert math.isclose(plan.rho(), spent / 2, rel_tol=1e-9)
  assert len(plan.passes) == max(rounds, 1 if components == 1 else 2)
  asked = [tuple(step.multipliers) for step in plan.passes]
  assert 'counts' in asked[0]
  assert [('scatter' in names) for names in asked] == [False] * (
    len(asked) - 1
  ) + [True]
  if components > 1:
    assert all('counts' in names for names in asked)


def test_split_shares_are_respected():
  split = plan_lib.BudgetSplit(counts=0.1, sums=0.5, scatter=0.4)
  plan = build(clustering_rounds=3, split=split)
  total = plan.noise_multiplier**-2
  shares = {
    name: sum(
      step.multipliers[name] ** -2
      for step in plan.passes
      if name in step.multipliers
    )
    / total
    for name in ('counts', 'sums', 'scatter')
  }
  assert shares == pytest.approx({'counts': 0.1, 'sums': 0.5, 'scatter': 0.4})


def test_event_is_one_gaussian_a_pass():
  plan = build(clustering_rounds=3)
  events = plan.event().events
  assert [type(event) for event in events] == [
    dp_accounting.GaussianDpEvent
  ] * 3


def test_event_of_charges_repeats_what_was_charged_again():
  plan = build(clustering_rounds=2)
  first, second = plan.event().events
  assert plan.event_of([]).events == []
  assert plan.event_of(['plan']) == plan.event()
  assert plan.event_of(['plan', 'centres_1', 'centres_1']).events == [
    first,
    second,
    second,
    second,
  ]
  with pytest.raises(errors.ClusteringError, match="got 'centres_9'"):
    plan.event_of(['plan', 'centres_9'])


def test_discrete_noise_costs_next_to_no_delta():
  plan = build()
  assert plan.discrete_delta() < 1e-6 * plan.delta


def test_digest_tells_plans_apart():
  assert build().digest() == build().digest()
  assert build().digest() != build(epsilon=4.0).digest()


@pytest.mark.parametrize(
  'overrides, message',
  [
    ({'epsilon': 0.0}, r'epsilon must be in \(0, 100\], got 0.0'),
    ({'epsilon': math.nan}, 'epsilon must be in'),
    ({'epsilon': 60.0}, 'ask for a smaller epsilon'),
    ({'delta': 1.0}, r'delta must be in \(0, 1\)'),
    ({'components_per_class': 0}, 'components_per_class must be >= 1'),
    ({'clustering_rounds': 0}, 'clustering_rounds must be >= 1'),
    ({'covariance': 'full'}, "covariance must be 'pooled' or 'per_class'"),
  ],
)
def test_illegal_values_are_refused(overrides, message):
  with pytest.raises(errors.ClusteringError, match=message):
    build(**overrides)


@pytest.mark.parametrize('classes', [(), (1, 1), (-1, 2)])
def test_illegal_classes_are_refused(classes):
  with pytest.raises(errors.ClusteringError, match='classes must be distinct'):
    plan_lib.build(classes, epsilon=1.0, delta=1e-5, projection_dim=2)


def test_illegal_split_is_refused():
  with pytest.raises(errors.ClusteringError, match='sum to 1'):
    plan_lib.BudgetSplit(counts=0.5, sums=0.6, scatter=0.4)
  with pytest.raises(errors.ClusteringError, match=r'in \(0, 1\)'):
    plan_lib.BudgetSplit(counts=0.0, sums=0.6, scatter=0.4)
