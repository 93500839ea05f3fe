"""What a step shows while it works."""

import re

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


def test_a_bar_counts_to_its_total(capsys):
  with progress.bar(3, 'train', 'round') as bar:
    bar.update(3)
  shown = capsys.readouterr().err
  assert 'train: 100%' in shown and '3/3' in shown
