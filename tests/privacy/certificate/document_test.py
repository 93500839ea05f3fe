"""The form of a certificate."""

import copy
import json

import pytest

from tests.privacy.certificate import cases
from tff_dpemb.privacy.certificate import verification


def test_all_sixteen_points_are_there(book):
  for content in (cases.for_training(book), cases.for_synthesis(book)):
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
