"""Commands as a benchmark runs them."""

import pathlib
import sys

import pytest

from benchmarks import commands
from benchmarks import first_minutes
from benchmarks import runner


def test_code_lines_and_times_are_kept(tmp_path):
  code = (
    'import os, sys, time; print(os.getcwd(), os.environ["WORD"]);'
    ' sys.stdout.flush(); time.sleep(0.2);'
    ' sys.stderr.write("a\\rb\\n"); sys.exit(5)'
  )
  ran = commands.run([sys.executable, '-c', code], tmp_path, WORD='said')
  assert ran.code == 5
  assert [line for _, line in ran.lines] == [f'{tmp_path} said', 'a', 'b']
  assert ran.first('^b$') >= ran.first('said') + 0.2
  assert ran.first('never') is None
  assert ran.seconds >= ran.first('^b$')


def test_a_server_is_there_while_the_body_runs(tmp_path):
  code = 'print("ready on 127.0.0.1:7: model x", flush=True); input()'
  words = [sys.executable, '-c', 'import time;' + code.replace(
    'input()', 'time.sleep(60)'
  )]  # fmt: skip
  with commands.serving(words, tmp_path) as address:
    assert address == '127.0.0.1:7'
  with pytest.raises(RuntimeError, match='must serve, got: no port'):
    with commands.serving([sys.executable, '-c', 'print("no port")'], tmp_path):
      pass


def test_the_commands_of_the_first_block_are_found(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text(
    'x\n```\nmake setup  # first\ndpemb init \\\n  a\n```\n```\nb\n```'
  )
  assert first_minutes.printed(page) == [
    ['make', 'setup'],
    ['dpemb', 'init', 'a'],
  ]
  page.write_text('nothing')
  with pytest.raises(runner.BenchmarkError, match='must print commands'):
    first_minutes.printed(page)


def test_the_docs_lead_to_a_figure_in_few_commands():
  root = pathlib.Path(first_minutes.__file__).parents[1]
  words = first_minutes.printed(root / 'docs/own-images.md')
  assert 1 + len(words) <= 6  # With the clone.
  assert words[-1][1] == 'quickstart'
