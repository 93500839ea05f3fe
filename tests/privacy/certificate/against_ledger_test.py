"""A certificate against the ledger: nothing missing, nothing of another."""

import contextlib
import copy
import sqlite3

import pytest
from dp_accounting import dp_event

from tests.privacy.certificate import cases
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib


def test_a_synthetic_certificate_is_bound_to_what_was_charged(book):
  """A smaller population or a larger delta would give a smaller epsilon."""
  details = {'delta': cases.PLAN.delta, 'population_size': 5000}
  changed = {'release': 'quick/other', 'population_size': 50, 'delta': 0.01}
  cases.charge(
    book,
    None,
    release='quick/other',
    event=cases.RELEASE_EVENT,
    details=details,
  )
  right = cases.for_synthesis(book, release='quick/other')
  assert verification.verify(right, ledger=book) == []
  with pytest.raises(document.CertificateError, match='was charged at'):
    cases.for_synthesis(book, **changed)
  cases.charge(book, None, release='quick/free', event=cases.RELEASE_EVENT)
  forged = cases.for_synthesis(book, **(changed | {'release': 'quick/free'}))
  assert forged['accounting']['epsilon'] < right['accounting']['epsilon']
  forged['release'] = 'quick/other'
  forged = cases.sealed(forged)
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
  content = cases.for_training(book, artifact_digest='c' * 64)
  for key in ('draws', 'redrawn', 'replays', 'rounds_completed'):
    content['mechanism'][key] = 0
  content['run'] = names.get('run', 'quick')
  content['release'] = names.get('release', 'quick/model')
  content['composition']['population'] = names.get('population', 'glyphs')
  content['composition']['releases'] = [content['release']]
  content['accounting'] = accounting.account(
    accounting.revealed_by_plan(cases.PLAN, draws=0, redrawn=0),
    cases.PLAN.delta,
  ).to_json()
  content['composition']['epsilon'] = content['accounting']['epsilon']
  content['statement'] = cases.stated(content)
  content = cases.sealed(content)
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
  cases.charge(book, 0, release='quick/tiny')
  content = cases.for_training(
    book, release='quick/tiny', rounds_completed=1, artifact_digest='c' * 64
  )
  assert verification.verify(content) == []
  (problem,) = verification.verify(content, ledger=book)
  assert "was released as 'quick/model'" in problem


def test_rounds_of_training_are_no_synthetic_set(book):
  """Whose population and delta would be free, as no plan binds them."""
  forged = {'population_size': 50, 'delta': 0.019, 'queries': ()}
  with pytest.raises(document.CertificateError, match='is of a round'):
    cases.for_synthesis(book, release='quick/model', **forged)


