"""Part 16: the facts in plain words."""

import copy

import pytest
from dp_accounting import dp_event

from tests.privacy.certificate import cases
from tff_dpemb.privacy.certificate import statement
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.planning import plan as plan_lib


def test_a_simulation_says_so_and_keeps_the_honest_figure(book):
  content = cases.for_training(book, simulation=True)
  assert content['simulation'] is True
  assert 'simulation' in content['statement']['text']
  assert (
    content['accounting']['epsilon']
    == cases.for_training(book)['accounting']['epsilon']
  )


def test_no_noise_is_certified_as_no_guarantee(book):
  plan = plan_lib.PrivacyPlan(
    sampler=cases.PLAN.sampler,
    mechanism=independent.FixedClipGaussian(0.5, 0.0),
    virtual_clients=40,
    rounds=1,
    delta=cases.PLAN.delta,
  )
  cases.charge(
    book,
    0,
    population='unprotected',
    run='plain',
    release='plain/model',
    event=plan.round_event(),
  )
  content = cases.for_training(
    book,
    plan=plan,
    population='unprotected',
    run='plain',
    release='plain/model',
    rounds_completed=1,
  )
  assert content['accounting']['epsilon'] is None
  assert 'no guarantee' in content['statement']['text']
  assert content['statement']['strength'] == 'none'
  assert verification.verify(content, ledger=book) == []
  content['accounting']['epsilon'] = 1.0
  assert verification.verify(cases.sealed(content)) != []


def test_groups_are_in_the_statement(book):
  content = cases.for_synthesis(book)
  (two, five) = content['accounting']['groups']
  text = content['statement']['groups']
  assert f'2: epsilon {two["epsilon"]:.4g}; ' in text
  assert f'5: epsilon {five["epsilon"]:.4g}.' in text
  assert f'At delta {content["accounting"]["delta"]:.3g}' in text


def test_a_synthetic_headline_states_both_figures(book):
  content = cases.for_synthesis(book)
  own = content['accounting']['epsilon']
  together = book.spent('glyphs', cases.PLAN.delta).epsilon
  assert content['composition']['epsilon'] == pytest.approx(together)
  assert content['composition']['delta'] == content['accounting']['delta']
  assert own < together
  text = content['statement']['text']
  assert f'({own:.4g}, ' in text
  assert 'in addition, given the encoder' in text
  assert (
    f'what bounds everything together is user-level ({together:.4g}' in text
  )
  assert 'quick/model' in text
  assert f'up to entry {book.head()[0]}' in text
  assert 'whatever else is known' not in text
  assert any('encoder' in item for item in content['statement']['void_if'])
  assert 'strong' not in content['statement']['strength']  # Of both together.
  assert 'reasonable' in content['statement']['strength']


def test_an_encoder_that_is_not_in_the_ledger_is_not_bounded(book):
  cases.charge(
    book,
    None,
    population='lone',
    run='lone',
    release='lone/synthetic',
    event=cases.RELEASE_EVENT,
  )
  content = cases.for_synthesis(
    book, population='lone', run='lone', release='lone/synthetic'
  )
  assert 'nothing bounds everything together' in content['statement']['text']
  assert verification.verify(content, ledger=book) == []


def test_no_bound_on_the_encoder_is_no_bound_on_the_set(book):
  for release, event in (
    ('plain/model', dp_event.NonPrivateDpEvent()),
    ('plain/synthetic', cases.RELEASE_EVENT),
  ):
    cases.charge(
      book, None, population='plain', run='plain', release=release, event=event
    )
  content = cases.for_synthesis(
    book, population='plain', run='plain', release='plain/synthetic'
  )
  assert content['accounting']['epsilon'] < 10
  assert content['composition']['epsilon'] is None
  assert 'together is no guarantee' in content['statement']['text']
  assert content['statement']['strength'] == 'none'
  assert verification.verify(content, ledger=book) == []


def test_a_model_shows_the_composition_where_there_are_other_releases(
  book, model
):
  together = book.spent('glyphs', cases.PLAN.delta).epsilon
  text = cases.for_training(book)['statement']['text']
  assert 'whatever else is known' in text
  assert (
    f'what bounds everything together is user-level ({together:.4g}' in text
  )
  assert 'encoder' not in text
  assert 'together' not in model['statement']['text']


def test_sentences_of_an_older_wording_are_passed_over(model, monkeypatch):
  """They are prose: what they rest on is recomputed all the same."""
  content = copy.deepcopy(model)
  content['statement']['text'] = 'The same, said otherwise.'
  content = cases.sealed(content)
  assert verification.verify(content) == [
    'statement must follow from accounting and composition.'
  ]
  monkeypatch.setattr(statement, 'WORDING', 2)
  assert verification.verify(content) == []
  content['accounting']['epsilon'] -= 1e-4
  (problem,) = verification.verify(cases.sealed(content))
  assert problem.startswith('accounting.epsilon')


def test_sentences_of_a_newer_wording_are_refused(model):
  content = copy.deepcopy(model)
  content['statement']['wording'] = statement.WORDING + 1
  (problem,) = verification.verify(cases.sealed(content))
  assert 'statement.wording must be at most' in problem
  assert 'verify it with that' in problem
