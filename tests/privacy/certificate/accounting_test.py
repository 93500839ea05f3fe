"""Part 8: what follows from what was drawn."""

import pytest
from dp_accounting import dp_event

from tests.privacy.certificate import cases
from tff_dpemb.privacy.accounting import profile
from tff_dpemb.privacy.certificate import verification


def test_a_synthetic_certificate_states_what_was_charged(book):
  content = cases.for_synthesis(book)
  assert verification.verify(content, ledger=book) == []
  numbers = content['accounting']
  multiplier = (8.0**-2 + 2 * 4.0**-2) ** -0.5
  assert numbers['unamplified_mu_gdp'] == pytest.approx(1 / multiplier)
  assert numbers['epsilon'] == numbers['unamplified_epsilon']
  assert numbers['zcdp_rho'] == pytest.approx(0.5 / multiplier**2)
  assert content['utility']['dropped_classes'] == ['radical 9']


def test_a_model_certificate_states_more_than_one_epsilon(book):
  numbers = cases.for_training(book)['accounting']
  event = cases.PLAN.event(7)
  assert [row['delta'] for row in numbers['profile']] == pytest.approx(
    [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
  )
  epsilons = [row['epsilon'] for row in numbers['profile']]
  assert epsilons == sorted(epsilons)
  assert epsilons[3] == pytest.approx(
    cases.PLAN.guarantee(7, delta=1e-5).epsilon
  )
  assert numbers['mu_gdp'] is None  # No such figure for sampled Gaussians, ...
  assert numbers['zcdp_rho'] is None
  assert numbers['unamplified_zcdp_rho'] == pytest.approx(7 / 2)
  assert numbers['mu_gdp_bound'] == {  # ... but a bound where delta counts.
    'mu': pytest.approx(
      profile.gdp_bound(event, adjacency=cases.PLAN.adjacency).mu
    ),
    'least_delta': 1e-10,
  }
  assert numbers['mu_gdp_bound']['mu'] < numbers['unamplified_mu_gdp'] / 3
  groups = {row['users']: row['epsilon'] for row in numbers['groups']}
  assert list(groups) == [2, 5]
  assert groups[2] == pytest.approx(
    profile.group_guarantee(
      event, users=2, delta=cases.PLAN.delta, adjacency=cases.PLAN.adjacency
    ).epsilon
  )
  assert 2 * numbers['epsilon'] < groups[2] < groups[5]


def test_a_release_that_was_drawn_again_is_certified_twice(book):
  """Also one query alone: charged, then a crash before it was noted."""
  once = cases.for_synthesis(book)['accounting']['epsilon']
  assert cases.for_synthesis(book)['mechanism']['overcharge'] == 0
  cases.charge(
    book,
    None,
    release='quick/synthetic',
    event=dp_event.GaussianDpEvent(8.0),
  )
  content = cases.for_synthesis(book)
  assert verification.verify(content, ledger=book) == []
  assert content['mechanism']['overcharge'] == pytest.approx(8.0**-2)
  assert content['accounting']['epsilon'] > once
  once = content['accounting']['epsilon']
  cases.charge(book, None, release='quick/synthetic', event=cases.RELEASE_EVENT)
  content = cases.for_synthesis(book)
  assert verification.verify(content, ledger=book) == []
  assert content['accounting']['epsilon'] > once


def test_repeated_rounds_of_correlated_noise_are_certified(book):
  cases.charge_tree(book, (0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 0))
  content = cases.for_training(book, cases.TREE_PLAN, **cases.TREE)
  assert content['mechanism']['redrawn'] == 3
  assert content['mechanism']['draws'] == 11
  assert verification.verify(content, ledger=book) == []
  assert content['accounting']['epsilon'] == pytest.approx(
    book.spent('trees', cases.TREE_PLAN.delta).epsilon
  )
  assert content['accounting']['epsilon'] > cases.TREE_PLAN.guarantee(8).epsilon


def test_a_run_that_stopped_early_is_certified_as_it_was_charged(book):
  cases.charge_tree(book, range(5))
  content = cases.for_training(
    book, cases.TREE_PLAN, **(cases.TREE | {'rounds_completed': 5})
  )
  assert content['accounting']['epsilon'] == pytest.approx(
    cases.TREE_PLAN.guarantee(8).epsilon
  )
