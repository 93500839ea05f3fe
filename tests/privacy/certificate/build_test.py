"""Certificates are built from the ledger, or not at all."""

import math

import pytest

from tests.privacy.certificate import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib


def test_a_synthetic_set_is_for_one_adjacency(book):
  with pytest.raises(document.CertificateError, match='must be add-or-'):
    cases.for_synthesis(book, adjacency=guarantee.Adjacency.REPLACE_ONE)


def test_a_model_certificate_states_the_run_as_executed(book):
  content = cases.for_training(book)
  assert verification.verify(content, ledger=book) == []
  numbers = content['accounting']
  assert numbers['epsilon'] == pytest.approx(cases.PLAN.guarantee(7).epsilon)
  assert numbers['delta'] == cases.PLAN.delta
  assert [item['delta'] for item in numbers['epsilon_at_deltas']] == (
    pytest.approx(
      [cases.PLAN.delta / 100, cases.PLAN.delta / 10, cases.PLAN.delta]
    )
  )
  assert numbers['unamplified_epsilon'] == pytest.approx(
    cases.PLAN.unamplified_epsilon(7)
  )
  assert numbers['unamplified_mu_gdp'] == pytest.approx(math.sqrt(7))
  assert events.from_json(numbers['event']) == cases.PLAN.event(7)
  assert content['mechanism']['draws'] == 7
  assert content['mechanism']['replays'] == 1
  assert content['mechanism']['noise_multiplier'] == 2.0
  assert content['mechanism']['value_noise_multiplier'] == pytest.approx(
    (2.0**-2 - 4.0**-2) ** -0.5
  )
  assert content['adjacency']['sensitivity_multiple'] == 2
  assert content['sampling']['probability'] == 256 / 5000
  assert content['simulation'] is False
  assert content['audit'] == {'status': 'not run', 'results': []}
  assert content['mechanism']['redrawn'] == 1
  assert content['tuning']['runs_in_ledger'] == 1
  assert content['composition']['releases'] == [
    'quick/model',
    'quick/synthetic',
  ]
  spent = book.spent('glyphs').epsilon
  assert content['composition']['epsilon'] == pytest.approx(spent)
  assert content['composition']['remaining_epsilon'] == pytest.approx(8 - spent)
  assert content['provenance']['plan_digest'] == cases.PLAN.digest()
  assert 'reasonable' in content['statement']['strength']


def test_a_fixed_seed_gets_no_certificate(book):
  for make in (cases.for_training, cases.for_synthesis):
    with pytest.raises(document.CertificateError, match='fixed seed'):
      make(book, fixed_seed=True)


def test_figures_that_are_no_numbers_are_refused(book):
  with pytest.raises(document.CertificateError, match='finite JSON'):
    cases.for_training(book, utility={'recall': math.nan})


def test_another_plan_than_the_charged_one_is_refused(book):
  other = plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(5000, 200),
    mechanism=cases.PLAN.mechanism,
    virtual_clients=40,
    rounds=6,
    delta=cases.PLAN.delta,
  )
  with pytest.raises(document.CertificateError, match='another plan'):
    cases.for_training(book, plan=other)


def test_fewer_draws_than_rounds_are_refused(book):
  with pytest.raises(document.CertificateError, match='a draw for each'):
    cases.for_training(book, rounds_completed=8)


def test_a_release_that_was_not_charged_is_refused(book):
  with pytest.raises(document.CertificateError, match='got none'):
    cases.for_synthesis(book, release='quick/elsewhere')
  with pytest.raises(document.CertificateError, match='0 draws'):
    cases.for_training(book, release='quick/elsewhere')


def test_queries_that_reveal_more_than_was_charged_are_refused(book):
  with pytest.raises(document.CertificateError, match='as revealing'):
    more = noise.Query(name='more', noise_multiplier=1.0)
    cases.for_synthesis(book, queries=[*cases.QUERIES, more])


def test_delta_must_be_below_one_over_the_population(book):
  with pytest.raises(document.CertificateError, match='1 / population'):
    cases.for_synthesis(book, delta=1 / 5000)


def test_correlated_noise_is_certified_as_a_whole(book):
  cases.charge_tree(book, range(8))
  content = cases.for_training(book, cases.TREE_PLAN, **cases.TREE)
  assert verification.verify(content, ledger=book) == []
  numbers = content['accounting']
  assert numbers['epsilon'] == pytest.approx(
    cases.TREE_PLAN.guarantee(8).epsilon
  )
  assert numbers['unamplified_epsilon'] == pytest.approx(numbers['epsilon'])
  # By hand: a phase meets 2 rounds, one in each tree of 4 rounds, whose first
  # round is in the 3 nodes of levels 0, 1, 2: sensitivity 2 sqrt(2 x 3).
  assert numbers['mu_gdp'] == pytest.approx(2 * math.sqrt(2 * 3) / 8.0)
  assert content['mechanism']['strategy'] == {'kind': 'tree'}
  assert content['sampling']['min_separation'] == 4
  assert content['sampling']['max_participations'] == 2
  assert content['sampling']['participation'] == 'within'
  assert "user's index" in content['randomness']['source']
  spent = book.spent('trees', cases.TREE_PLAN.delta).epsilon
  assert content['composition']['epsilon'] == pytest.approx(spent)
  assert numbers['epsilon'] == pytest.approx(spent)


@pytest.mark.parametrize('verdict', ['outside', 'incomplete', 'not measured'])
def test_users_not_known_to_be_within_the_plan_get_no_certificate(
  book, verdict
):
  """Without sampling, the accounting rests on who took part."""
  cases.charge_tree(book, range(8))
  settings = cases.TREE | {'participation': verdict}
  with pytest.raises(
    document.CertificateError, match=f'within the lim.*{verdict}'
  ):
    cases.for_training(book, cases.TREE_PLAN, **settings)


def test_a_model_certificate_says_where_its_randomness_comes_from(book):
  content = cases.for_training(book)
  source = content['randomness']['source']
  for fact in (
    'stateless Philox',
    'each tensor and round',
    '128 fresh bits of the operating system',
    'never stored',
    'blake2b',
    'statistical, not cryptographic',
  ):
    assert fact in source
  assert 'floating-point' in content['randomness']['numerics']
  assert content['randomness']['seed'] == 'none fixed, none stored'
  for made in (content, cases.for_synthesis(book)):
    assert any('another ledger' in x for x in made['statement']['void_if'])
