"""The commands that the documentation prints: they parse, and they work.

Every `dpemb` and `make` of a fenced block or a code span is held against the
command line; the way of docs/own-images.md is gone from its first line to its
last, on small images.
"""

import contextlib
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import click
import numpy as np
import PIL.Image
import pytest

from benchmarks import runner
from launch import cli
from launch.pages import own_page
from tff_dpemb import config

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGES = [_ROOT / 'README.md', *sorted((_ROOT / 'docs').glob('*.md'))]
_FENCE = re.compile(r'^```[a-z]*\n(.*?)^```', re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r'`([^`]+)`')
_PROGRAM = re.compile(r'^(?:\.venv/bin/)?(dpemb|make)(?= |$)')


def blocks(text):
  """Returns the commands of each fenced block, as words."""
  found = []
  for block in _FENCE.findall(text):
    lines = block.replace('\\\n', ' ').splitlines()
    commands = [_words(line.strip()) for line in lines]
    found.append([words for words in commands if words])
  return [commands for commands in found if commands]


def spans(text):
  """Returns the commands of code spans, as words."""
  flat = ' '.join(_FENCE.sub('', text).split())
  return [words for span in _SPAN.findall(flat) if (words := _words(span))]


def _words(line):
  if not _PROGRAM.match(line):
    return None
  words = shlex.split(line, comments=True)
  return [words[0].rpartition('/')[2], *words[1:]]


def resolve(words):
  """Returns the click command that words name, and the words after its name."""
  command, rest = cli.cli, list(words)
  while isinstance(command, click.Group) and rest:
    if rest[0].startswith('-') or not (
      found := command.get_command(click.Context(command), rest[0])
    ):
      break
    command, rest = found, rest[1:]
  return command, rest


def fault_of_flags(words):
  """Returns what is wrong with the name and the flags of a command, or None."""
  command, rest = resolve(words)
  is_open = isinstance(command, click.Group) and rest
  if is_open and not re.fullmatch(r'-.*|[A-Z.]+', rest[0]):
    return f'no command {" ".join(words)!r}'
  known = {'--help', '-h'} | {
    flag
    for item in command.params
    for flag in (*item.opts, *item.secondary_opts)
  }
  flags = {word.partition('=')[0] for word in rest if word.startswith('-')}
  unknown = sorted(flags - known)
  return f'{" ".join(words)!r}: no option {unknown}' if unknown else None


def fault_of_line(words):
  """Returns why a whole command line does not parse, or None."""
  command, rest = resolve(words)
  try:
    command.make_context(words[0], list(rest))
  except click.ClickException as error:
    return f'{" ".join(words)!r}: {error.format_message()}'
  return None


def fault_of_make(words):
  """Returns what is wrong with a `make`, or None."""
  targets = re.findall(r'^([a-z-]+):', (_ROOT / 'Makefile').read_text(), re.M)
  named = [word for word in words if '=' not in word]
  if set(named) - set(targets):
    return f'no target {named}'
  benchmarks = {'NAME', 'x', *runner.names()} if 'bench' in named else set()
  for word in words:
    key, _, name = word.partition('=')
    if key == 'NAME' and name not in benchmarks:
      return f'no benchmark {name!r}'
  return None


def faults(text):
  found = []
  in_blocks = [words for commands in blocks(text) for words in commands]
  for words in [*in_blocks, *spans(text)]:
    if words[0] == 'make':
      found.append(fault_of_make(words[1:]))
    else:
      found.append(fault_of_flags(words[1:]))
  found += [
    fault_of_line(words[1:]) for words in in_blocks if words[0] == 'dpemb'
  ]
  return [fault for fault in found if fault]


@pytest.mark.parametrize('page', _PAGES, ids=lambda page: page.name)
def test_every_command_and_flag_is_there(page):
  assert faults(page.read_text()) == []


