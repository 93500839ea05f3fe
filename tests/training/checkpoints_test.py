"""States of any structure on disk; those of a process are in process_test."""

import numpy as np
import pytest

from tff_dpemb.artifacts import storage
from tff_dpemb.training import checkpoints


def _state(value):
  return {
    'weights': [np.full([2, 3], value, np.float32), np.float32(value)],
    'name': 'query',
    'event': b'gaussian',
  }


def test_an_open_checkpoint_directory_is_closed_to_others(tmp_path):
  directory = tmp_path / 'checkpoints'
  directory.mkdir(mode=0o755)
  checkpoints.save(directory, 1, {'weights': np.ones(3)}, keep=1)
  assert directory.stat().st_mode & 0o777 == 0o700
  (path,) = directory.iterdir()
  assert path.stat().st_mode & 0o777 == 0o600


def test_a_state_is_read_as_it_was_written(tmp_path):
  checkpoints.save(tmp_path, 7, _state(2.5), keep=1)
  number, state = checkpoints.load_latest(tmp_path, _state(0.0))
  assert number == 7
  np.testing.assert_array_equal(state['weights'][0], np.full([2, 3], 2.5))
  assert state['weights'][1] == np.float32(2.5)
  assert (state['name'], state['event']) == ('query', b'gaussian')


def test_nothing_is_there_before_the_first(tmp_path):
  assert checkpoints.load_latest(tmp_path / 'none', _state(0.0)) is None
  assert checkpoints.numbers(tmp_path / 'none') == []


def test_the_newest_good_one_is_read_and_old_ones_go(tmp_path):
  for number in (2, 3, 4):
    checkpoints.save(tmp_path, number, _state(number), keep=2)
  assert checkpoints.numbers(tmp_path) == [3, 4]
  (tmp_path / 'round-000004.npz').write_bytes(b'cut short')
  number, state = checkpoints.load_latest(tmp_path, _state(0.0))
  assert (number, state['weights'][1]) == (3, 3.0)
  (tmp_path / 'round-000003.npz').write_bytes(b'cut short')
  with pytest.raises(storage.ArtifactError, match='no checkpoint'):
    checkpoints.load_latest(tmp_path, _state(0.0))


@pytest.mark.parametrize(
  ('template', 'message'),
  [
    ({'weights': np.zeros(3)}, 'it has 4 values, 1 are needed'),
    (
      {**_state(0.0), 'weights': [np.zeros([3, 2], np.float32), np.float32(0)]},
      r'float32\(2, 3\) where float32\(3, 2\) is needed',
    ),
  ],
)
def test_a_state_of_another_process_is_refused(tmp_path, template, message):
  checkpoints.save(tmp_path, 1, _state(1.0), keep=1)
  with pytest.raises(storage.ArtifactError, match=message):
    checkpoints.load_latest(tmp_path, template)
