"""What every certificate of a kind says is protected and covered."""

import copy

import pytest

from tests.privacy.certificate import cases
from tff_dpemb.privacy.certificate import claims
from tff_dpemb.privacy.certificate import document


def _problems(content):
  return claims.problems(document.Certificate.from_json(content))


def test_each_name_of_a_fact_has_words_and_no_other_has():
  named = {what for kind in claims.PROTECTED.values() for what in kind}
  named |= {what for kind in claims.ACCESSES.values() for what in kind}
  assert named == set(claims.TEXTS)


def test_what_is_built_says_all_of_it(book):
  for content in (cases.for_training(book), cases.for_synthesis(book)):
    assert _problems(content) == []
    listed = {row['what']: row['status'] for row in content['data_accesses']}
    assert listed == claims.ACCESSES[content['kind']]


def test_more_may_be_listed_but_not_as_covered(book):
  more = {'labels': 'public', 'faces': 'not covered'}
  content = cases.for_training(book, data_accesses=more)
  assert _problems(content) == []
  # What the kind says cannot be overruled by whoever asks for it.
  again = cases.for_training(book, data_accesses={'settings': 'public'})
  listed = {row['what']: row['status'] for row in again['data_accesses']}
  assert listed['settings'] == 'not covered'
  content['data_accesses'][-1]['status'] = 'covered'
  assert len(_problems(content)) == 1


@pytest.mark.parametrize(
  ('change', 'problem'),
  [
    (
      lambda c: c['released'].update(protected=['backbone']),
      "released.protected must be ['backbone', 'clip_norms']",
    ),
    (
      lambda c: c['data_accesses'].pop(2),
      "say once that 'settings' is 'not covered', got []",
    ),
    (
      lambda c: c['data_accesses'].append(
        {'what': 'settings', 'status': 'public'}
      ),
      "got ['not covered', 'public']",
    ),
    (
      lambda c: c['data_accesses'].append(
        {'what': 'labels', 'status': 'covered'}
      ),
      "must not call 'labels' covered",
    ),
    (
      lambda c: c['sampling'].update(participation='everyone'),
      "must be that of a model, got 'everyone'",
    ),
  ],
)
def test_what_says_something_else_is_found(model, change, problem):
  content = copy.deepcopy(model)
  change(content)
  assert any(problem in item for item in _problems(content))
