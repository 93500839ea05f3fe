"""What is set, opened and refused before the frameworks are imported."""

import os
import pathlib
import subprocess
import sys

import pytest

from launch import environment

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PAGE = 'launch/configs/quickstart.toml'


def test_a_users_own_value_stays(monkeypatch):
  monkeypatch.setenv('GRPC_VERBOSITY', 'INFO')
  monkeypatch.delenv('TF_CPP_MIN_LOG_LEVEL', raising=False)
  environment.prepare()
  assert os.environ['GRPC_VERBOSITY'] == 'INFO'
  assert os.environ['TF_CPP_MIN_LOG_LEVEL'] == '3'


@pytest.mark.parametrize(
  ('variables', 'expected'),
  [
    ({'XDG_STATE_HOME': '/state', 'HOME': '/tmp'}, '/state/dpemb'),
    ({'XDG_STATE_HOME': 'relative', 'HOME': '/tmp'}, '/tmp/.local/state/dpemb'),
    ({'HOME': '/nonexistent', 'TMPDIR': '/tmp'}, f'/tmp/dpemb-{os.getuid()}'),
    ({'TMPDIR': '/tmp'}, f'/tmp/dpemb-{os.getuid()}'),
  ],
)
def test_logs_have_a_place_without_a_home(monkeypatch, variables, expected):
  monkeypatch.setattr(environment.tempfile, 'tempdir', None)
  for name in ('XDG_STATE_HOME', 'HOME', 'TMPDIR'):
    monkeypatch.delenv(name, raising=False)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  assert str(environment.state_directory()) == expected


@pytest.mark.parametrize('kib', [400_000, 3_500_000])
@pytest.mark.parametrize(
  'command', ['pretrain {page} --runs {runs}', 'worker --listen 127.0.0.1:0']
)
def test_a_low_limit_of_memory_is_a_line_at_once(tmp_path, kib, command):
  words = command.format(page=_PAGE, runs=tmp_path / 'runs')
  process = subprocess.run(
    f'ulimit -v {kib}; exec {sys.executable} -m launch.cli {words}',
    shell=True,
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert process.returncode == 2, process.stderr
  assert process.stderr.startswith('dpemb: error: ')
  assert process.stderr.count('\n') == 1
  assert 'ulimit -v' in process.stderr
  assert not (tmp_path / 'runs').exists()


def test_without_a_home_and_on_a_dumb_terminal_commands_work(tmp_path):
  process = subprocess.run(
    [
      *(sys.executable, '-m', 'launch.cli', 'data', 'glyphs', '--bundled'),
      *('--images', '1', '--output', str(tmp_path / 'glyphs')),
    ],
    cwd=_ROOT,
    env={'PATH': '/usr/bin:/bin', 'TERM': 'dumb'},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert process.returncode == 0, process.stderr
  assert process.stderr == '' and '\r' not in process.stdout
