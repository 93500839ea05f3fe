"""Certificates: built from the ledger, recomputed, and hard to bend."""

import collections
import contextlib
import copy
import dataclasses
import json
import math
import sqlite3

import pytest
from dp_accounting import dp_event

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.accounting import profile
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.certificate import statement
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.planning import plan as plan_lib

_PLAN = plan_lib.PrivacyPlan(
  sampler=plan_lib.PoissonSampler(5000, 256),
  mechanism=mechanisms.AdaptiveClipGaussian(0.5, 2.0, 40),
  virtual_clients=40,
  rounds=6,
  delta=5000**-1.1,
)
_QUERIES = (
  document.Query(name='counts', noise_multiplier=8.0),
  document.Query(name='sums', noise_multiplier=4.0, times=2),
)
_RELEASE_EVENT = dp_event.ComposedDpEvent(
  [
    dp_event.GaussianDpEvent(8.0),
    dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 2),
  ]
)


def _charge(book, number, **changes):
  values = {
    'population': 'glyphs',
    'release': 'quick/model',
    'run': 'quick',
    'event': _PLAN.round_event(),
    'round_number': number,
  }
  return book.charge(**(values | changes))


@pytest.fixture(name='book')
def _book(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'ledger.sqlite') as book:
    book.set_budget('glyphs', guarantee.Budget(8.0, _PLAN.delta))
    for number in (0, 1, 2, 3, 4, 4, 5):  # Round 4 was drawn again.
      _charge(book, number)
    _charge(book, None, release='quick/synthetic', event=_RELEASE_EVENT)
    yield book


_CONTEXT = {field.name for field in dataclasses.fields(facts.Context)}
_PROVENANCE = {field.name for field in dataclasses.fields(facts.Provenance)}


def _arguments(book, values):
  """Sorts flat values into what the builders take."""
  charged = {
    name: values.pop(name) for name in ('population', 'run', 'release')
  }
  context = {name: values.pop(name) for name in _CONTEXT & set(values)}
  provenance = {name: values.pop(name) for name in _PROVENANCE & set(values)}
  return values | {
    'charged': facts.Charged(book, **charged),
    'context': facts.Context(**context),
    'provenance': facts.Provenance(**provenance),
  }


def _for_training(book, plan=_PLAN, **changes):
  values = {
    'population': 'glyphs',
    'run': 'quick',
    'release': 'quick/model',
    'rounds_completed': 6,
    'simulation': False,
    'final_clip_norm': 0.41,
    'max_examples_per_user': 8,
    'seen_without_protection': ('training loss', 'cohort sizes'),
    'config_digest': 'b' * 64,
    'code_revision': 'c0ffee',
  }
  return build.for_training(
    plan, **_arguments(book, values | changes)
  ).to_json()


def _for_synthesis(book, **changes):
  values = {
    'population': 'glyphs',
    'run': 'quick',
    'release': 'quick/synthetic',
    'population_size': 5000,
    'delta': _PLAN.delta,
    'simulation': False,
    'queries': _QUERIES,
    'covariance_floor': 1e-4,
    'dropped_classes': ('radical 9',),
    'utility': {'accuracy': 0.7},
  }
  return build.for_synthesis(**_arguments(book, values | changes)).to_json()


def _sealed(content):
  """Returns an altered certificate with its digest made anew."""
  body = {
    key: value
    for key, value in content.items()
    if key not in ('digest', 'signature')
  }
  return {**content, 'digest': documents.digest_of(body)}


def _stated(content):
  """Returns the statement that follows from an altered certificate."""
  return statement.of(document.Certificate.from_json(content)).to_json()


def test_a_synthetic_certificate_is_bound_to_what_was_charged(book):
  """A smaller population or a larger delta would give a smaller epsilon."""
  details = {'delta': _PLAN.delta, 'population_size': 5000}
  changed = {'release': 'quick/other', 'population_size': 50, 'delta': 0.01}
  _charge(
    book, None, release='quick/other', event=_RELEASE_EVENT, details=details
  )
  right = _for_synthesis(book, release='quick/other')
  assert verification.verify(right, ledger=book) == []
  with pytest.raises(document.CertificateError, match='was charged at'):
    _for_synthesis(book, **changed)
  _charge(book, None, release='quick/free', event=_RELEASE_EVENT)
  forged = _for_synthesis(book, **(changed | {'release': 'quick/free'}))
  assert forged['accounting']['epsilon'] < right['accounting']['epsilon']
  forged['release'] = 'quick/other'
  forged = _sealed(forged)
  assert verification.verify(forged) == []
  assert any(
    'was charged at' in problem
    for problem in verification.verify(forged, ledger=book)
  )


@pytest.mark.parametrize(
  'names',
  [
    {'release': 'quick/other'},
    {'run': 'other'},
    {'population': 'fresh', 'run': 'zzz', 'release': 'zzz/model'},
  ],
)
def test_a_certificate_of_draws_that_were_never_made_is_found(book, names):
  """The ledger knows nothing of these names: nothing equals nothing."""
  book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='c' * 64
  )
  content = _for_training(book, artifact_digest='c' * 64)
  for key in ('draws', 'redrawn', 'replays', 'rounds_completed'):
    content['mechanism'][key] = 0
  content['run'] = names.get('run', 'quick')
  content['release'] = names.get('release', 'quick/model')
  content['composition']['population'] = names.get('population', 'glyphs')
  content['composition']['releases'] = [content['release']]
  content['accounting'] = accounting.account(
    accounting.revealed_by_plan(_PLAN, draws=0, redrawn=0), _PLAN.delta
  ).to_json()
  content['composition']['epsilon'] = content['accounting']['epsilon']
  content['statement'] = _stated(content)
  content = _sealed(content)
  assert content['accounting']['epsilon'] == 0
  (problem,) = verification.verify(content)
  assert 'mechanism.draws must be at least 1' in problem
  problems = verification.verify(content, ledger=book)
  assert any('it has none' in item for item in problems)
  assert any('was released as' in item for item in problems)