@pytest.mark.parametrize(
  ('text', 'fault'),
  [
    ('`dpemb trian x.toml`', "no command 'trian x.toml'"),
    ('`dpemb data foldr`', 'no command'),
    ('run `dpemb serve\n--prot 1`', "no option ['--prot']"),
    ('```\ndpemb train\n```', 'Missing argument'),
    ('```\ndpemb serve x --port many\n```', 'not a valid integer'),
    ('`make tests`', 'no target'),
    ('`make bench NAME=nothing`', 'no benchmark'),
  ],
)
def test_what_is_not_there_is_found(text, fault):
  assert fault in '; '.join(faults(text))


def test_commands_are_found_in_the_pages():
  """The search itself finds what is printed."""
  found = {page.name: len(spans(page.read_text())) for page in _PAGES}
  assert found['README.md'] >= 5 and sum(found.values()) >= 40
  assert sum(len(blocks(page.read_text())) for page in _PAGES) >= 8


def _dpemb(words, folder, **options):
  return subprocess.run(
    [sys.executable, '-m', 'launch.cli', *words],
    cwd=folder,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=500,
    **options,
  )


def _make_images(root, names):
  rng = np.random.default_rng(0)
  for name in names:
    (root / name).mkdir(parents=True)
    form = rng.integers(0, 256, [4, 4, 3]).astype(np.uint8)
    for number in range(3):
      picture = PIL.Image.fromarray(form).resize((40, 40)).rotate(9 * number)
      picture.save(root / name / f'{number}.jpg')


@contextlib.contextmanager
def _served(words, folder):
  process = subprocess.Popen(
    [sys.executable, '-m', 'launch.cli', *words],
    cwd=folder,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    stdout=subprocess.PIPE,
    text=True,
  )
  with process:
    try:
      assert process.stdout.readline().startswith('ready on 127.0.0.1:')
      yield
      process.send_signal(signal.SIGINT)
      assert process.wait(timeout=60) == 0
    finally:
      process.kill()


def _smaller(page):
  """Makes a page's run take seconds; what it says of the data stays."""
  text = page.read_text()
  for old, new in (
    ('backbone = "lenet"', 'backbone = "lenet_small"'),
    ('enabled = true', 'enabled = true\nsteps = 20'),
    ('rounds = 30', 'rounds = 2'),
  ):
    assert text.count(f'\n{old}') == 1, old
    text = text.replace(f'\n{old}', f'\n{new}')
  page.write_text(text)


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_the_way_of_own_images_leads_to_a_search(tmp_path):
  names = ['ann', *(f'person {i}' for i in range(119))]
  _make_images(tmp_path / 'photos', names)
  _make_images(tmp_path / 'public_photos', [f'thing {i}' for i in range(30)])
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  text = (_ROOT / 'docs/own-images.md').read_text().replace('50051', str(port))
  commands = [words for block in blocks(text) for words in block]
  assert len(commands) == 14
  done = {}
  with contextlib.ExitStack() as serving:
    for program, *words in commands:
      if program == 'make':
        continue
      if words[0] == 'serve':
        serving.enter_context(_served(words, tmp_path))
        continue
      start = time.monotonic()
      result = _dpemb(words, tmp_path)
      assert result.returncode == 0, (words, result.stderr)
      assert len(result.stdout.splitlines()) <= 60, words
      assert '\r' not in result.stdout + result.stderr
      done[words[0]] = (result.stdout, time.monotonic() - start)
      if words[0] == 'init':
        page = tmp_path / 'faces' / own_page.PAGE
        assert 'next:\n  dpemb data folder --input photos' in result.stdout
        _smaller(page)
        config.load(page)
  assert 'finished before' in done['train'][0]
  assert 'recall@1' in done['evaluate'][0] and '[' in done['evaluate'][0]
  assert 'look-ups, 1.000 agree' in done['serve-check'][0]
  assert 'so far of population' in done['synthesize'][0]
  assert 'report: runs/faces/report.html' in done['report'][0]
  assert '"neighbours"' in done['search'][0]
  assert 'holds: ' in done['certificate'][0]


def test_the_commands_of_data_work(tmp_path):
  text = (_ROOT / 'docs/data.md').read_text()
  commands = next(block for block in blocks(text) if '--bundled' in block[0])
  for _, *words in commands:
    result = _dpemb(words, tmp_path)
    assert result.returncode == 0, (words, result.stderr)
