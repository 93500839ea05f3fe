"""Certificates are recomputed, and hard to bend."""

import contextlib
import copy
import json
import pathlib

import pytest
from dp_accounting import dp_event

from tests.privacy.certificate import cases
from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import verification

_KEPT = pathlib.Path(__file__).parents[1] / 'kept'


@pytest.mark.parametrize('of', ['poisson', 'schedule', 'synthetic'])
def test_kept_certificates_go_on_to_verify(of):
  """Made once, by an earlier state of this product: never made anew."""
  kept = _KEPT / f'certificate_{of}.json'
  assert verification.verify(kept) == []
  content = json.loads(kept.read_text())
  content['accounting']['epsilon'] -= 1e-4
  (problem,) = verification.verify(cases.sealed(content))
  assert problem.startswith('accounting.epsilon must be')


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
  content = cases.for_training(book)
  cases.alter(content, path, value)
  with contextlib.suppress(documents.DocumentError):  # NaN: no JSON.
    content = cases.sealed(content)
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
  content = cases.for_synthesis(book)
  event['module_name'] = 'dp_accounting.dp_event'
  content['mechanism']['draws'][0]['event'] = event
  content = cases.sealed(content)
  assert verification.verify(content, ledger=book)


def test_an_audit_is_checked(book):
  epsilon = cases.for_training(book)['accounting']['epsilon']
  for lower_bound in (None, 0.0, 0.9 * epsilon):
    content = cases.for_training(book, audits=[cases.audit(lower_bound)])
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
    cases.for_training(book, audits=[cases.audit(**change)])


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
  cases.alter(content, path, change(value))
  assert cases.sealed(content)['digest'] != content['digest']
  problems = verification.verify(cases.sealed(content))
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
  content = cases.for_synthesis(book)
  value = content
  for key in path:
    value = value[key]
  cases.alter(content, path, change(value))
  assert verification.verify(cases.sealed(content))


@pytest.mark.parametrize('part', ['utility', 'provenance', 'setting'])
def test_any_other_change_breaks_the_digest(model, part):
  content = copy.deepcopy(model)
  key = next(iter(content[part]))
  content[part][key] = 'something else'
  assert verification.verify(content)


def test_extrapolated_figures_are_refused(book):
  with pytest.raises(document.CertificateError, match='extrapolated'):
    cases.for_training(book, utility={'extrapolated_epsilon': 1.0})
  content = cases.for_training(book)
  content['utility']['measures'] = {'deep': [{'Extrapolated': 1.0}]}
  problems = verification.verify(cases.sealed(content))
  assert 'nothing like it was run' in problems[0]


@pytest.mark.parametrize('verdict', ['outside', 'incomplete', 'not measured'])
def test_a_verdict_altered_later_does_not_verify(book, verdict):
  cases.charge_tree(book, range(8))
  content = cases.for_training(book, cases.TREE_PLAN, **cases.TREE)
  content['sampling']['participation'] = verdict
  (problem,) = verification.verify(cases.sealed(content))
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
  cases.charge_tree(book, range(8))
  content = cases.for_training(book, cases.TREE_PLAN, **cases.TREE)
  value = content
  for key in path:
    value = value[key]
  cases.alter(content, path, change(value))
  assert verification.verify(cases.sealed(content))


def test_a_composition_below_its_part_is_found_without_a_ledger(book):
  content = cases.for_synthesis(book)
  epsilon = content['accounting']['epsilon'] * 0.99
  forged = cases.forged(content, composition={'epsilon': epsilon})
  (problem,) = verification.verify(forged)
  assert 'accounting.epsilon, which is a part of it' in problem


