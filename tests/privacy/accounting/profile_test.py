"""Profiles, groups and Gaussian bounds against independent calculations."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.accounting import profile

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE


def _rounds(noise_multiplier, probability, count):
  return dp_event.SelfComposedDpEvent(
    dp_event.PoissonSampledDpEvent(
      probability, dp_event.GaussianDpEvent(noise_multiplier)
    ),
    count,
  )


def _epsilon(event, delta):
  return accountant.guarantee_of_event(
    event, delta=delta, adjacency=_ADD_REMOVE
  ).epsilon


def _gaussian_delta(mu, epsilon):
  return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(
    epsilon
  ) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def test_a_profile_is_the_guarantee_at_each_delta():
  event, deltas = _rounds(1.0, 0.05, 100), (1e-3, 1e-5, 1e-8)
  found = profile.epsilons(event, deltas, adjacency=_ADD_REMOVE)
  assert [item.delta for item in found] == list(deltas)
  assert [item.epsilon for item in found] == [
    _epsilon(event, delta) for delta in deltas
  ]
  assert found[0].epsilon < found[1].epsilon < found[2].epsilon


# ---- mu-GDP ----


def test_gaussians_are_exactly_one_gaussian():
  event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(2.0), 9)
  assert profile.gdp_bound(event, adjacency=_ADD_REMOVE) == profile.GdpBound(
    pytest.approx(1.5), 0.0
  )


def test_a_sampled_gaussian_is_bounded_down_to_a_delta():
  event = _rounds(3.0, 0.1, 512)
  bound = profile.gdp_bound(event, adjacency=_ADD_REMOVE)
  assert bound.least_delta == 1e-10
  # The central limit (arXiv 1911.11607, section 5) is q sqrt(T (e^(1/z^2) - 1))
  # = .777, no bound; everyone in every round is sqrt(512) / 3 = 7.54.
  assert 0.777 < bound.mu < 0.85
  for delta in np.geomspace(1e-10, 0.1, 12):
    gaussian = accountant.guarantee_of_event(
      dp_event.GaussianDpEvent(1 / bound.mu),
      delta=float(delta),
      adjacency=_ADD_REMOVE,
    )
    assert _epsilon(event, float(delta)) <= gaussian.epsilon * (1 + 1e-6)
  # It is tight: a little less is no bound.
  grid = np.linspace(0.01, 6, 300)
  counts = accountant.distribution_leaves(events.flatten(event), _ADD_REMOVE)
  assert counts is not None
  smaller = [_gaussian_delta(0.99 * bound.mu, value) for value in grid]
  from tff_dpemb.privacy.accounting import loss_distribution

  composed = loss_distribution.compose(
    counts, loss_distribution.choose_grid(counts)
  )
  assert np.any(composed.deltas(grid) > np.asarray(smaller))


@pytest.mark.parametrize(
  'event',
  [
    dp_event.NonPrivateDpEvent(),
    dp_event.ZCDpEvent(rho=0.1),
    dp_event.UnsupportedDpEvent(),
  ],
)
def test_no_bound_is_said_to_be_none(event):
  assert profile.gdp_bound(event, adjacency=_ADD_REMOVE) is None


def test_nothing_done_is_bounded_by_nothing():
  found = profile.gdp_bound(dp_event.NoOpDpEvent(), adjacency=_ADD_REMOVE)
  assert found == profile.GdpBound(0.0, 0.0)


# ---- groups ----


def _group(event, users, delta=1e-6):
  return profile.group_guarantee(
    event, users=users, delta=delta, adjacency=_ADD_REMOVE
  )


def test_a_group_of_a_gaussian_is_exact():
  # k users move the sum by k sensitivities: GDP of k mu (arXiv 1905.02383,
  # theorem 2.14).
  event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(6.0), 4)
  found = _group(event, 3)
  assert found.mu_gdp == pytest.approx(3 * 2 / 6)
  assert _gaussian_delta(found.mu_gdp, found.epsilon) == pytest.approx(1e-6)


def test_a_group_of_one_is_one_user():
  event = _rounds(2.0, 0.1, 50)
  assert _group(event, 1).epsilon == _epsilon(event, 1e-6)


def test_a_group_of_sampled_users_lies_between_its_bounds():
  event = _rounds(3.0, 0.1, 512)
  found = _group(event, 2)
  assert found.accountant == 'PLD'
  generic = profile._generic_group(events.flatten(event), 2, 1e-6, _ADD_REMOVE)
  # Two that always are in the same rounds would be one of twice the norm.
  together = _rounds(1.5, 0.1, 512)
  assert 2 * _epsilon(event, 1e-6) < found.epsilon < generic
  assert found.epsilon < _epsilon(together, 1e-6)
  assert _group(event, 3).epsilon > found.epsilon


def test_a_group_of_sampled_users_agrees_with_sampling():
  """Samples the loss of a worst-case pair: two users, five rounds.

  The estimate of delta = .01 has a standard deviation below
  sqrt(.01 / n) = 1.2e-4; the bound is six of them (false alarms < 1e-8), and
  the grid's rounding, 2 %.
  """
  noise, probability, number = 1.2, 0.2, 700_000
  rng = np.random.default_rng(11)
  loss = np.zeros(number)
  for _ in range(5):
    there = rng.binomial(2, probability, number)
    x = rng.standard_normal(number) * noise + there
    ratio = sum(
      stats.binom.pmf(j, 2, probability)
      * np.exp((2 * j * x - j * j) / (2 * noise**2))
      for j in range(3)
    )
    loss += np.log(ratio)
  epsilon = _group(_rounds(noise, probability, 5), 2, delta=0.01).epsilon
  delta = np.maximum(0, -np.expm1(epsilon - loss)).mean()
  assert delta == pytest.approx(0.01, abs=7e-4 + 2e-4)


def test_a_group_of_other_events_uses_the_generic_bound():
  event = dp_event.ComposedDpEvent(
    [_rounds(3.0, 0.1, 100), dp_event.ZCDpEvent(rho=0.1)]
  )
  found = _group(event, 2)
  assert found.accountant == 'group of RDP'
  assert 2 * _epsilon(event, 1e-6) < found.epsilon < math.inf
  # By hand: some delta' of one user with delta' (1 + e^epsilon) <= delta.
  one = found.epsilon / 2
  tries = np.geomspace(1e-30, 1e-6, 400)
  assert any(
    _epsilon(event, value) <= one * (1 + 1e-3)
    and value * (1 + math.exp(one)) <= 1.2e-6
    for value in tries
  )


def test_a_group_keeps_to_what_is_not_private():
  assert _group(dp_event.NonPrivateDpEvent(), 2).epsilon == math.inf
  assert _group(dp_event.NoOpDpEvent(), 2).epsilon == 0


@pytest.mark.parametrize('users', [0, -1, 1.5])
def test_illegal_groups_are_refused(users):
  with pytest.raises(guarantee.AccountingError, match='users must be >= 1'):
    _group(dp_event.GaussianDpEvent(1.0), users)


@pytest.mark.parametrize('noise', [0.01, 0.025, 0.05])
def test_noise_that_protects_nobody_has_no_gaussian_bound(noise):
  """Epsilon of hundreds and more, as a simulation's: no number, not infinity."""
  event = dp_event.SelfComposedDpEvent(
    dp_event.PoissonSampledDpEvent(0.16, dp_event.GaussianDpEvent(noise)), 4
  )
  assert profile.gdp_bound(event, adjacency=_ADD_REMOVE) is None
