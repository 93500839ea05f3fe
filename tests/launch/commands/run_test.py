"""Which steps a command runs, in which order."""

import importlib
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from launch import cli
from launch.commands import run as run_commands
from launch.run import directory
from launch.run import finished
from launch.run import outcome
from tff_dpemb import config
from tff_dpemb.data import user_store

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_PAGE = _ROOT / 'launch/configs/quickstart.toml'
_COMMANDS = (
  'pretrain',
  'train',
  'evaluate',
  'export',
  'serve-check',
  'synthesize',
  'report',
  'quickstart',
)


@pytest.fixture(name='called')
def _called(monkeypatch, tmp_path):
  """Runs a command whose steps are named instead of run; returns their names.

  Each name is looked up in its real module first.
  """

  def run(name, *more):
    called = []
    real_import = importlib.import_module

    class _Step:
      def __init__(self, module):
        self._module = module

      def __getattr__(self, stage):
        assert callable(getattr(self._module, stage))
        return lambda run: called.append(stage)

    def import_module(name, package=None):
      module = real_import(name, package)
      return _Step(module) if name.startswith('launch.steps.') else module

    monkeypatch.setattr(run_commands.importlib, 'import_module', import_module)
    monkeypatch.setattr(outcome, 'of', lambda stage, run: [])
    command = getattr(run_commands, name.replace('-', '_'))
    arguments = [str(_PAGE), '--runs', str(tmp_path), *more]
    command.main(arguments, standalone_mode=False)
    return called

  return run


@pytest.mark.parametrize('name', ['train', 'quickstart'])
def test_the_population_is_checked_before_anything_is_trained(called, name):
  found = called(name)
  assert found[:3] == ['data', 'check_population', 'check_plan']
  assert found[3:5] == ['pretrain', 'train']


@pytest.mark.parametrize('name', _COMMANDS)
def test_each_command_is_in_the_table_and_its_steps_are_there(called, name):
  function = name.replace('-', '_')
  assert cli.COMMANDS[name][0] == f'launch.commands.run:{function}'
  assert called(name)[-1] == {'quickstart': 'report'}.get(name, function)


@pytest.mark.parametrize('name', _COMMANDS)
def test_help_shows_an_example(capsys, name):
  assert cli.run([name, '--help']) == 0
  assert f'dpemb {name} launch/configs/quickstart.toml' in (
    capsys.readouterr().out
  )


def _finished(folder, *steps):
  paths = directory.RunDirectory(config.load(_PAGE), runs=folder)
  for step in steps:
    finished.note(paths, step, [f'{step} made this', 'epsilon 4'])
  return paths


def test_a_finished_step_speaks_at_once_without_a_framework(tmp_path):
  _finished(tmp_path, 'data', 'pretrain', 'train')
  code = (
    'import sys\n'
    'from launch import cli\n'
    f"assert cli.run(['train', {str(_PAGE)!r}, '--runs', {str(tmp_path)!r}])"
    ' == 0\n'
    "heavy = {'tensorflow', 'tensorflow_federated', 'dp_accounting', 'scipy'}\n"
    'loaded = sorted(heavy & set(sys.modules))\n'
    'assert not loaded, loaded\n'
  )
  process = subprocess.run(
    [sys.executable, '-c', code],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert process.returncode == 0, process.stderr
  assert process.stdout == (
    'data (finished before): data made this\n  epsilon 4\n'
    'pretrain (finished before): pretrain made this\n  epsilon 4\n'
    'train (finished before): train made this\n  epsilon 4\n'
  )


def test_steps_after_finished_ones_run_with_their_checks(called, tmp_path):
  _finished(tmp_path, 'data', 'pretrain')
  assert called('train') == ['check_population', 'check_plan', 'train']


def test_of_a_finished_run_only_the_report_is_written_anew(called, tmp_path):
  _finished(
    tmp_path, 'data', 'pretrain', 'train', 'evaluate', 'export', 'serve_check',
    'synthesize',
  )  # fmt: skip
  assert called('quickstart') == ['report']


def test_a_step_says_what_it_made_and_that_is_kept(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(
    outcome, 'of', lambda stage, run: [] if ':' in stage else [f'{stage}!']
  )
  paths = directory.RunDirectory(config.load(_PAGE), runs=tmp_path)
  with run_commands.open_run(str(_PAGE), str(tmp_path), ()) as run:
    monkeypatch.setattr(
      run_commands.importlib,
      'import_module',
      lambda name, package=None: type(
        '_Step', (), {'evaluate': lambda run: None}
      ),
    )
    run_commands._run_step(run, 'evaluate', None)
  assert capsys.readouterr().out == 'evaluate: evaluate!\n'
  assert finished.said(paths, 'evaluate') == ['evaluate!']


def test_the_traceback_of_a_fault_is_kept_in_the_run(tmp_path):
  with pytest.raises(run_commands.faults.Fault) as error:
    with run_commands.open_run(str(_PAGE), str(tmp_path), ()):
      raise KeyError('lost')
  log = tmp_path / 'quickstart' / 'restricted' / 'faults.log'
  assert str(log) in str(error.value)
  assert "KeyError: 'lost'" in log.read_text()
  assert log.parent.stat().st_mode & 0o777 == 0o700


def test_an_error_of_ours_stays_what_it_is(tmp_path):
  with pytest.raises(directory.RunError, match='mine'):
    with run_commands.open_run(str(_PAGE), str(tmp_path), ()):
      raise directory.RunError('mine')
  assert not (tmp_path / 'quickstart' / 'restricted').exists()


def test_own_data_without_public_images_make_no_synthetic_set(
  called, tmp_path, capsys
):
  data = tmp_path / 'data'
  for split in ('private', 'validation', 'test'):
    with user_store.StoreWriter(
      data / split,
      name=split,
      image_shape=(4, 4, 1),
      label_names={'identity': ['0', '1']},
    ) as writer:
      for user in range(2):
        images = np.zeros([1, 4, 4, 1], np.uint8)
        writer.add_user(f'{split}-{user}', images, {'identity': user})
  sets = ('--set', f'data.directory={data}', '--set', 'name=own')
  assert called('quickstart', *sets)[-2:] == ['serve_check', 'report']
  assert 'no public store' in capsys.readouterr().err
  assert called('synthesize', *sets) == ['synthesize']  # It says it itself.