def test_artefacts_beside_the_certificate_are_checked(book, tmp_path):
  directory = tmp_path / 'synthetic'
  directory.mkdir()
  artefact = directory / 'embeddings.parquet'
  artefact.write_bytes(b'rows')
  content = cases.for_synthesis(
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
  content = cases.for_training(
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
  content = cases.for_synthesis(book, artifacts={'../secret': '0' * 64})
  path = tmp_path / 'certificate.json'
  storage.atomic_write_json(path, content)
  assert 'must lie beside' in verification.verify(path)[0]


def test_a_missing_or_damaged_file_is_one_problem(tmp_path):
  assert len(verification.verify(tmp_path / 'none.json')) == 1
  (tmp_path / 'list.json').write_text('[]')
  assert 'JSON object' in verification.verify(tmp_path / 'list.json')[0]


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
  content = cases.for_training(book)
  content['utility']['measures'] = {'nested': nested}
  (problem,) = verification.verify(content)
  assert 'nested too deeply' in problem


def test_an_unknown_adjacency_is_one_problem(book):
  content = cases.for_training(book)
  adjacency = {**content['adjacency'], 'relation': 'neighbours'}
  forged = cases.sealed({**content, 'adjacency': adjacency})
  for ledger in (None, book):
    (problem,) = verification.verify(forged, ledger=ledger)
    assert 'adjacency.relation must be one of' in problem


@pytest.mark.parametrize('name', ['min_separation', 'max_participations'])
def test_limits_of_a_schedule_are_none_of_a_sample(model, name):
  """With Poisson sampling no plan limits how often a user takes part."""
  assert model['sampling'][name] is None
  content = copy.deepcopy(model)
  content['sampling'][name] = 4
  (problem,) = verification.verify(cases.sealed(content))
  assert problem == f'sampling.{name} must be None, got 4.'


@pytest.mark.parametrize('part', ['epsilon_at_deltas', 'profile', 'groups'])
def test_a_stranger_may_not_ask_for_many_rows(model, part):
  """Each is computed anew, of another method at the rows that it has."""
  content = copy.deepcopy(model)
  rows = content['accounting'][part]
  content['accounting'][part] = (rows * 33)[:33]
  problems = verification.verify(cases.sealed(content))
  assert any(f'accounting.{part}' in item for item in problems)
  with pytest.raises(documents.DocumentError, match='32'):
    document.Certificate.from_json(content)


# ---- forgeries of a synthetic set that would state less ----

_GAUSSIAN = {
  'module_name': 'dp_accounting.dp_event',
  'class_name': 'GaussianDpEvent',
  'noise_multiplier': 1.0,
}


@pytest.mark.parametrize(
  'event',
  [
    {'module_name': 'dp_accounting.dp_event', 'class_name': 'NoOpDpEvent'},
    _GAUSSIAN | {'noise_multiplier': {'float': 'inf'}},
    _GAUSSIAN | {'noise_multiplier': '4'},
    _GAUSSIAN | {'noise_multiplier': True},
    {
      'module_name': 'dp_accounting.dp_event',
      'class_name': 'ZCDpEvent',
      'rho': 1e-9,
      'xi': 0.0,
    },
    {
      'module_name': 'dp_accounting.dp_event',
      'class_name': 'PoissonSampledDpEvent',
      'sampling_probability': 0.001,
      'event': _GAUSSIAN,
    },
    {
      'module_name': 'dp_accounting.dp_event',
      'class_name': 'SelfComposedDpEvent',
      'count': 0.01,
      'event': _GAUSSIAN,
    },
    {
      'module_name': 'dp_accounting.dp_event',
      'class_name': 'SelfComposedDpEvent',
      'count': 0,
      'event': _GAUSSIAN,
    },
    {
      'module_name': 'dp_accounting.dp_event',
      'class_name': 'ComposedDpEvent',
      'events': [],
    },
  ],
)
def test_draws_that_are_no_gaussians_are_no_synthetic_set(event):
  content = json.loads((_KEPT / 'certificate_synthetic.json').read_text())
  content['mechanism'] |= {
    'draws': [{'event': event, 'count': 1}],
    'overcharge': None,
  }
  problems = verification.verify(cases.sealed(content))
  assert any('must be legal' in problem for problem in problems)


def test_a_draw_of_nothing_hides_no_query():
  """Beside real draws, so that what was asked is still compared."""
  content = json.loads((_KEPT / 'certificate_synthetic.json').read_text())
  nothing = {
    'module_name': 'dp_accounting.dp_event',
    'class_name': 'NoOpDpEvent',
  }
  content['mechanism']['draws'].append({'event': nothing, 'count': 1})
  content['mechanism']['queries'][0]['noise_multiplier'] = 0.01
  problems = verification.verify(cases.sealed(content))
  assert any('at most as revealing' in problem for problem in problems)


def test_the_event_is_compared_whatever_the_method():
  content = json.loads((_KEPT / 'certificate_poisson.json').read_text())
  content['accounting']['method']['library'] = 'dp-accounting 0.4.0'
  assert verification.verify(cases.sealed(content)) == []
  content['accounting']['event'] = {
    'module_name': 'dp_accounting.dp_event',
    'class_name': 'NoOpDpEvent',
  }
  (problem,) = verification.verify(cases.sealed(content))
  assert 'accounting.event must be what' in problem


@pytest.mark.parametrize('mechanism', [None, 5, 'a', [], True])
def test_a_mechanism_that_is_no_object_is_a_problem(mechanism):
  content = json.loads((_KEPT / 'certificate_poisson.json').read_text())
  assert verification.verify({**content, 'mechanism': mechanism})


def test_more_than_anybody_draws_is_refused_at_once():
  content = json.loads((_KEPT / 'certificate_synthetic.json').read_text())
  draws = content['mechanism']['draws']
  content['mechanism']['draws'] = draws * 300
  assert verification.verify(cases.sealed(content))
  content = json.loads((_KEPT / 'certificate_poisson.json').read_text())
  content['mechanism']['draws'] = 10**9
  assert 'must be <= 1000000' in verification.verify(content)[0]


@pytest.mark.parametrize(
  'files', ['abc', ['ab', 'cd'], [['a', 'b']], {'a': 1}, None, {'x' * 300: 'y'}]
)
def test_a_damaged_manifest_beside_it_is_a_problem(tmp_path, files):
  content = json.loads((_KEPT / 'certificate_poisson.json').read_text())
  content['provenance']['artifact_digest'] = '0' * 64
  (tmp_path / 'certificate.json').write_text(json.dumps(cases.sealed(content)))
  (tmp_path / 'manifest.json').write_text(json.dumps({'files': files}))
  assert verification.verify(tmp_path / 'certificate.json')
