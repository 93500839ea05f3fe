"""What a builder is told: whose draws, and what nobody measured."""

from tests.privacy.certificate import cases
from tff_dpemb.privacy.certificate import facts


def test_the_draws_are_those_of_the_release_and_run(book):
  cases.charge(book, 0, release='quick/other')
  cases.charge(book, 0, run='other')
  book.record_release(
    population='glyphs', release='quick/model', run='quick', digest='c' * 64
  )
  charged = facts.Charged(book, 'glyphs', 'quick', 'quick/model')
  found = charged.draws()
  assert [entry.round_number for entry in found] == [0, 1, 2, 3, 4, 4, 5]
  assert {entry.kind for entry in found} == {'draw'}
  assert facts.Charged(book, 'faces', 'quick', 'quick/model').draws() == []


def test_what_is_not_told_is_not_claimed(book):
  content = cases.for_training(book, utility=None)
  assert content['tuning']['private_runs'] == 'not covered'
  assert content['tuning']['cost'] == 'not covered'
  assert content['public_data']['overlap_check'] == 'not run'
  assert content['audit'] == {'status': 'not run', 'results': []}
  assert content['utility']['status'] == 'not run'
  assert content['provenance']['data_digest'] == ''