def test_an_artefact_is_certified_as_what_it_was_released_as(book):
  """Not as another release, which was charged for less."""
  for _ in range(2):
    book.record_release(
      population='glyphs', release='quick/model', run='quick', digest='c' * 64
    )
  _charge(book, 0, release='quick/tiny')
  content = _for_training(
    book, release='quick/tiny', rounds_completed=1, artifact_digest='c' * 64
  )
  assert verification.verify(content) == []
  (problem,) = verification.verify(content, ledger=book)
  assert "was released as 'quick/model'" in problem


def test_rounds_of_training_are_no_synthetic_set(book):
  """Whose population and delta would be free, as no plan binds them."""
  forged = {'population_size': 50, 'delta': 0.019, 'queries': ()}
  with pytest.raises(document.CertificateError, match='is of a round'):
    _for_synthesis(book, release='quick/model', **forged)


def test_an_artefact_has_the_certificate_that_it_was_released_with(book):
  names = {'population': 'glyphs', 'run': 'quick', 'release': 'quick/model'}
  content = _for_training(book, artifact_digest='c' * 64)
  book.record_release(
    **names,
    digest='c' * 64,
    details={'certificate_digest': content['digest']},
  )
  assert verification.verify(content, ledger=book) == []
  # Nothing that epsilon depends on, and nothing else that the ledger knows.
  other = copy.deepcopy(content)
  other['unit']['user_definition'] = 'one image is one user'
  other = _sealed(other)
  assert verification.verify(other) == []
  (problem,) = verification.verify(other, ledger=book)
  assert 'the certificate that it was released with' in problem
  # Released again, with another certificate: both hold.
  book.record_release(
    **names, digest='c' * 64, details={'certificate_digest': other['digest']}
  )
  assert verification.verify(content, ledger=book) == []
  assert verification.verify(other, ledger=book) == []


def test_one_file_may_be_released_under_two_names(book):
  _charge(book, 0, release='quick/tiny')
  contents = [
    _for_training(
      book, release=release, rounds_completed=rounds, artifact_digest='c' * 64
    )
    for release, rounds in (('quick/model', 6), ('quick/tiny', 1))
  ]
  for content in contents:
    book.record_release(
      population='glyphs',
      release=content['release'],
      run='quick',
      digest='c' * 64,
      details={'certificate_digest': content['digest']},
    )
  for content in contents:
    assert verification.verify(content, ledger=book) == []


def test_releases_that_the_ledger_does_not_have_are_found(book):
  content = _for_training(book)
  content['composition']['releases'].append('partner/encoder')
  content['statement'] = _stated(content)
  (problem,) = verification.verify(_sealed(content), ledger=book)
  assert 'composition.releases must be' in problem


@pytest.mark.parametrize(
  ('key', 'value'),
  [
    ('budget_epsilon', 80.0),
    ('budget_epsilon', None),
    ('budget_delta', 1e-6),
    ('remaining_epsilon', 7.9),
    ('remaining_epsilon', -1.0),
    ('remaining_epsilon', None),
  ],
)
def test_the_budget_of_a_certificate_is_that_of_the_ledger(book, key, value):
  content = _for_training(book)
  assert verification.verify(content, ledger=book) == []
  # Another one that is set later does not matter.
  book.set_budget('glyphs', guarantee.Budget(9.0, _PLAN.delta), replace=True)
  assert verification.verify(content, ledger=book) == []
  content['composition'][key] = value
  problems = verification.verify(_sealed(content), ledger=book)
  assert any('composition.' in problem for problem in problems)


