"""The command `plan`."""

import json
import subprocess
import sys

import pytest


def test_help_fits_a_screen_and_shows_an_example(run):
  result = run('plan', '--help')
  assert result.exit_code == 0
  assert 'Example:' in result.output
  assert len(result.output.splitlines()) <= 24


def test_importing_the_commands_imports_nothing_slow():
  code = (
    'import sys\n'
    'from launch.commands import certificate, ledger, plan\n'
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
