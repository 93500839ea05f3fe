"""How SIGTERM ends a command that works on a run.

Each program stands for a stage; it says 'ready' when the signal may come.
"""

import contextlib
import pathlib
import signal
import subprocess
import sys

import pytest

from launch.commands import run as run_commands

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_PAGE = _ROOT / 'launch/configs/quickstart.toml'
_LINE = (
  'stopped; the last finished round is kept: give the same command again to go'
  ' on.\n'
)
_OPEN = """
import sys
from launch.commands import run as run_commands
from launch.run import signals
signals._GRACE_SECONDS = {grace}
__name__ = 'launch.example'  # So that the frames are our own.
with run_commands.open_run({page!r}, sys.argv[1], ()) as opened:
  run = opened.paths
"""
_BETWEEN_STEPS = """
  print('ready', flush=True)
  while not run.stop_requested.is_set():
    pass
  try:
    run.stop_if_requested()
  finally:
    print('cleaned')
"""
# An exception in the callback would be printed and lost.
_IN_A_CALLBACK_OF_THE_COLLECTOR = """
  import gc
  def callback(phase, information):
    if phase == 'start' and not run.stop_requested.is_set():
      print('ready', flush=True)
      while not run.stop_requested.is_set():
        pass
  gc.callbacks.append(callback)
  gc.collect()
  try:
    run.stop_if_requested()
  finally:
    print('cleaned')
"""
# It is 'ready' once the wait's lock is waited for.
_IN_A_WAIT = """
  import concurrent.futures, threading
  main = threading.main_thread().ident
  def tell():
    while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
      pass
    print('ready', flush=True)
  threading.Thread(target=tell, daemon=True).start()
  try:
    concurrent.futures.wait([concurrent.futures.Future()])
  finally:
    print('cleaned')
"""
# Without the interpreter's lock, for longer than anybody waits.
_IN_NATIVE_CODE = """
  import hashlib
  print('ready', flush=True)
  hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)
"""
_TWICE = """
  print('ready', flush=True)
  while not run.stop_requested.is_set():
    pass
  print('asked', flush=True)
  import hashlib
  hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)
"""


@contextlib.contextmanager
def _start(body, folder, *, grace=600):
  program = _OPEN.format(grace=grace, page=str(_PAGE)) + body
  process = subprocess.Popen(
    [sys.executable, '-c', program, str(folder)],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  with process:
    try:
      assert process.stdout.readline() == 'ready\n'
      process.send_signal(signal.SIGTERM)
      yield process
    finally:
      process.kill()


@pytest.mark.parametrize(
  'body',
  [_BETWEEN_STEPS, _IN_A_CALLBACK_OF_THE_COLLECTOR, _IN_A_WAIT],
  ids=['between steps', 'in a callback of the collector', 'in a wait'],
)
def test_sigterm_unwinds_and_says_one_line(tmp_path, body):
  with _start(body, tmp_path) as process:
    out, err = process.communicate(timeout=60)
  assert (process.returncode, out, err) == (75, 'cleaned\n', _LINE)


def test_sigterm_ends_native_code_after_a_grace(tmp_path):
  with _start(_IN_NATIVE_CODE, tmp_path, grace=0.1) as process:
    _, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (75, '\n' + _LINE)


def test_a_second_sigterm_ends_at_once(tmp_path):
  with _start(_TWICE, tmp_path) as process:
    assert process.stdout.readline() == 'asked\n'
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (75, '\n' + _LINE)


def test_a_run_that_ends_leaves_the_handlers_as_they_were(tmp_path):
  before = signal.getsignal(signal.SIGTERM)
  with run_commands.open_run(str(_PAGE), str(tmp_path), ()) as run:
    assert signal.getsignal(signal.SIGTERM) != before
    assert not run.paths.stop_requested.is_set()
  assert signal.getsignal(signal.SIGTERM) == before
  assert signal.set_wakeup_fd(-1) == -1


# Beam makes an error of its own of whatever is raised in its steps.
_IN_A_STEP_OF_BEAM = """
import sys, time, types, click
from launch import cli

def embed(item):
  print('ready', flush=True)
  time.sleep(60)

def example():
  import apache_beam as beam
  from tff_dpemb.pipelines import runner
  with runner.run(None) as pipeline:
    _ = pipeline | beam.Create([1]) | beam.Map(embed)

module = types.ModuleType('launch_example')
module.example = click.command('example')(example)
sys.modules['launch_example'] = module
cli.COMMANDS['example'] = ('launch_example:example', '')
cli.main(['example'])
"""


def test_ctrl_c_in_a_pipeline_is_130_and_one_line():
  with subprocess.Popen(
    [sys.executable, '-c', _IN_A_STEP_OF_BEAM],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      assert process.stdout.readline() == 'ready\n'
      process.send_signal(signal.SIGINT)
      _, err = process.communicate(timeout=60)
    finally:
      process.kill()
  assert (process.returncode, err) == (130, 'dpemb: error: interrupted.\n')