def test_a_simulation_is_certified_as_one(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    for number in range(6):
      _charge(other, number, details={'simulation': True})
    right = _for_training(other, simulation=True)
    assert verification.verify(right, ledger=other) == []
    message = 'was charged at simulation True'
    with pytest.raises(document.CertificateError, match=message):
      _for_training(other, simulation=False)
    wrong = _sealed(right | {'simulation': False})
    problems = verification.verify(wrong, ledger=other)
  assert any(message in problem for problem in problems)


@pytest.mark.parametrize(
  ('path', 'value'),
  [
    (('accounting', 'epsilon'), 10**400),
    (('sampling', 'probability'), 10**400),
    (('adjacency', 'sensitivity_multiple'), float('nan')),
    (('mechanism', 'noise_multiplier'), 1e-320),
    (('mechanism', 'noise_multiplier'), 1e308),
    (('mechanism', 'draws'), 10**30),
    (('provenance', 'ledger_entries'), 10**30),
    (('provenance', 'artifacts'), {'a': ['x']}),
    (('provenance', 'artifacts'), {'a\0': '0' * 64}),
    (('run',), '\ud800'),
    (('composition', 'population'), '\ud800'),
  ],
)
def test_numbers_that_cannot_be_are_problems_not_crashes(book, path, value):
  content = _for_training(book)
  _set(content, path, value)
  with contextlib.suppress(documents.DocumentError):  # NaN: no JSON.
    content = _sealed(content)
  assert verification.verify(content, ledger=book)


@pytest.mark.parametrize(
  'event',
  [
    {'class_name': 'ComposedDpEvent', 'events': [3]},
    {'class_name': 'ComposedDpEvent', 'events': 'none'},
    {'class_name': 'SelfComposedDpEvent', 'event': 1.0, 'count': 2},
    {'class_name': 'GaussianDpEvent', 'noise_multiplier': 1e-320},
    {'class_name': 'GaussianDpEvent', 'noise_multiplier': 1e308},
    {'class_name': 'GaussianDpEvent', 'noise_multiplier': 'much'},
  ],
)
def test_events_that_cannot_be_are_problems_not_crashes(book, event):
  content = _for_synthesis(book)
  event['module_name'] = 'dp_accounting.dp_event'
  content['mechanism']['draws'][0]['event'] = event
  content = _sealed(content)
  assert verification.verify(content, ledger=book)


def test_a_synthetic_set_is_for_one_adjacency(book):
  with pytest.raises(document.CertificateError, match='must be add-or-'):
    _for_synthesis(book, adjacency=guarantee.Adjacency.REPLACE_ONE)


def test_draws_under_another_adjacency_are_found(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    _charge(
      other,
      None,
      release='quick/synthetic',
      event=_RELEASE_EVENT,
      adjacency=guarantee.Adjacency.REPLACE_ONE,
    )
    content = _for_synthesis(other)
    problems = verification.verify(content, ledger=other)
  assert any('charged under adjacency.relation' in p for p in problems)


def test_a_released_artefact_is_that_of_the_certificate(book):
  book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='c' * 64
  )
  right = _for_training(book, artifact_digest='c' * 64)
  assert verification.verify(right, ledger=book) == []
  for changes in ({'artifact_digest': 'd' * 64}, {}):
    (problem,) = verification.verify(
      _for_training(book, **changes), ledger=book
    )
    assert 'this is another artefact' in problem


def test_a_model_certificate_states_the_run_as_executed(book):
  content = _for_training(book)
  assert verification.verify(content, ledger=book) == []
  numbers = content['accounting']
  assert numbers['epsilon'] == pytest.approx(_PLAN.guarantee(7).epsilon)
  assert numbers['delta'] == _PLAN.delta
  assert [item['delta'] for item in numbers['epsilon_at_deltas']] == (
    pytest.approx([_PLAN.delta / 100, _PLAN.delta / 10, _PLAN.delta])
  )
  assert numbers['unamplified_epsilon'] == pytest.approx(
    _PLAN.unamplified_epsilon(7)
  )
  assert numbers['unamplified_mu_gdp'] == pytest.approx(math.sqrt(7))
  assert events.from_json(numbers['event']) == _PLAN.event(7)
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
  assert content['provenance']['plan_digest'] == _PLAN.digest()
  assert 'reasonable' in content['statement']['strength']


def test_a_synthetic_certificate_states_what_was_charged(book):
  content = _for_synthesis(book)
  assert verification.verify(content, ledger=book) == []
  numbers = content['accounting']
  multiplier = (8.0**-2 + 2 * 4.0**-2) ** -0.5
  assert numbers['unamplified_mu_gdp'] == pytest.approx(1 / multiplier)
  assert numbers['epsilon'] == numbers['unamplified_epsilon']
  assert numbers['zcdp_rho'] == pytest.approx(0.5 / multiplier**2)
  assert content['utility']['dropped_classes'] == ['radical 9']


def test_all_sixteen_points_are_there(book):
  for content in (_for_training(book), _for_synthesis(book)):
    for part in [
      'setting',
      'unit',
      'adjacency',
      'released',
      'data_accesses',
      'mechanism',
      'sampling',
      'accounting',
      'tuning',
      'public_data',
      'randomness',
      'audit',
      'utility',
      'composition',
      'provenance',
      'statement',
    ]:
      assert content[part], part
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_a_simulation_says_so_and_keeps_the_honest_figure(book):
  content = _for_training(book, simulation=True)
  assert content['simulation'] is True
  assert 'simulation' in content['statement']['text']
  assert (
    content['accounting']['epsilon']
    == _for_training(book)['accounting']['epsilon']
  )


def test_no_noise_is_certified_as_no_guarantee(book):
  plan = plan_lib.PrivacyPlan(
    sampler=_PLAN.sampler,
    mechanism=mechanisms.FixedClipGaussian(0.5, 0.0),
    virtual_clients=40,
    rounds=1,
    delta=_PLAN.delta,
  )
  _charge(
    book,
    0,
    population='unprotected',
    run='plain',
    release='plain/model',
    event=plan.round_event(),
  )
  content = _for_training(
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
  assert verification.verify(_sealed(content)) != []


def test_a_model_certificate_states_more_than_one_epsilon(book):
  numbers = _for_training(book)['accounting']
  event = _PLAN.event(7)
  assert [row['delta'] for row in numbers['profile']] == pytest.approx(
    [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10]
  )
  epsilons = [row['epsilon'] for row in numbers['profile']]
  assert epsilons == sorted(epsilons)
  assert epsilons[3] == pytest.approx(_PLAN.guarantee(7, delta=1e-5).epsilon)
  assert numbers['mu_gdp'] is None  # No such figure for sampled Gaussians, ...
  assert numbers['zcdp_rho'] is None
  assert numbers['unamplified_zcdp_rho'] == pytest.approx(7 / 2)
  assert numbers['mu_gdp_bound'] == {  # ... but a bound where delta counts.
    'mu': pytest.approx(profile.gdp_bound(event, adjacency=_PLAN.adjacency).mu),
    'least_delta': 1e-10,
  }
  assert numbers['mu_gdp_bound']['mu'] < numbers['unamplified_mu_gdp'] / 3
  groups = {row['users']: row['epsilon'] for row in numbers['groups']}
  assert list(groups) == [2, 5]
  assert groups[2] == pytest.approx(
    profile.group_guarantee(
      event, users=2, delta=_PLAN.delta, adjacency=_PLAN.adjacency
    ).epsilon
  )
  assert 2 * numbers['epsilon'] < groups[2] < groups[5]


def test_groups_are_in_the_statement(book):
  content = _for_synthesis(book)
  (two, five) = content['accounting']['groups']
  text = content['statement']['groups']
  assert f'2: epsilon {two["epsilon"]:.4g}; ' in text
  assert f'5: epsilon {five["epsilon"]:.4g}.' in text
  assert f'At delta {content["accounting"]["delta"]:.3g}' in text


# ---- audits ----


def _audit(lower_bound, *, delta=_PLAN.delta, verdict='consistent'):
  return {
    'method': 'one-shot canaries',
    'mode': 'all iterates',
    'canaries': 200,
    'confidence': 0.95,
    'delta': delta,
    'lower_bound': lower_bound,
    'estimate': 1.0,
    'verdict': verdict,
  }


def test_an_audit_is_shown_and_checked(book):
  epsilon = _for_training(book)['accounting']['epsilon']
  for lower_bound in (None, 0.0, 0.9 * epsilon):
    content = _for_training(book, audits=[_audit(lower_bound)])
    assert content['audit']['status'] == 'run'
    assert verification.verify(content, ledger=book) == []


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'lower_bound': 50.0}, 'the audit contradicts it'),
    # At another delta it is compared with the epsilon there.
    ({'lower_bound': 3.0, 'delta': 0.3}, 'the audit contradicts it'),
    ({'lower_bound': 0.1, 'verdict': 'VIOLATION'}, 'verdict must not be'),
    ({'lower_bound': 0.1, 'delta': 1.0}, 'delta must be in'),
  ],
)
def test_an_audit_that_contradicts_the_accounting_is_refused(
  book, change, message
):
  with pytest.raises(document.CertificateError, match=message):
    _for_training(book, audits=[_audit(**change)])


