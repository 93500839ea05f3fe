"""What a step shows while it works."""

import re
import sys

import pytest

from launch.run import progress


def test_a_stage_says_its_title_and_its_time(capsys):
  with progress.stage('export'):
    assert capsys.readouterr().out == '== export\n'
  assert re.fullmatch(r'   done in \d+\.\d s\n', capsys.readouterr().out)


def test_a_stage_that_fails_is_not_done(capsys):
  with pytest.raises(ValueError, match='of the stage'):
    with progress.stage('export'):
      raise ValueError('of the stage')
  assert 'done' not in capsys.readouterr().out


def test_a_bar_of_a_terminal_counts_to_its_total(capsys, monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: True)
  with progress.bar(3, 'train', 'round') as bar:
    bar.set_postfix(clip='0.5')
    bar.update(3)
  shown = capsys.readouterr().err
  assert 'train: 100%' in shown and '3/3' in shown and '\r' in shown


@pytest.mark.parametrize(
  ('terminal', 'term'), [(False, 'xterm'), (True, 'dumb')]
)
def test_a_log_gets_one_line_and_no_carriage_return(
  capsys, monkeypatch, terminal, term
):
  monkeypatch.setenv('TERM', term)
  monkeypatch.setattr(sys.stderr, 'isatty', lambda: terminal)
  with progress.bar(900, 'pretrain', 'step') as bar:
    for step in range(900):
      bar.set_postfix(loss=f'{step}')
      bar.update(1)
  shown = capsys.readouterr().err
  assert shown == '   pretrain: 900 of 900 steps, 0 s, loss 899\n'


def test_a_line_comes_every_thirty_seconds(capsys):
  now = 0.0
  with progress.Lines(100, 'train', 'round', clock=lambda: now) as bar:
    for _ in range(99):
      now += 10.0
      bar.update(1)
  shown = capsys.readouterr().err.splitlines()
  assert len(shown) == 33
  assert shown[0] == '   train: 3 of 100 rounds, 30 s'
