"""The commands `plan`, `ledger` and `certificate`."""

import contextlib
import dataclasses
import json
import sqlite3
import subprocess
import sys

import pytest
from dp_accounting import dp_event

from launch import cli
from launch.commands import privacy
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_EVENT = dp_event.GaussianDpEvent(10.0)


@dataclasses.dataclass(frozen=True)
class _Result:
  exit_code: int
  output: str
  errors: str


@pytest.fixture(name='run')
def _run(capsys):
  """Runs `dpemb` with arguments, as a shell would."""

  def run(*arguments):
    capsys.readouterr()
    code = cli.run([str(item) for item in arguments])
    return _Result(code, *capsys.readouterr())

  return run


@pytest.fixture(name='url')
def _url(tmp_path):
  path = tmp_path / 'ledger.sqlite'
  with ledger_lib.Ledger.open(path) as book:
    book.set_budget('glyphs', guarantee.Budget(2.0, 1e-5))
    for _ in range(3):
      book.charge(
        population='glyphs',
        release='quick/synthetic',
        run='quick',
        event=_EVENT,
      )
  return path


def _names(command, name):
  yield name
  for key, inner in getattr(command, 'commands', {}).items():
    yield from _names(inner, f'{name} {key}')


@pytest.mark.parametrize(
  'name',
  [
    name
    for group in ('plan', 'ledger', 'certificate')
    for name in _names(getattr(privacy, group), group)
  ],
)
def test_help_fits_a_screen_and_shows_an_example(run, name):
  result = run(*name.split(), '--help')
  assert result.exit_code == 0
  assert 'Example:' in result.output
  assert len(result.output.splitlines()) <= 24