# ---- altered numbers: each alone, the digest made anew as a forger would ----


def _set(content, path, value):
  *parents, last = path
  for key in parents:
    content = content[key]
  assert content[last] != value
  content[last] = value


_MODEL_CHANGES = [
  (('accounting', 'epsilon'), lambda value: value * 0.99),
  (('accounting', 'epsilon'), lambda value: None),
  (('accounting', 'delta'), lambda value: value / 2),
  (('accounting', 'delta'), lambda value: value * 1.01),
  (('accounting', 'cross_check_epsilon'), lambda value: value * 1.01),
  (('accounting', 'unamplified_epsilon'), lambda value: value * 0.9),
  (('accounting', 'unamplified_mu_gdp'), lambda value: value * 0.9),
  (('accounting', 'unamplified_zcdp_rho'), lambda value: value * 0.9),
  (('accounting', 'discretisation'), lambda value: value / 2),
  (('accounting', 'epsilon_at_deltas', 0, 'epsilon'), lambda v: v * 0.9),
  (('accounting', 'epsilon_at_deltas', 1, 'delta'), lambda v: v * 2),
  (('accounting', 'epsilon_at_deltas'), lambda value: value[:2]),
  (('accounting', 'profile', 3, 'epsilon'), lambda value: value * 0.99),
  (('accounting', 'profile'), lambda value: value[1:]),
  (('accounting', 'groups', 0, 'epsilon'), lambda value: value * 0.99),
  (('accounting', 'groups', 0, 'users'), lambda value: value + 1),
  (('accounting', 'mu_gdp_bound', 'mu'), lambda value: value * 0.99),
  (('accounting', 'mu_gdp_bound', 'least_delta'), lambda value: 0.0),
  (('accounting', 'mu_gdp_bound'), lambda value: None),
  (('accounting', 'mu_gdp'), lambda value: 1.0),
  (('accounting', 'zcdp_rho'), lambda value: 1.0),
  (('mechanism', 'redrawn'), lambda value: value + 1),
  (('adjacency', 'population_is_public'), lambda value: False),
  (('sampling', 'participation'), lambda value: 'outside'),
  (('sampling', 'participation'), lambda _: document.EVERYONE),
  (('mechanism', 'final_clip_norm'), lambda value: -1.0),
  (('released', 'protected'), lambda value: []),
  (('data_accesses',), lambda value: []),
  (('data_accesses', 2, 'status'), lambda value: 'covered'),
  (
    ('data_accesses',),
    lambda value: [*value, {'what': 'labels', 'status': 'covered'}],
  ),
  (('accounting', 'event', 'count'), lambda value: value - 1),
  (('accounting', 'accountant'), lambda value: 'RDP'),
  (('statement', 'text'), lambda value: value + '!'),
  (('mechanism', 'noise_multiplier'), lambda value: value * 1.01),
  (('mechanism', 'value_noise_multiplier'), lambda value: value * 1.01),
  (('mechanism', 'clipped_count_stddev'), lambda value: value * 1.01),
  (('mechanism', 'kind'), lambda value: 'fixed'),
  (('mechanism', 'draws'), lambda value: value - 1),
  (('mechanism', 'replays'), lambda value: value - 1),
  (('mechanism', 'rounds_completed'), lambda value: value - 1),
  (('mechanism', 'rounds_planned'), lambda value: value + 1),
  (('mechanism', 'virtual_clients'), lambda value: value + 1),
  (('sampling', 'population'), lambda value: value * 2),
  (('sampling', 'users_per_round'), lambda value: value / 2),
  (('sampling', 'probability'), lambda value: value / 2),
  (('sampling', 'virtual_clients'), lambda value: value + 1),
  (('sampling', 'sampler'), lambda value: 'fixed-size'),
  (('adjacency', 'relation'), lambda value: 'replace-one-user'),
  (('adjacency', 'sensitivity_multiple'), lambda value: 1.0),
  (('adjacency', 'shares_virtual_client'), lambda value: False),
  (('composition', 'epsilon'), lambda value: value * 0.9),
  (('composition', 'delta'), lambda value: value * 2),
  (('composition', 'releases'), lambda value: []),
  (('provenance', 'plan_digest'), lambda value: '0' * 64),
  (('statement', 'strength'), lambda value: 'strong (epsilon <= 1)'),
]


