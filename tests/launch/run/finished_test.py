"""A step is known to be finished while all that it rests on is as it was."""

import os

import pytest

from launch.run import directory
from launch.run import finished
from tff_dpemb import config
from tff_dpemb.artifacts import storage


@pytest.fixture(name='run')
def _run(tmp_path):
  """A run with a trained model and the manifest of a store."""
  return _opened(tmp_path)


def _opened(folder, **training):
  page = config.from_mapping({'name': 'some', 'training': training})
  run = directory.RunDirectory(page, runs=folder)
  for path, text in (
    (run.store('private') / 'manifest.json', '{}'),
    (run.pretrained / 'weights.npz', 'first'),
    (run.training / 'checkpoints' / '3' / 'state', 'kept'),
    (run.training / 'weights.npz', 'trained'),
  ):
    if not path.exists():
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
  return run


def test_what_was_noted_is_said_again(run):
  assert finished.said(run, 'train') is None
  finished.note(run, 'train', ['3 rounds', 'epsilon 4'])
  assert finished.said(run, 'train') == ['3 rounds', 'epsilon 4']
  assert finished.said(run, 'pretrain') is None
  finished.note(run, 'pretrain', ['5 steps'])
  assert finished.said(run, 'train') == ['3 rounds', 'epsilon 4']


@pytest.mark.parametrize(
  'change',
  [
    lambda run: (run.training / 'weights.npz').write_text('another'),
    lambda run: (run.training / 'weights.npz').unlink(),
    lambda run: os.utime(run.pretrained / 'weights.npz', (1, 1)),
    lambda run: (run.training / 'more').write_text(''),
    lambda run: (run.store('private') / 'manifest.json').write_text('{"a":1}'),
    lambda run: (run.root / 'stages' / 'finished.json').write_text('{"tr'),
    lambda run: storage.atomic_write_json(
      run.root / 'stages' / 'finished.json', {'train': 'of another form'}
    ),
  ],
  ids=['changed', 'gone', 'touched', 'more', 'data', 'damaged', 'form'],
)
def test_whatever_changed_the_step_is_asked(run, change):
  finished.note(run, 'train', ['3 rounds'])
  change(run)
  assert finished.said(run, 'train') is None


def test_another_page_is_another_basis(run, tmp_path):
  finished.note(run, 'train', ['3 rounds'])
  assert finished.said(_opened(tmp_path, rounds=7), 'train') is None
  assert finished.said(_opened(tmp_path), 'train') == ['3 rounds']


def test_a_later_step_does_not_make_an_earlier_one_unknown(run):
  finished.note(run, 'train', ['3 rounds'])
  (run.export / '1').mkdir(parents=True)
  (run.export / '1' / 'manifest.json').write_text('{}')
  assert finished.said(run, 'train') == ['3 rounds']
