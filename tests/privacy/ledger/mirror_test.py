"""The mirror: what it finds, and what is no alarm."""

import shutil

import pytest

from tests.privacy.ledger import cases
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib


def _filled(path):
  with ledger_lib.Ledger.open(path) as book:
    for number in range(5):
      cases.charge(book, number)
    assert book.verify() == []


def test_an_older_copy_is_found_when_opened(path):
  with ledger_lib.Ledger.open(path) as book:
    cases.charge(book)
  copy = path.with_suffix('.copy')
  shutil.copy(path, copy)
  with ledger_lib.Ledger.open(path) as book:
    cases.charge(book, 1)
  shutil.copy(copy, path)
  with pytest.raises(errors.LedgerDamagedError, match='older copy'):
    ledger_lib.Ledger.open(path)


def test_a_missing_or_edited_mirror_is_found(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  whole = mirror.read_text()
  mirror.write_text(whole.replace('\n3 ', '\nthree '))
  with pytest.raises(errors.LedgerDamagedError, match='was edited'):
    ledger_lib.Ledger.open(path)
  mirror.unlink()
  with ledger_lib.Ledger.open(path) as book:
    assert 'was removed' in book.verify()[0]


def test_a_mirror_line_cut_short_by_a_crash_is_no_alarm(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  mirror.write_text(mirror.read_text() + '\n6 0123ab')
  with ledger_lib.Ledger.open(path) as book:
    cases.charge(book, 5)
    assert book.verify() == []


def test_an_emptied_or_cut_mirror_is_found(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  lines = [line for line in mirror.read_text().splitlines() if line]
  for kept, lacks in (
    ([], '5 of 5, the first is 1'),
    (lines[:-2], '1 of 5, the first is 5'),
    (lines[2:], '1 of 5, the first is 1'),
  ):
    mirror.write_text(''.join(f'{line}\n' for line in kept))
    with ledger_lib.Ledger.open(path) as book:
      (problem,) = book.verify()
    assert lacks in problem
  mirror.write_text('')
  with ledger_lib.Ledger.open(path) as book:
    cases.charge(book, 5)  # Does not heal it.
    assert '5 of 6' in book.verify()[0]


def test_a_crash_before_the_acknowledgement_is_no_alarm(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  lines = mirror.read_text().splitlines()
  assert lines[-1].startswith('5 ')
  mirror.write_text('\n'.join(lines[:-1]) + f'\n~6 {"0" * 64}\n~6')
  with ledger_lib.Ledger.open(path) as book:
    assert book.verify() == []
    cases.charge(book, 5)
    assert book.verify() == []


@pytest.mark.parametrize('content', [b'\xff\xfe\n', b'1' * 6000 + b' ab\n'])
def test_a_mirror_of_other_bytes_is_damage(path, content):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  with ledger_lib.Ledger.open(path) as book:
    mirror.write_bytes(content)
    assert 'was edited' in book.verify()[0]
  with pytest.raises(errors.LedgerDamagedError, match='was edited'):
    ledger_lib.Ledger.open(path)


def test_a_mirror_that_is_a_directory_is_named(path):
  _filled(path)
  mirror = path.with_name('ledger.sqlite.head')
  with ledger_lib.Ledger.open(path) as book:
    mirror.unlink()
    mirror.mkdir()
    assert 'ledger.sqlite.head' in book.verify()[0]
    with pytest.raises(errors.LedgerError, match='sqlite.head.*writable'):
      cases.charge(book, 5)
    assert len(book.entries()) == 5
  with pytest.raises(
    errors.LedgerDamagedError, match='sqlite.head.*must be a file'
  ):
    ledger_lib.Ledger.open(path)