@pytest.fixture(name='model', scope='module')
def _model(tmp_path_factory):
  path = tmp_path_factory.mktemp('model') / 'ledger.sqlite'
  with ledger_lib.Ledger.open(path) as book:
    for number in (0, 1, 2, 3, 4, 4, 5):
      _charge(book, number)
    return _for_training(book)


@pytest.mark.parametrize(
  ('path', 'change'),
  _MODEL_CHANGES,
  ids=['.'.join(map(str, path)) for path, _ in _MODEL_CHANGES],
)
def test_an_altered_model_certificate_does_not_verify(model, path, change):
  content = copy.deepcopy(model)
  value = content
  for key in path:
    value = value[key]
  _set(content, path, change(value))
  assert _sealed(content)['digest'] != content['digest']
  problems = verification.verify(_sealed(content))
  assert problems
  assert not any(item.startswith('digest') for item in problems)


_SYNTHETIC_CHANGES = [
  (('accounting', 'epsilon'), lambda value: value * 0.99),
  (('accounting', 'delta'), lambda value: value / 2),
  (('sampling', 'population'), lambda value: value * 2),
  (('sampling', 'users_per_round'), lambda value: value / 2),
  (('sampling', 'probability'), lambda value: 0.5),
  (('adjacency', 'sensitivity_multiple'), lambda value: 2.0),
  (('mechanism', 'draws', 0, 'count'), lambda value: value + 1),
  (
    ('mechanism', 'draws', 0, 'event'),
    lambda value: events.to_json(dp_event.GaussianDpEvent(9.0)),
  ),
  (('mechanism', 'queries', 0, 'noise_multiplier'), lambda value: value * 2),
  (('mechanism', 'queries', 1, 'times'), lambda value: 1),
  (('mechanism', 'queries', 0, 'sensitivity'), lambda value: 0.5),
  (('sampling', 'sampler'), lambda value: 'poisson'),
  (('sampling', 'virtual_clients'), lambda value: 1),
  (('adjacency', 'shares_virtual_client'), lambda value: True),
  (('accounting', 'mu_gdp'), lambda value: value * 0.99),
  (('accounting', 'zcdp_rho'), lambda value: value * 0.99),
  (('accounting', 'groups', 1, 'epsilon'), lambda value: value * 0.99),
  (('mechanism', 'overcharge'), lambda value: 0.01),
  (('composition', 'epsilon'), lambda value: 0.1),
  (('composition', 'delta'), lambda value: value * 2),
]


@pytest.mark.parametrize(
  ('path', 'change'),
  _SYNTHETIC_CHANGES,
  ids=['.'.join(map(str, path)) for path, _ in _SYNTHETIC_CHANGES],
)
def test_an_altered_synthetic_certificate_does_not_verify(book, path, change):
  content = _for_synthesis(book)
  value = content
  for key in path:
    value = value[key]
  _set(content, path, change(value))
  assert verification.verify(_sealed(content))


@pytest.mark.parametrize('part', ['utility', 'provenance', 'setting'])
def test_any_other_change_breaks_the_digest(model, part):
  content = copy.deepcopy(model)
  key = next(iter(content[part]))
  content[part][key] = 'something else'
  assert verification.verify(content)


# ---- what a certificate may not hold ----


def test_extrapolated_figures_are_refused(book):
  with pytest.raises(document.CertificateError, match='extrapolated'):
    _for_training(book, utility={'extrapolated_epsilon': 1.0})
  content = _for_training(book)
  content['utility']['measures'] = {'deep': [{'Extrapolated': 1.0}]}
  problems = verification.verify(_sealed(content))
  assert 'nothing like it was run' in problems[0]


def test_a_fixed_seed_gets_no_certificate(book):
  for make in (_for_training, _for_synthesis):
    with pytest.raises(document.CertificateError, match='fixed seed'):
      make(book, fixed_seed=True)


def test_figures_that_are_no_numbers_are_refused(book):
  with pytest.raises(document.CertificateError, match='finite JSON'):
    _for_training(book, utility={'recall': math.nan})


def test_another_plan_than_the_charged_one_is_refused(book):
  other = plan_lib.PrivacyPlan(
    sampler=plan_lib.PoissonSampler(5000, 200),
    mechanism=_PLAN.mechanism,
    virtual_clients=40,
    rounds=6,
    delta=_PLAN.delta,
  )
  with pytest.raises(document.CertificateError, match='another plan'):
    _for_training(book, plan=other)


def test_fewer_draws_than_rounds_are_refused(book):
  with pytest.raises(document.CertificateError, match='a draw for each'):
    _for_training(book, rounds_completed=8)


@pytest.mark.parametrize('build', [_for_training, _for_synthesis])
@pytest.mark.parametrize(
  ('statement', 'problem'),
  [
    # Draws that are gone cannot be counted: epsilon would be too small.
    (
      "DELETE FROM entries WHERE round_number = 4 OR kind = 'lease'",
      'entry 6 must follow entry 5',
    ),
    (
      'UPDATE entries SET code_revision = 1 WHERE sequence = 3',
      'entry 3 must match its digest',
    ),
  ],
)
def test_a_ledger_that_is_not_whole_certifies_nothing(
  book, tmp_path, build, statement, problem
):
  content = build(book, **_few_rounds(build))
  assert verification.verify(content, ledger=book) == []
  with contextlib.closing(sqlite3.connect(tmp_path / 'ledger.sqlite')) as raw:
    for action in ('update', 'delete'):
      raw.execute(f'DROP TRIGGER entries_no_{action}')
    raw.execute(statement)
    raw.commit()
  with pytest.raises(ledger_lib.LedgerDamagedError, match=problem) as info:
    build(book, **_few_rounds(build))
  assert info.value.exit_code == 5
  assert 'dpemb ledger verify' in str(info.value)