def test_an_artefact_has_the_certificate_that_it_was_released_with(book):
  names = {'population': 'glyphs', 'run': 'quick', 'release': 'quick/model'}
  content = cases.for_training(book, artifact_digest='c' * 64)
  book.record_release(
    **names,
    digest='c' * 64,
    details={'certificate_digest': content['digest']},
  )
  assert verification.verify(content, ledger=book) == []
  # Nothing that epsilon depends on, and nothing else that the ledger knows.
  other = copy.deepcopy(content)
  other['unit']['user_definition'] = 'one image is one user'
  other = cases.sealed(other)
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
  cases.charge(book, 0, release='quick/tiny')
  contents = [
    cases.for_training(
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
  content = cases.for_training(book)
  content['composition']['releases'].append('partner/encoder')
  content['statement'] = cases.stated(content)
  (problem,) = verification.verify(cases.sealed(content), ledger=book)
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
  content = cases.for_training(book)
  assert verification.verify(content, ledger=book) == []
  # Another one that is set later does not matter.
  book.set_budget(
    'glyphs', guarantee.Budget(9.0, cases.PLAN.delta), replace=True
  )
  assert verification.verify(content, ledger=book) == []
  content['composition'][key] = value
  problems = verification.verify(cases.sealed(content), ledger=book)
  assert any('composition.' in problem for problem in problems)


def test_a_simulation_is_certified_as_one(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    for number in range(6):
      cases.charge(other, number, details={'simulation': True})
    right = cases.for_training(other, simulation=True)
    assert verification.verify(right, ledger=other) == []
    message = 'was charged at simulation True'
    with pytest.raises(document.CertificateError, match=message):
      cases.for_training(other, simulation=False)
    wrong = cases.sealed(right | {'simulation': False})
    problems = verification.verify(wrong, ledger=other)
  assert any(message in problem for problem in problems)


def test_draws_under_another_adjacency_are_found(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    cases.charge(
      other,
      None,
      release='quick/synthetic',
      event=cases.RELEASE_EVENT,
      adjacency=guarantee.Adjacency.REPLACE_ONE,
    )
    content = cases.for_synthesis(other)
    problems = verification.verify(content, ledger=other)
  assert any('charged under adjacency.relation' in p for p in problems)


def test_a_released_artefact_is_that_of_the_certificate(book):
  book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='c' * 64
  )
  right = cases.for_training(book, artifact_digest='c' * 64)
  assert verification.verify(right, ledger=book) == []
  for changes in ({'artifact_digest': 'd' * 64}, {}):
    (problem,) = verification.verify(
      cases.for_training(book, **changes), ledger=book
    )
    assert 'this is another artefact' in problem


@pytest.mark.parametrize('build', [cases.for_training, cases.for_synthesis])
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
  with pytest.raises(errors.LedgerDamagedError, match=problem) as info:
    build(book, **_few_rounds(build))
  assert info.value.exit_code == 5
  assert 'dpemb ledger verify' in str(info.value)


def _few_rounds(build):
  """Rounds completed that are there with and without round 4."""
  return {'rounds_completed': 5} if build is cases.for_training else {}


def test_a_later_draw_makes_the_certificate_claim_too_little(book):
  content = cases.for_training(book)
  cases.charge(book, 5)
  problems = verification.verify(content, ledger=book)
  assert any('claims less than was spent' in item for item in problems)


def test_a_consistent_forgery_is_found_by_the_ledger(book, tmp_path):
  """Fewer rounds, everything else recomputed: only the ledger can tell."""
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    for number in range(6):
      cases.charge(other, number)
    forged = cases.for_training(other)
  assert verification.verify(forged) == []
  problems = verification.verify(forged, ledger=book)
  assert any('claims less' in item for item in problems)
  assert any('another ledger' in item for item in problems)


def test_draws_of_other_events_are_found_by_the_ledger(book, tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'other.sqlite') as other:
    for number in (0, 1, 2, 3, 4, 4, 5):
      cases.charge(other, number)
    content = cases.for_training(other)
  with ledger_lib.Ledger.open(tmp_path / 'third.sqlite') as third:
    for number in range(7):
      cases.charge(third, number, event=dp_event.GaussianDpEvent(1.0))
    problems = verification.verify(content, ledger=third)
  assert any('other events' in item for item in problems)


def test_a_draw_of_another_plan_is_found(book):
  content = cases.for_training(book)
  cases.charge(book, 5, plan_digest='d' * 64)
  problems = verification.verify(content, ledger=book)
  assert any('of this plan, got another digest' in item for item in problems)
  with pytest.raises(document.CertificateError, match='another plan'):
    cases.for_training(book)


@pytest.mark.parametrize('number', [None, 6, -1])
def test_a_draw_of_no_round_of_the_plan_is_refused(book, number):
  cases.charge(book, number)
  with pytest.raises(document.CertificateError, match='must be of a round'):
    cases.for_training(book)


def test_correlated_noise_that_was_not_charged_whole_is_refused(book):
  for number in range(8):
    cases.charge(
      book,
      number,
      population='trees',
      run='tree',
      release='tree/model',
      event=dp_event.NoOpDpEvent(),
    )
  with pytest.raises(document.CertificateError, match='round 0'):
    cases.for_training(book, cases.TREE_PLAN, **cases.TREE)


def test_the_composition_is_at_the_releases_own_delta(book):
  budget = guarantee.Budget(8.0, cases.PLAN.delta / 10)
  book.set_budget('glyphs', budget, replace=True)
  part = cases.for_synthesis(book)['composition']
  assert part['delta'] == cases.PLAN.delta
  assert part['budget_delta'] == budget.delta
  assert part['epsilon'] == pytest.approx(
    book.spent('glyphs', cases.PLAN.delta).epsilon
  )
  assert part['remaining_epsilon'] == pytest.approx(
    8 - book.spent('glyphs').epsilon
  )


def test_a_composition_below_the_ledgers_is_found(book):
  content = cases.for_synthesis(book)
  epsilon = content['composition']['epsilon'] * 0.99
  forged = cases.forged(content, composition={'epsilon': epsilon})
  assert verification.verify(forged) == []  # Only the ledger can tell.
  (problem,) = verification.verify(forged, ledger=book)
  assert problem.startswith('composition.epsilon must be at least')
  forged = cases.forged(content, composition={'releases': ['quick/synthetic']})
  (problem,) = verification.verify(forged, ledger=book)
  assert "must be ['quick/model', 'quick/synthetic']" in problem
  # More than was spent, or none at all, is no lie about the users.
  for value in (content['composition']['epsilon'] * 2, None):
    forged = cases.forged(content, composition={'epsilon': value})
    assert verification.verify(forged, ledger=book) == []


def test_draws_after_the_head_do_not_void_the_composition(book):
  content = cases.for_synthesis(book)
  cases.charge(book, None, release='quick/later', event=cases.RELEASE_EVENT)
  assert verification.verify(content, ledger=book) == []


def test_a_head_before_the_releases_draws_is_found(book):
  content = cases.for_synthesis(book)
  head = {'ledger_entries': 1, 'ledger_digest': book.digest_at(1)}
  forged = cases.forged(content, provenance=head)
  problems = verification.verify(forged, ledger=book)
  assert any('entry 1 must lie after the draws' in item for item in problems)
  assert any('runs_in_ledger must be 0' in item for item in problems)


@pytest.mark.parametrize('makes', [cases.for_training, cases.for_synthesis])
def test_another_method_may_leave_less_of_the_budget_but_not_more(book, makes):
  content = makes(book)
  method = content['accounting']['method'] | {'library': 'another 1.0'}
  left = content['composition']['remaining_epsilon']

  def verified(remaining, **changes):
    forged = cases.forged(
      content,
      composition={'remaining_epsilon': remaining},
      accounting=changes,
    )
    return verification.verify(forged, ledger=book)

  assert verified(left, method=method) == []
  assert verified(left - 0.5, method=method) == []
  for problems in (verified(left + 1e-4, method=method), verified(left - 0.5)):
    (problem,) = problems
    assert problem.startswith('composition.remaining_epsilon must be')
  (problem,) = verified(None, method=method)
  assert 'got None' in problem
