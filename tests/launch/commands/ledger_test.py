"""The commands `ledger`."""

import contextlib
import json
import sqlite3

import pytest
from dp_accounting import dp_event

from launch.commands import ledger as ledger_commands
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_EVENT = dp_event.GaussianDpEvent(10.0)


def _names(command, name):
  yield name
  for key, inner in getattr(command, 'commands', {}).items():
    yield from _names(inner, f'{name} {key}')


@pytest.mark.parametrize(
  'name',
  [name for name in _names(ledger_commands.ledger, 'ledger')],
)
def test_help_fits_a_screen_and_shows_an_example(run, name):
  result = run(*name.split(), '--help')
  assert result.exit_code == 0
  assert 'Example:' in result.output
  assert len(result.output.splitlines()) <= 24


def test_ledger_show_says_what_is_spent_and_left(run, url):
  result = run('ledger', 'show', '--ledger', url, '--entries')
  assert result.exit_code == 0
  with ledger_lib.Ledger.open(url) as book:
    spent = book.spent('glyphs').epsilon
  assert 'glyphs: 3 draws for 1 releases' in result.output
  assert f'spent epsilon {spent:.4g}' in result.output
  assert f'left {2 - spent:.4g}' in result.output
  assert result.output.count('quick/synthetic') == 3


def test_a_population_that_is_not_there_is_refused(run, url):
  for command in ('show', 'export'):
    options = ['--composed'] if command == 'export' else ['--delta', '1e-5']
    result = run(
      'ledger', command, '--ledger', url, '--population', 'nosuch', *options
    )
    assert result.exit_code == 2
    assert "one of ['glyphs'], got 'nosuch'" in result.errors


def test_ledger_verify_tells_whole_from_damaged(run, url):
  command = ('ledger', 'verify', '--ledger', url)
  result = run(*command)
  assert result.exit_code == 0
  assert '4 entries, chain whole' in result.output
  (url.with_name('ledger.sqlite.head')).unlink()
  result = run(*command)
  assert result.exit_code == 5
  assert 'problem: ' in result.errors


def _tamper(url, statement):
  with contextlib.closing(sqlite3.connect(url)) as raw:
    for action in ('update', 'delete'):
      raw.execute(f'DROP TRIGGER entries_no_{action}')
    raw.execute(statement)
    raw.commit()


def test_a_ledger_that_lacks_draws_is_shown_with_its_first_problem(run, url):
  _tamper(url, 'DELETE FROM entries WHERE sequence IN (2, 3)')
  for command, text in (
    (('show', '--entries'), 'glyphs: 1 draws for 1 releases'),
    (('export',), '"sequence": 4'),
    (('export', '--composed'), '"population": "glyphs"'),
    (('budget', 'glyphs'), ''),
    (('budget', 'other', '--epsilon', 1, '--delta', 1e-5), ''),
  ):
    result = run('ledger', *command, '--ledger', url)
    assert result.exit_code == 5
    assert text in result.output
    assert result.errors.startswith('problem: entry 2 must follow entry 1')
    assert len(result.errors.splitlines()) == 1
    assert (result.output == '') == (text == '')
  with ledger_lib.Ledger.open(url) as book:
    assert book.budget('other') is None


@pytest.mark.parametrize(
  'change', ["event = '{'", "details = '{'", "event = x'ff00'"]
)
def test_a_damaged_entry_is_one_line(run, url, change):
  _tamper(url, f'UPDATE entries SET {change} WHERE sequence = 3')
  for command in (('show', '--entries'), ('export',), ('budget', 'glyphs')):
    result = run('ledger', *command, '--ledger', url)
    assert result.exit_code == 5
    assert 'entry 3 ' in result.errors
    assert len(result.errors.splitlines()) == 1
  result = run('ledger', 'verify', '--ledger', url)
  assert result.exit_code == 5
  assert 'problem: entry 3 of the ledger must have ' in result.errors


def test_ledger_export_can_be_read_by_dp_accounting(run, url):
  command = ('ledger', 'export', '--ledger', url)
  lines = run(*command).output.splitlines()
  assert [json.loads(line)['kind'] for line in lines] == [
    'budget',
    'draw',
    'draw',
    'draw',
  ]
  assert events.from_json(json.loads(lines[1])['event']) == _EVENT
  (line,) = run(*command, '--composed').output.splitlines()
  assert events.from_json(json.loads(line)['event']) == (
    dp_event.SelfComposedDpEvent(_EVENT, 3)
  )


def test_ledger_budget_shows_sets_and_refuses(run, url):
  command = ('ledger', 'budget', '--ledger', url)
  assert 'budget epsilon 2 ' in run(*command, 'glyphs').output
  assert 'no budget' in run(*command, 'other').output
  change = ('glyphs', '--epsilon', 3, '--delta', 1e-5)
  result = run(*command, *change)
  assert result.exit_code == 2
  assert '--replace' in result.errors
  assert 'budget epsilon 3 ' in run(*command, *change, '--replace').output
  result = run(*command, 'glyphs', '--epsilon', 3)
  assert result.exit_code == 2
  assert 'must be given together' in result.errors


def test_readers_do_not_make_a_ledger(run, tmp_path):
  for name in ('show', 'verify', 'export'):
    result = run('ledger', name, '--ledger', tmp_path / 'none.sqlite')
    assert result.exit_code == 2
    assert 'must exist' in result.errors
  assert list(tmp_path.iterdir()) == []


def test_a_noted_head_is_looked_for(run, url):
  command = ('ledger', 'verify', '--ledger', url)
  noted = run(*command).output.split()[-1]
  assert run(*command, '--head', noted).exit_code == 0
  count, _, digest = noted.partition(':')
  result = run(*command, '--head', f'{int(count) + 1}:{digest}')
  assert result.exit_code == 5
  assert 'must have the noted digest' in result.errors
  result = run(*command, '--head', 'yesterday')
  assert result.exit_code == 2
  assert 'COUNT:DIGEST' in result.errors
