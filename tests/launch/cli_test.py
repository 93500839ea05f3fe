import errno
import importlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import types

import click
import pytest

from launch import cli
from tff_dpemb import config
from tff_dpemb.artifacts import storage

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCREEN_LINES = 40
_HEAVY = (
  'apache_beam',
  'faiss',
  'grpc',
  'jax',
  'matplotlib',
  'numpy',
  'scipy',
  'sqlalchemy',
  'tensorflow',
  'tensorflow_federated',
)


class _BudgetError(ValueError):
  exit_code = 4


_BudgetError.__module__ = 'tff_dpemb.privacy.example'


def _raise(error):
  raise error


@pytest.fixture
def run_command(monkeypatch):
  """Returns a function that runs `body` as the command `dpemb example`."""

  def run(body, *arguments):
    module = types.ModuleType('launch_example')
    module.example = click.command('example')(body)
    monkeypatch.setitem(sys.modules, 'launch_example', module)
    monkeypatch.setitem(
      cli.COMMANDS, 'example', ('launch_example:example', 'For the test.')
    )
    return cli.run(['example', *arguments])

  return run


def _python(code, **kwargs):
  return subprocess.run(
    [sys.executable, '-c', code],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
    **kwargs,
  )


class TestExitCodes:
  @pytest.mark.parametrize(
    ('error', 'code', 'line'),
    [
      (
        config.ConfigError('training.rounds must be > 0, got 0.'),
        2,
        'training.rounds must be > 0, got 0.',
      ),
      (storage.ArtifactError('one\n  two'), 2, 'one two'),
      (_BudgetError('0.5 is left.'), 4, '0.5 is left.'),
      (
        OSError(errno.ENOSPC, 'No space left on device', '/data/x'),
        2,
        "the disk is full '/data/x'; free space",
      ),
      (
        OSError(errno.EADDRINUSE, 'Address already in use'),
        2,
        'the port is in use; stop what listens there',
      ),
      (
        FileNotFoundError(errno.ENOENT, 'No such file or directory', 'a.png'),
        2,
        "No such file or directory: 'a.png'.",
      ),
      (click.UsageError('--rounds is missing.'), 2, '--rounds is missing.'),
    ],
  )
  def test_known_errors_are_one_line(
    self, run_command, capsys, error, code, line
  ):
    assert run_command(lambda: _raise(error)) == code
    output = capsys.readouterr()
    assert output.out == ''
    assert output.err.startswith(f'dpemb: error: {line}')
    assert output.err.count('\n') == 1

  def test_interrupt(self, run_command, capsys):
    assert run_command(lambda: _raise(KeyboardInterrupt())) == 130
    # The new line ends the terminal's ^C.
    assert capsys.readouterr().err == '\ndpemb: error: interrupted.\n'

  def test_a_fault_is_one_line_and_a_log(
    self, run_command, capsys, monkeypatch, tmp_path
  ):
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path))
    assert run_command(lambda: _raise(KeyError('lost'))) == 1
    error = capsys.readouterr().err
    log = tmp_path / 'dpemb' / 'faults.log'
    assert error.startswith("dpemb: error: KeyError: 'lost'")
    assert error.count('\n') == 1 and str(log) in error
    assert 'Traceback' in log.read_text()

  def test_a_fault_after_ctrl_c_is_the_interrupt(
    self, run_command, capsys, monkeypatch
  ):
    """A framework may hide the interrupt behind an error of its own."""
    monkeypatch.setattr(cli.faults, 'interrupted', threading.Event())
    cli.faults.interrupted.set()
    assert run_command(lambda: _raise(RuntimeError('bundle failed'))) == 130
    assert capsys.readouterr().err == 'dpemb: error: interrupted.\n'

  def test_cause_of_a_framework_error_is_found(self, run_command, capsys):
    def body():
      try:
        raise _BudgetError('spent.')
      except _BudgetError as error:
        raise RuntimeError('while running stage 3') from error

    assert run_command(body) == 4
    assert capsys.readouterr().err == 'dpemb: error: spent.\n'

  def test_debug_variable_adds_the_traceback(
    self, run_command, capsys, monkeypatch
  ):
    monkeypatch.setenv('DPEMB_DEBUG', '1')
    assert run_command(lambda: _raise(_BudgetError('spent.'))) == 4
    error = capsys.readouterr().err
    assert 'Traceback' in error
    assert error.endswith('dpemb: error: spent.\n')

  def test_success(self, run_command, capsys):
    assert run_command(lambda: click.echo('done')) == 0
    assert capsys.readouterr().out == 'done\n'

  def test_a_command_may_return_its_code(self, run_command):
    assert run_command(lambda: 3) == 3

  def test_process_exit_code_and_stderr(self):
    process = _python(
      "from launch import cli; cli.main(['quikstart'])",
    )
    assert process.returncode == 2
    assert process.stdout == ''
    assert process.stderr == (
      "dpemb: error: no such command 'quikstart'; the nearest one is"
      " 'quickstart'. Try: dpemb --help\n"
    )

  def test_closed_reader_is_quiet(self):
    code = (
      'import sys; from launch import cli\n'
      'sys.stdin.readline()\n'  # until the reader has gone
      "cli.main(['--help'])"
    )
    process = subprocess.Popen(
      [sys.executable, '-c', code],
      cwd=_ROOT,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    process.stdout.close()
    process.stdin.write('\n')
    process.stdin.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ''
    process.stderr.close()

  @pytest.mark.parametrize('closed', ['>&-', '2>&-', '>&- 2>&- <&-'])
  def test_closed_streams_change_nothing(self, tmp_path, closed):
    """No file may get the number of a closed stream: chatter would go there."""
    code = (
      'import os, sys, types, click; from launch import cli\n'
      'def example():\n'
      "  number = os.open('kept', os.O_WRONLY | os.O_CREAT)\n"
      "  print('said'); print('warned', file=sys.stderr)\n"
      "  os.system('echo child; echo child >&2')\n"
      '  os.write(number, str(number > 2).encode())\n'
      "module = types.ModuleType('launch_example')\n"
      "module.example = click.command('example')(example)\n"
      "sys.modules['launch_example'] = module\n"
      "cli.COMMANDS['example'] = ('launch_example:example', '')\n"
      "cli.main(['example'])\n"
    )
    process = subprocess.run(
      f'exec {sys.executable} -c "$CODE" {closed}',
      shell=True,
      cwd=tmp_path,
      env={**os.environ, 'CODE': code, 'PYTHONPATH': str(_ROOT)},
      capture_output=True,
      text=True,
      timeout=60,
    )
    assert (tmp_path / 'kept').read_text() == 'True'
    assert process.returncode == 0
    assert 'Traceback' not in process.stdout + process.stderr

  def test_ctrl_c_in_native_code_that_hides_it_is_130(self):
    code = """
import signal, sys, types, click
from launch import cli
@click.command()
def example():
  try:
    print('ready', flush=True)
    signal.pause()
  except KeyboardInterrupt:
    raise RuntimeError('while running stage 3') from None
module = types.ModuleType('launch_example')
module.example = example
sys.modules['launch_example'] = module
cli.COMMANDS['example'] = ('launch_example:example', '')
cli.main(['example'])
"""
    with subprocess.Popen(
      [sys.executable, '-c', code],
      cwd=_ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    ) as process:
      assert process.stdout.readline() == 'ready\n'
      process.send_signal(signal.SIGINT)
      _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (
      130,
      'dpemb: error: interrupted.\n',
    )

  def test_sigterm_runs_clean_up(self, tmp_path):
    code = """
import signal, sys, types, click
from launch import cli
@click.command()
def example():
  try:
    print('ready', flush=True)
    signal.pause()
  finally:
    print('cleaned', flush=True)
module = types.ModuleType('launch_example')
module.example = example
sys.modules['launch_example'] = module
cli.COMMANDS['example'] = ('launch_example:example', '')
cli.main(['example'])
"""
    with subprocess.Popen(
      [sys.executable, '-c', code],
      cwd=_ROOT,
      stdout=subprocess.PIPE,
      text=True,
    ) as process:
      assert process.stdout.readline() == 'ready\n'
      process.send_signal(signal.SIGTERM)
      assert process.stdout.read() == 'cleaned\n'
    assert process.returncode == 128 + signal.SIGTERM


class TestHelp:
  def test_imports_nothing_heavy(self):
    process = _python(
      'import sys\n'
      'from launch import cli\n'
      "assert cli.run(['--help']) == 0\n"
      f'loaded = sorted(set({_HEAVY!r}) & set(sys.modules))\n'
      'assert not loaded, loaded\n'
    )
    assert process.returncode == 0, process.stderr

  def test_fits_a_screen_and_shows_an_example(self, capsys):
    assert cli.run(['--help']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80
    assert any('Example: dpemb ' in line for line in lines)
    for name in cli.COMMANDS:
      assert any(line.split()[:1] == [name] for line in lines), name

  def test_version(self, capsys):
    assert cli.run(['--version']) == 0
    assert capsys.readouterr().out.startswith('dpemb')

  @pytest.mark.parametrize('name', list(cli.COMMANDS))
  def test_each_command(self, name):
    """Each command and subcommand: one screen, an example, no framework."""
    process = _python(
      'import sys\n'
      'import click\n'
      'from launch import cli\n'
      f'name = {name!r}\n'
      'command = cli.cli.get_command(None, name)\n'
      'names = [[name]]\n'
      'if isinstance(command, click.Group):\n'
      '  names += [[name, sub] for sub in command.list_commands(None)]\n'
      'for words in names:\n'
      "  assert cli.run([*words, '--help']) == 0, words\n"
      "  print('\\f', end='')\n"
      "heavy = {'tensorflow', 'tensorflow_federated', 'apache_beam', 'jax'}\n"
      'loaded = sorted(heavy & set(sys.modules))\n'
      'assert not loaded, loaded\n'
    )
    assert process.returncode == 0, process.stderr
    pages = process.stdout.split('\f')[:-1]
    for page in pages:
      title = page.splitlines()[0]
      assert len(page.splitlines()) <= _SCREEN_LINES, title
      assert 'xample' in page, f'no example: {title}'


class TestTable:
  def test_targets_are_commands_of_that_name(self):
    for name, (target, text) in cli.COMMANDS.items():
      module, _, attribute = target.partition(':')
      if module == 'launch_example':
        continue
      source = _ROOT / (module.replace('.', os.sep) + '.py')
      assert source.exists(), f'{name}: {source} is missing'
      assert attribute in source.read_text(), name
      assert text.endswith('.') and len(text) <= 60, name

  def test_console_script_is_main(self):
    entry = (_ROOT / 'pyproject.toml').read_text()
    assert 'dpemb = "launch.cli:main"' in entry
    assert callable(importlib.import_module('launch.cli').main)

  def test_unknown_command_names_the_nearest(self, capsys):
    assert cli.run(['synthesise']) == 2
    assert "nearest one is 'synthesize'" in capsys.readouterr().err

  def test_unknown_option(self, capsys):
    assert cli.run(['--colour']) == 2
    assert "No such option '--colour'" in capsys.readouterr().err