def _few_rounds(build):
  """Rounds completed that are there with and without round 4."""
  return {'rounds_completed': 5} if build is _for_training else {}


def test_a_release_that_was_not_charged_is_refused(book):
  with pytest.raises(document.CertificateError, match='got none'):
    _for_synthesis(book, release='quick/elsewhere')
  with pytest.raises(document.CertificateError, match='0 draws'):
    _for_training(book, release='quick/elsewhere')


def test_queries_that_reveal_more_than_was_charged_are_refused(book):
  with pytest.raises(document.CertificateError, match='as revealing'):
    more = document.Query(name='more', noise_multiplier=1.0)
    _for_synthesis(book, queries=[*_QUERIES, more])


def test_a_release_that_was_drawn_again_is_certified_twice(book):
  """Also one query alone: charged, then a crash before it was noted."""
  once = _for_synthesis(book)['accounting']['epsilon']
  assert _for_synthesis(book)['mechanism']['overcharge'] == 0
  _charge(
    book,
    None,
    release='quick/synthetic',
    event=dp_event.GaussianDpEvent(8.0),
  )
  content = _for_synthesis(book)
  assert verification.verify(content, ledger=book) == []
  assert content['mechanism']['overcharge'] == pytest.approx(8.0**-2)
  assert content['accounting']['epsilon'] > once
  once = content['accounting']['epsilon']
  _charge(book, None, release='quick/synthetic', event=_RELEASE_EVENT)
  content = _for_synthesis(book)
  assert verification.verify(content, ledger=book) == []
  assert content['accounting']['epsilon'] > once


def test_delta_must_be_below_one_over_the_population(book):
  with pytest.raises(document.CertificateError, match='1 / population'):
    _for_synthesis(book, delta=1 / 5000)


# ---- against the ledger ----


def test_a_later_draw_makes_the_certificate_claim_too_little(book):
  content = _for_training(book)
  _charge(book, 5)
  problems = verification.verify(content, ledger=book)
  assert any('claims less than was spent' in item for item in problems)


def test_a_consistent_forgery_is_found_by_the_ledger(book, tmp_path):
  """Fewer rounds, everything else recomputed: only the ledger can tell."""
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    for number in range(6):
      _charge(other, number)
    forged = _for_training(other)
  assert verification.verify(forged) == []
  problems = verification.verify(forged, ledger=book)
  assert any('claims less' in item for item in problems)
  assert any('another ledger' in item for item in problems)


