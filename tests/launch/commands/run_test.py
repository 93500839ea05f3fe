"""Which steps a command runs, in which order."""

import importlib
import pathlib

import pytest

from launch import cli
from launch.commands import run as run_commands

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_PAGE = _ROOT / 'launch/configs/quickstart.toml'
_COMMANDS = (
  'pretrain',
  'train',
  'evaluate',
  'export',
  'synthesize',
  'report',
  'quickstart',
)


@pytest.fixture(name='called')
def _called(monkeypatch, tmp_path):
  """Runs a command whose steps are named instead of run; returns their names.

  Each name is looked up in its real module first.
  """

  def run(name):
    called = []
    real_import = importlib.import_module

    class _Step:
      def __init__(self, module):
        self._module = module

      def __getattr__(self, stage):
        assert callable(getattr(self._module, stage))
        return lambda run: called.append(stage)

    def import_module(name):
      module = real_import(name)
      return _Step(module) if name.startswith('launch.steps.') else module

    monkeypatch.setattr(run_commands.importlib, 'import_module', import_module)
    command = getattr(run_commands, name)
    command.main([str(_PAGE), '--runs', str(tmp_path)], standalone_mode=False)
    return called

  return run


@pytest.mark.parametrize('name', ['train', 'quickstart'])
def test_the_population_is_checked_before_anything_is_trained(called, name):
  found = called(name)
  assert found[:3] == ['data', 'check_population', 'check_plan']
  assert found[3:5] == ['pretrain', 'train']


@pytest.mark.parametrize('name', _COMMANDS)
def test_each_command_is_in_the_table_and_its_steps_are_there(called, name):
  assert cli.COMMANDS[name][0] == f'launch.commands.run:{name}'
  assert called(name)[-1] == {'quickstart': 'report'}.get(name, name)


@pytest.mark.parametrize('name', _COMMANDS)
def test_help_shows_an_example(capsys, name):
  assert cli.run([name, '--help']) == 0
  assert f'dpemb {name} launch/configs/quickstart.toml' in (
    capsys.readouterr().out
  )