def test_importing_the_commands_imports_nothing_slow():
  code = (
    'import sys, launch.commands.privacy\n'
    'slow = {"tensorflow", "dp_accounting", "sqlalchemy", "scipy", "numpy"}\n'
    'print(sorted(slow & set(sys.modules)))\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert result.stdout == '[]\n'


def test_the_package_never_imports_tensorflow():
  code = (
    'import sys\n'
    'from tff_dpemb.privacy.certificate import build, verification\n'
    'from tff_dpemb.privacy.planning import plan\n'
    'print("tensorflow" in sys.modules)\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert result.stdout == 'False\n'


def test_plan_prints_a_table_that_keeps_to_the_budget(run):
  arguments = [
    '--population',
    '19547',
    '--epsilon',
    '4',
    '--rounds',
    '8',
    '--cohort',
    '19547',
  ]
  result = run('plan', *arguments)
  assert result.exit_code == 0
  # The noise multiplier: 5.92 gives 4.0.
  assert '5.929' in result.output
  (row,) = json.loads(run('plan', *arguments, '--json').output)
  assert 3.9 < row['epsilon'] <= 4.0


def test_plan_compares_kinds_of_noise_and_shows_what_tuning_costs(run):
  arguments = ['--population', '100000', '--rounds', '20', '--cohort', '5000']
  arguments += ['--noise', 'tree', '--noise', 'blt', '--runs', '10']
  result = run('plan', *arguments)
  assert result.exit_code == 0
  for text in ('tree ', 'blt ', 'examples', 'logarithmic', 'all runs x 10'):
    assert text in result.output
  tree, blt = json.loads(run('plan', *arguments, '--json').output)
  assert (tree['noise'], blt['noise']) == ('tree', 'blt')
  assert blt['noise_of_total'] < tree['noise_of_total']
  for row in (tree, blt):
    assert row['participations'] == 1
    assert row['examples_trained'] == 20 * 5000 * 8
    costs = row['tuning']['epsilon']
    assert costs['all runs x 1'] == pytest.approx(row['epsilon'])
    assert costs['all runs x 1'] < costs['logarithmic'] < costs['all runs x 10']


def test_plan_refuses_a_kind_of_noise_it_does_not_know(run):
  result = run('plan', '--population', '100', '--noise', 'white')
  assert result.exit_code == 2
  assert "'white' is not one of" in result.errors


def test_plan_refuses_in_one_line(run):
  result = run('plan', '--population', 100, '--delta', 0.5)
  assert result.exit_code == 2
  assert 'delta must be in (0, 1 / population = 0.01)' in result.errors
  assert len(result.errors.splitlines()) == 1


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


def test_certificate_verify_and_show(run, url, tmp_path):
  with ledger_lib.Ledger.open(url) as book:
    content = build.build_for_synthesis(
      charged=build.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=build.Context(simulation=False),
      provenance=build.Provenance(),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  path = tmp_path / 'certificate.json'
  build.write(path, content)
  group = 'certificate'
  for place in (path, tmp_path):
    result = run(group, 'verify', place, '--ledger', url)
    assert result.exit_code == 0, result.errors
    assert 'holds: This synthetic set' in result.output
  result = run(group, 'verify', path)
  assert 'not checked against a ledger' in result.output
  assert run(group, 'show', path).output.startswith('# Privacy certificate')
  page = run(group, 'show', path, '--format', 'html').output
  assert page.startswith('<!doctype html>')
  assert json.loads(run(group, 'show', path, '--format', 'json').output) == (
    content
  )
  assert json.loads(run(group, 'show', '--schema').output)['title'] == (
    'dpemb.certificate/3'
  )
  content['accounting']['epsilon'] *= 0.5
  build.write(path, content)
  result = run(group, 'verify', path)
  assert result.exit_code == 5
  assert 'problem: accounting.epsilon must be' in result.errors


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


@pytest.fixture(name='certified')
def _certified(url, tmp_path):
  """A directory with a certificate and its page."""
  directory = tmp_path / 'export'
  directory.mkdir()
  with ledger_lib.Ledger.open(url) as book:
    content = build.build_for_synthesis(
      charged=build.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=build.Context(simulation=False),
      provenance=build.Provenance(),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  build.write(directory / 'certificate.json', content)
  (directory / 'certificate.html').write_text('old page')
  return directory


def test_a_certificate_is_signed_and_checked(run, url, certified, tmp_path):
  key, other = tmp_path / 'key', tmp_path / 'other'
  for name in (key, other):
    assert run('certificate', 'keygen', name).exit_code == 0
  verify = ('certificate', 'verify', certified, '--public-key')
  result = run(*verify, f'{key}.pub')
  assert result.exit_code == 5
  assert 'is not signed' in result.errors
  sign = ('certificate', 'sign', certified, '--key', key, '--ledger', url)
  assert run(*sign).exit_code == 0
  assert run(*verify, f'{key}.pub').exit_code == 0
  assert 'signed by ed25519 key' in (
    (certified / 'certificate.html').read_text()
  )
  result = run(*verify, f'{other}.pub')
  assert result.exit_code == 5
  assert 'must be of key' in result.errors
  assert (
    'not checked whose it is' in run('certificate', 'verify', certified).output
  )

  path = certified / 'certificate.json'
  forged = json.loads(path.read_text())
  forged['setting']['trust'] = 'nobody'
  build.write(path, build.seal(forged))
  result = run(*verify, f'{key}.pub')
  assert result.exit_code == 5
  assert 'was altered' in result.errors


def test_a_signed_export_can_still_be_opened(run, certified, tmp_path):
  run('certificate', 'keygen', tmp_path / 'key')
  path, manifest = (
    certified / name for name in ('certificate.json', 'manifest.json')
  )
  listed = {'files': {}, 'certificate_sha256': storage.sha256_of(path)}
  storage.atomic_write_json(manifest, listed)
  sign = ('certificate', 'sign', certified, '--key', tmp_path / 'key')
  assert run(*sign).exit_code == 0
  assert storage.read_json(manifest) == {
    'files': {},
    'certificate_sha256': storage.sha256_of(path),
  }
  assert storage.read_json(manifest) != listed


def test_what_does_not_hold_is_not_signed(run, certified, tmp_path):
  run('certificate', 'keygen', tmp_path / 'key')
  path = certified / 'certificate.json'
  content = json.loads(path.read_text())
  content['accounting']['epsilon'] *= 0.5
  build.write(path, build.seal(content))
  before = path.read_bytes()
  result = run('certificate', 'sign', certified, '--key', tmp_path / 'key')
  assert result.exit_code == 5
  assert 'accounting.epsilon must be' in result.errors
  assert path.read_bytes() == before


def test_certificate_errors_are_one_line(run, tmp_path):
  result = run('certificate', 'show', tmp_path / 'none.json')
  assert result.exit_code == 2
  assert len(result.errors.splitlines()) == 1