def test_draws_of_other_events_are_found_by_the_ledger(book, tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    for number in (0, 1, 2, 3, 4, 4, 5):
      _charge(other, number)
    content = _for_training(other)
  with ledger_lib.Ledger.open(tmp_path / 'third.sqlite') as third:
    for number in range(7):
      _charge(third, number, event=dp_event.GaussianDpEvent(1.0))
    problems = verification.verify(content, ledger=third)
  assert any('other events' in item for item in problems)


def test_a_draw_of_another_plan_is_found(book):
  content = _for_training(book)
  _charge(book, 5, plan_digest='d' * 64)
  problems = verification.verify(content, ledger=book)
  assert any('of this plan, got another digest' in item for item in problems)
  with pytest.raises(document.CertificateError, match='another plan'):
    _for_training(book)


@pytest.mark.parametrize('number', [None, 6, -1])
def test_a_draw_of_no_round_of_the_plan_is_refused(book, number):
  _charge(book, number)
  with pytest.raises(document.CertificateError, match='must be of a round'):
    _for_training(book)


# ---- correlated noise: charged once, at the start ----

_TREE_PLAN = plan_lib.PrivacyPlan(
  sampler=plan_lib.MinSeparationSampler(5000, 4, 2),
  mechanism=mechanisms.CorrelatedGaussian(
    0.5, 8.0, correlated.Tree(), restart_every=4
  ),
  virtual_clients=40,
  rounds=8,
  delta=5000**-1.1,
)
_TREE = {
  'population': 'trees',
  'run': 'tree',
  'release': 'tree/model',
  'rounds_completed': 8,
  'participation': 'within',
}


def _charge_tree(book, rounds):
  """Charges rounds as training does: each by its attempt."""
  attempts = collections.Counter()
  for number in rounds:
    attempts[number] += 1
    _charge(
      book,
      number,
      population='trees',
      run='tree',
      release='tree/model',
      event=_TREE_PLAN.charge_event(number, attempts[number]),
      plan_digest=_TREE_PLAN.digest(),
    )


def test_correlated_noise_is_certified_as_a_whole(book):
  _charge_tree(book, range(8))
  content = _for_training(book, _TREE_PLAN, **_TREE)
  assert verification.verify(content, ledger=book) == []
  numbers = content['accounting']
  assert numbers['epsilon'] == pytest.approx(_TREE_PLAN.guarantee(8).epsilon)
  assert numbers['unamplified_epsilon'] == pytest.approx(numbers['epsilon'])
  # By hand: a phase meets 2 rounds, one in each tree of 4 rounds, whose first
  # round is in the 3 nodes of levels 0, 1, 2: sensitivity 2 sqrt(2 x 3).
  assert numbers['mu_gdp'] == pytest.approx(2 * math.sqrt(2 * 3) / 8.0)
  assert content['mechanism']['strategy'] == {'kind': 'tree'}
  assert content['sampling']['min_separation'] == 4
  assert content['sampling']['max_participations'] == 2
  assert content['sampling']['participation'] == 'within'
  assert "user's index" in content['randomness']['source']
  spent = book.spent('trees', _TREE_PLAN.delta).epsilon
  assert content['composition']['epsilon'] == pytest.approx(spent)
  assert numbers['epsilon'] == pytest.approx(spent)


def test_repeated_rounds_of_correlated_noise_are_certified(book):
  _charge_tree(book, (0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 0))
  content = _for_training(book, _TREE_PLAN, **_TREE)
  assert content['mechanism']['redrawn'] == 3
  assert content['mechanism']['draws'] == 11
  assert verification.verify(content, ledger=book) == []
  assert content['accounting']['epsilon'] == pytest.approx(
    book.spent('trees', _TREE_PLAN.delta).epsilon
  )
  assert content['accounting']['epsilon'] > _TREE_PLAN.guarantee(8).epsilon


def test_a_run_that_stopped_early_is_certified_as_it_was_charged(book):
  _charge_tree(book, range(5))
  content = _for_training(book, _TREE_PLAN, **(_TREE | {'rounds_completed': 5}))
  assert content['accounting']['epsilon'] == pytest.approx(
    _TREE_PLAN.guarantee(8).epsilon
  )


def test_correlated_noise_that_was_not_charged_whole_is_refused(book):
  for number in range(8):
    _charge(
      book,
      number,
      population='trees',
      run='tree',
      release='tree/model',
      event=dp_event.NoOpDpEvent(),
    )
  with pytest.raises(document.CertificateError, match='round 0'):
    _for_training(book, _TREE_PLAN, **_TREE)


@pytest.mark.parametrize('verdict', ['outside', 'incomplete', 'not measured'])
def test_users_not_known_to_be_within_the_plan_get_no_certificate(
  book, verdict
):
  """Without sampling, the accounting rests on who took part."""
  _charge_tree(book, range(8))
  settings = _TREE | {'participation': verdict}
  with pytest.raises(
    document.CertificateError, match=f'within the lim.*{verdict}'
  ):
    _for_training(book, _TREE_PLAN, **settings)


@pytest.mark.parametrize('verdict', ['outside', 'incomplete', 'not measured'])
def test_a_verdict_altered_later_does_not_verify(book, verdict):
  _charge_tree(book, range(8))
  content = _for_training(book, _TREE_PLAN, **_TREE)
  content['sampling']['participation'] = verdict
  (problem,) = verification.verify(_sealed(content))
  assert 'sampling.participation' in problem


@pytest.mark.parametrize(
  ('path', 'change'),
  [
    (('sampling', 'min_separation'), lambda value: value + 1),
    (('sampling', 'max_participations'), lambda value: value - 1),
    (('mechanism', 'restart_every'), lambda value: 0),
    (('mechanism', 'strategy', 'kind'), lambda value: 'banded'),
    (('mechanism', 'noise_multiplier'), lambda value: value * 1.01),
    (('mechanism', 'clipping'), lambda value: 'adaptive'),
    (('mechanism', 'redrawn'), lambda value: value + 1),
    (('mechanism', 'rounds_planned'), lambda value: value - 1),
  ],
)
def test_an_altered_correlated_certificate_does_not_verify(book, path, change):
  _charge_tree(book, range(8))
  content = _for_training(book, _TREE_PLAN, **_TREE)
  value = content
  for key in path:
    value = value[key]
  _set(content, path, change(value))
  assert verification.verify(_sealed(content))


# ---- what bounds everything together ----


def test_a_synthetic_headline_states_both_figures(book):
  content = _for_synthesis(book)
  own = content['accounting']['epsilon']
  together = book.spent('glyphs', _PLAN.delta).epsilon
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
  _charge(
    book,
    None,
    population='lone',
    run='lone',
    release='lone/synthetic',
    event=_RELEASE_EVENT,
  )
  content = _for_synthesis(
    book, population='lone', run='lone', release='lone/synthetic'
  )
  assert 'nothing bounds everything together' in content['statement']['text']
  assert verification.verify(content, ledger=book) == []


def test_no_bound_on_the_encoder_is_no_bound_on_the_set(book):
  for release, event in (
    ('plain/model', dp_event.NonPrivateDpEvent()),
    ('plain/synthetic', _RELEASE_EVENT),
  ):
    _charge(
      book, None, population='plain', run='plain', release=release, event=event
    )
  content = _for_synthesis(
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
  together = book.spent('glyphs', _PLAN.delta).epsilon
  text = _for_training(book)['statement']['text']
  assert 'whatever else is known' in text
  assert (
    f'what bounds everything together is user-level ({together:.4g}' in text
  )
  assert 'encoder' not in text
  assert 'together' not in model['statement']['text']


def test_the_composition_is_at_the_releases_own_delta(book):
  budget = guarantee.Budget(8.0, _PLAN.delta / 10)
  book.set_budget('glyphs', budget, replace=True)
  part = _for_synthesis(book)['composition']
  assert part['delta'] == _PLAN.delta
  assert part['budget_delta'] == budget.delta
  assert part['epsilon'] == pytest.approx(
    book.spent('glyphs', _PLAN.delta).epsilon
  )
  assert part['remaining_epsilon'] == pytest.approx(
    8 - book.spent('glyphs').epsilon
  )


def _forged(content, **parts):
  content = copy.deepcopy(content)
  for name, changes in parts.items():
    content[name].update(changes)
  content['statement'] = _stated(content)
  return _sealed(content)


def test_a_composition_below_the_ledgers_is_found(book):
  content = _for_synthesis(book)
  epsilon = content['composition']['epsilon'] * 0.99
  forged = _forged(content, composition={'epsilon': epsilon})
  assert verification.verify(forged) == []  # Only the ledger can tell.
  (problem,) = verification.verify(forged, ledger=book)
  assert problem.startswith('composition.epsilon must be at least')
  forged = _forged(content, composition={'releases': ['quick/synthetic']})
  (problem,) = verification.verify(forged, ledger=book)
  assert "must be ['quick/model', 'quick/synthetic']" in problem
  # More than was spent, or none at all, is no lie about the users.
  for value in (content['composition']['epsilon'] * 2, None):
    forged = _forged(content, composition={'epsilon': value})
    assert verification.verify(forged, ledger=book) == []


def test_a_composition_below_its_part_is_found_without_a_ledger(book):
  content = _for_synthesis(book)
  epsilon = content['accounting']['epsilon'] * 0.99
  forged = _forged(content, composition={'epsilon': epsilon})
  (problem,) = verification.verify(forged)
  assert 'accounting.epsilon, which is a part of it' in problem


def test_draws_after_the_head_do_not_void_the_composition(book):
  content = _for_synthesis(book)
  _charge(book, None, release='quick/later', event=_RELEASE_EVENT)
  assert verification.verify(content, ledger=book) == []


def test_a_head_before_the_releases_draws_is_found(book):
  content = _for_synthesis(book)
  head = {'ledger_entries': 1, 'ledger_digest': book.digest_at(1)}
  forged = _forged(content, provenance=head)
  problems = verification.verify(forged, ledger=book)
  assert any('entry 1 must lie after the draws' in item for item in problems)
  assert any('runs_in_ledger must be 0' in item for item in problems)


# ---- randomness ----


def test_a_model_certificate_says_where_its_randomness_comes_from(book):
  content = _for_training(book)
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
  for made in (content, _for_synthesis(book)):
    assert any('another ledger' in x for x in made['statement']['void_if'])


# ---- artefacts ----


def test_artefacts_beside_the_certificate_are_checked(book, tmp_path):
  directory = tmp_path / 'synthetic'
  directory.mkdir()
  artefact = directory / 'embeddings.parquet'
  artefact.write_bytes(b'rows')
  content = _for_synthesis(
    book, artifacts={artefact.name: storage.sha256_of(artefact)}
  )
  path = directory / 'certificate.json'
  storage.atomic_write_json(path, content)
  assert 'never released' in verification.verify(path, ledger=book)[0]
  book.record_release(
    population='glyphs',
    release='quick/synthetic',
    run='quick',
    digest=storage.sha256_of(artefact),
  )
  assert verification.verify(path, ledger=book) == []
  artefact.write_bytes(b'other rows')
  assert 'certified SHA-256' in verification.verify(path)[0]
  artefact.unlink()
  assert 'must be there' in verification.verify(path)[0]


def test_an_export_is_checked_through_its_manifest(book, tmp_path):
  directory = tmp_path / '1'
  (directory / 'saved_model').mkdir(parents=True)
  names = ('model.tflite', 'saved_model/saved_model.pb')
  for name in names:
    (directory / name).write_bytes(name.encode())
  files = {name: storage.sha256_of(directory / name) for name in names}
  storage.atomic_write_json(directory / 'manifest.json', {'files': files})
  content = _for_training(
    book, artifact_digest=documents.digest_of_files(files)
  )
  path = directory / 'certificate.json'
  storage.atomic_write_json(path, content)
  assert verification.verify(path) == []
  (directory / names[0]).write_bytes(b'another model')
  assert 'certified SHA-256' in verification.verify(path)[0]
  files[names[0]] = storage.sha256_of(directory / names[0])
  storage.atomic_write_json(directory / 'manifest.json', {'files': files})
  assert 'another artefact' in verification.verify(path)[0]


def test_artefacts_elsewhere_are_not_looked_at(book, tmp_path):
  content = _for_synthesis(book, artifacts={'../secret': '0' * 64})
  path = tmp_path / 'certificate.json'
  storage.atomic_write_json(path, content)
  assert 'must lie beside' in verification.verify(path)[0]


# ---- form ----


def test_a_missing_or_damaged_file_is_one_problem(tmp_path):
  assert len(verification.verify(tmp_path / 'none.json')) == 1
  (tmp_path / 'list.json').write_text('[]')
  assert 'JSON object' in verification.verify(tmp_path / 'list.json')[0]


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (lambda c: c.pop('accounting'), 'accounting must be there'),
    (lambda c: c.update(more=1), 'more is not part'),
    (lambda c: c.update(schema='dpemb.certificate/3'), 'must have schema'),
    (lambda c: c['accounting'].update(delta='small'), 'must be a number'),
    (lambda c: c['accounting'].update(epsilon=-1.0), 'must be >= 0'),
    (lambda c: c['mechanism'].update(extra=1), 'extra is not part'),
    (lambda c: c['provenance'].update(plan_digest='xyz'), 'must match'),
    (lambda c: c['sampling'].update(population=True), 'must be a whole number'),
    (lambda c: c['sampling'].update(participation='rare'), 'must be one of'),
  ],
)
def test_the_schema_is_kept(model, change, message):
  content = copy.deepcopy(model)
  change(content)
  assert any(message in item for item in verification.verify(content))


def test_json_that_is_nested_too_deeply_is_one_problem(tmp_path):
  path = tmp_path / 'certificate.json'
  path.write_text('[' * 100_000)
  (problem,) = verification.verify(path)
  assert 'nested too deeply' in problem
  with pytest.raises(document.CertificateError, match='nested too'):
    document.read(path)


def test_a_part_that_is_nested_too_deeply_is_one_problem(book):
  nested = []
  for _ in range(2000):
    nested = [nested]
  content = _for_training(book)
  content['utility']['measures'] = {'nested': nested}
  (problem,) = verification.verify(content)
  assert 'nested too deeply' in problem


def test_an_unknown_adjacency_is_one_problem(book):
  content = _for_training(book)
  adjacency = {**content['adjacency'], 'relation': 'neighbours'}
  forged = _sealed({**content, 'adjacency': adjacency})
  for ledger in (None, book):
    (problem,) = verification.verify(forged, ledger=ledger)
    assert 'adjacency.relation must be one of' in problem
