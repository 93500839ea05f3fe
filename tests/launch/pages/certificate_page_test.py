"""A certificate as a page: what it says, and that it is escaped."""

import pytest
from dp_accounting import dp_event

from launch.pages import certificate_page
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

_PLAN = plan_lib.PrivacyPlan(
  sampler=samplers.PoissonSampler(5000, 256),
  mechanism=independent.AdaptiveClipGaussian(0.5, 2.0, 40),
  virtual_clients=40,
  rounds=2,
  delta=5000**-1.1,
)
_TITLES = (
  '1 Setting and trust',
  '2 Unit',
  '3 Adjacency and sensitivity',
  '4 What is released',
  '5 Data accesses',
  '6 Mechanism',
  '7 Sampling',
  '8 Accounting of this release alone',
  '9 Tuning',
  '10 Public data',
  '11 Randomness and numerics',
  '12 Empirical audit',
  '13 Utility and coverage',
  '14 Composition of all releases',
  '15 Provenance',
)


@pytest.fixture(name='book')
def _book(tmp_path):
  with ledger_lib.Ledger.open(tmp_path / 'ledger.sqlite') as book:
    book.set_budget('glyphs', guarantee.Budget(8.0, _PLAN.delta))
    for number in range(2):
      book.charge(
        population='glyphs',
        release='quick/model',
        run='quick',
        event=_PLAN.round_event(),
        round_number=number,
      )
    yield book


@pytest.fixture(name='certify')
def _certify(book):
  """Returns the certificate of a model, with other context."""

  def certify(**context):
    return build.for_training(
      _PLAN,
      charged=facts.Charged(book, 'glyphs', 'quick', 'quick/model'),
      context=facts.Context(**{'simulation': False, **context}),
      provenance=facts.Provenance(code_revision='c0ffee'),
      rounds_completed=2,
    )

  return certify


def _pages(content):
  return (
    certificate_page.to_html(content),
    certificate_page.to_markdown(content),
  )


def test_pages_show_the_statement_and_escape_what_they_print(certify):
  content = certify(user_definition='<b>one & only</b>')
  page, markdown = _pages(content)
  assert '&lt;b&gt;one &amp; only&lt;/b&gt;' in page
  assert '<b>one' not in page
  assert 'http' not in page.replace('https://json-schema.org', '')
  for text in (page, markdown):
    assert 'differential privacy' in text
    for title in (*_TITLES, 'void if'):
      assert title in text


def test_both_pages_show_every_fact(certify):
  content = certify()
  page, markdown = _pages(content)
  epsilon = content.accounting.epsilon
  for text in (page, markdown):
    assert f'({epsilon:.4g}, ' in text
    assert f'{epsilon:.6g}' in text
    assert content.statement.groups in text
    assert content.digest in text
    assert 'c0ffee' in text
    assert 'not signed' in text
    assert text.count('not stated') == markdown.count('not stated') > 0
  rows = sum(line.startswith('- ') for line in markdown.splitlines())
  assert page.count('<tr>') + page.count('<li>') == rows


def test_a_synthetic_set_shows_its_own_and_the_common_figure(certify, book):
  certify()
  book.charge(
    population='glyphs',
    release='quick/synthetic',
    run='quick',
    event=dp_event.GaussianDpEvent(8.0),
  )
  content = build.for_synthesis(
    charged=facts.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
    context=facts.Context(simulation=False),
    provenance=facts.Provenance(),
    population_size=5000,
    delta=_PLAN.delta,
    queries=[],
  )
  own = content.accounting.epsilon
  together = content.composition.epsilon
  assert own < together
  for text in _pages(content):
    assert f'({own:.4g}, ' in text
    assert f'({together:.4g}, ' in text


def test_an_audit_and_a_signature_are_shown(certify):
  audit = {
    'method': 'one-shot canaries',
    'mode': 'all iterates',
    'canaries': 200,
    'confidence': 0.95,
    'delta': _PLAN.delta,
    'lower_bound': 0.0,
    'estimate': 1.0,
    'verdict': 'consistent',
  }
  signature = document.Signature(public_key='f' * 64, value='e' * 128)
  content = certify(audits=[audit]).model_copy(update={'signature': signature})
  for text in _pages(content):
    assert 'one-shot canaries' in text
    assert f'signed by ed25519 key {"f" * 64}' in text


def test_no_guarantee_is_said_in_words(certify):
  content = certify()
  unbounded = content.accounting.model_copy(update={'epsilon': None})
  content = content.model_copy(update={'accounting': unbounded})
  for text in _pages(content):
    assert guarantee.NO_GUARANTEE in text


def test_the_words_are_made_of_the_facts_not_read(certify):
  content = certify()
  false = content.statement.model_copy(update={'text': 'perfectly private'})
  for text in _pages(content.model_copy(update={'statement': false})):
    assert 'perfectly private' not in text
    assert content.statement.text in text
    assert 'updates of the backbone in each round' in text  # No bare name.
    assert content.statement.assumptions[0] in text


def test_what_another_method_says_of_itself_is_marked(certify):
  content = certify()
  method = content.accounting.method.model_copy(update={'library': 'other 1.0'})
  stated = content.accounting.model_copy(
    update={'method': method, 'accountant': 'exact'}
  )
  for text in _pages(content):
    assert 'not checked)' not in text
  for text in _pages(content.model_copy(update={'accounting': stated})):
    assert 'exact (stated by another method of accounting, not checked)' in text
