import json
import pathlib

import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.data import data_sets
from tff_dpemb.data import names
from tff_dpemb.data import user_store


def _write(directory, users_of, label='a'):
  for split, users in users_of.items():
    with user_store.StoreWriter(
      directory / split,
      name=split,
      image_shape=(2, 2, 1),
      label_names={'identity': [label]},
    ) as writer:
      for user in users:
        images = np.zeros((1, 2, 2, 1), np.uint8)
        writer.add_user(user, images, {'identity': 0})
  data_sets.write_manifest(directory, source='test', options={})


_USERS = {
  'public': ['p'],
  'private': ['a', 'b'],
  'validation': ['c'],
  'test': ['d'],
}


class TestSplitIdentities:
  def test_partition(self):
    splits = data_sets.split_identities(100, validation=10, test=25, seed=3)
    assert {name: len(part) for name, part in splits.items()} == {
      'private': 65,
      'validation': 10,
      'test': 25,
    }
    assert sorted(np.concatenate(list(splits.values()))) == list(range(100))
    for part in splits.values():
      assert np.all(np.diff(part) > 0)

  def test_the_test_split_does_not_depend_on_validation(self):
    one = data_sets.split_identities(100, validation=10, test=25, seed=3)
    two = data_sets.split_identities(100, validation=50, test=25, seed=3)
    np.testing.assert_array_equal(one['test'], two['test'])

  def test_seed_chooses(self):
    one = data_sets.split_identities(100, validation=10, test=25, seed=3)
    two = data_sets.split_identities(100, validation=10, test=25, seed=4)
    assert not np.array_equal(one['test'], two['test'])

  def test_someone_must_stay_private(self):
    with pytest.raises(data_sets.DataError, match='of 30, got 10 \\+ 20'):
      data_sets.split_identities(30, validation=10, test=20, seed=0)

  def test_the_error_names_what_the_person_used(self):
    with pytest.raises(
      data_sets.HeldOutError,
      match=r'data\.validation_identities \+ data\.test_identities must',
    ) as error:
      data_sets.split_identities(30, validation=10, test=20, seed=0)
    line = str(error.value.in_flags('--validation', '--test'))
    assert line.startswith('--validation + --test must leave')
    assert line.endswith('of 30, got 10 + 20; hold out fewer or bring more'
                         ' identities.')  # fmt: skip


@pytest.mark.parametrize(
  ('count', 'validation', 'test'),
  [
    (3, 1, 1),
    (7, 1, 1),
    (50, 5, 10),
    (1357, 135, 271),  # 800 of them were held out before.
    (2000, 200, 400),
    (3000, 200, 600),  # the bundled glyphs
    (1_000_000, 200, 600),
  ],
)
def test_proposed_sizes_follow_the_data(count, validation, test):
  assert data_sets.propose_held_out(count) == (validation, test)


def test_the_defaults_of_a_page_are_those_of_the_bundled_glyphs():
  page = config.DataConfig()
  assert data_sets.propose_held_out(3000) == (
    page.validation_identities,
    page.test_identities,
  )


class TestCheckOutput:
  def test_what_may_be_replaced(self, tmp_path):
    _write(tmp_path / 'set', _USERS)
    (tmp_path / 'empty').mkdir()
    for name in ('set', 'empty', 'missing'):
      data_sets.check_output(tmp_path / name, replace=True)

  def test_nothing_else_is_replaced(self, tmp_path):
    (tmp_path / 'files').mkdir()
    (tmp_path / 'files' / 'a').touch()
    with pytest.raises(data_sets.DataError, match='must be a data set'):
      data_sets.check_output(tmp_path / 'files', replace=True)
    (tmp_path / 'link').symlink_to('files')
    for name in ('link', 'files/a'):
      with pytest.raises(data_sets.DataError, match='must be a directory'):
        data_sets.check_output(tmp_path / name, replace=True)

  @pytest.mark.parametrize('replace', [True, False])
  def test_apart_from_inputs(self, tmp_path, replace):
    (tmp_path / 'a' / 'in').mkdir(parents=True)
    (tmp_path / 'link').symlink_to('a/in')
    inputs = {'input': tmp_path / 'a' / 'in', 'public': None}
    for name in ('a', 'a/in', 'a/in/set', 'link', 'link/set', 'a/../a/in'):
      with pytest.raises(data_sets.DataError, match='apart from input'):
        data_sets.check_output(tmp_path / name, replace=replace, inputs=inputs)
    data_sets.check_output(tmp_path / 'in', replace=replace, inputs=inputs)


class TestVerify:
  def test_whole(self, tmp_path):
    _write(tmp_path, _USERS)
    assert data_sets.verify(tmp_path) == {
      'public': 1,
      'private': 2,
      'validation': 1,
      'test': 1,
    }

  def test_public_may_be_missing(self, tmp_path):
    _write(tmp_path, {k: v for k, v in _USERS.items() if k != 'public'})
    assert 'public' not in data_sets.open_stores(tmp_path)
    assert data_sets.verify(tmp_path)['test'] == 1

  @pytest.mark.parametrize('split', ['private', 'validation', 'test'])
  def test_others_may_not(self, tmp_path, split):
    with pytest.raises(user_store.StoreError, match=split):
      _write(tmp_path, {k: v for k, v in _USERS.items() if k != split})

  def test_overlap(self, tmp_path):
    _write(tmp_path, {**_USERS, 'test': ['d', 'a']})
    with pytest.raises(data_sets.DataError, match='share no user, got 1'):
      data_sets.verify(tmp_path)

  @pytest.mark.parametrize('one', _USERS)
  @pytest.mark.parametrize('other', _USERS)
  def test_nobody_is_in_two_splits_in_any_form(
    self, tmp_path, one, other, monkeypatch
  ):
    users = {split: list(items) for split, items in _USERS.items()}
    users[one].append('Jos\u00e9')
    users[other].append('Jose\u0301')
    with monkeypatch.context() as before:  # As stores of before have them.
      before.setattr(names, 'normal', lambda name: name)
      _write(tmp_path, users)
    message = 'hold each user once' if one == other else 'share no user, got 1'
    with pytest.raises(data_sets.DataError, match=message):
      data_sets.verify(tmp_path)

  def test_exchanged_store(self, tmp_path):
    _write(tmp_path / 'one', _USERS)
    _write(tmp_path / 'two', _USERS, label='b')
    (tmp_path / 'one' / 'test').rename(tmp_path / 'old')
    (tmp_path / 'two' / 'test').rename(tmp_path / 'one' / 'test')
    with pytest.raises(data_sets.DataError, match=r"\['test'\]"):
      data_sets.verify(tmp_path / 'one')

  def test_missing_directory(self, tmp_path):
    with pytest.raises(user_store.StoreError, match='data set directory'):
      data_sets.open_stores(tmp_path / 'nothing')

  @pytest.mark.parametrize(
    ('content', 'message'),
    [
      ('{"format": "dpemb.data_set/1", "stores": {}}', 'got None.*Make the'),
      ('{"schema": "dpemb.data_set/2"}', 'source must be there.*Make the'),
      ('{', 'must be JSON.*Make the data set again'),
      (None, 'data_set.json.*Make the data set again'),
    ],
  )
  def test_manifest_of_another_form(self, tmp_path, content, message):
    _write(tmp_path, _USERS)
    (tmp_path / 'data_set.json').unlink()
    if content is not None:
      (tmp_path / 'data_set.json').write_text(content)
    with pytest.raises(data_sets.DataError, match=message):
      data_sets.verify(tmp_path)


def test_a_kept_data_set_is_still_whole():
  """Made when the form was: nothing newer may refuse or re-read it."""
  kept = pathlib.Path(__file__).parent / 'kept' / 'data_set'
  assert data_sets.verify(kept) == {'private': 2, 'validation': 1, 'test': 1}
  manifest = json.loads((kept / 'data_set.json').read_text())
  assert manifest['schema'] == 'dpemb.data_set/2'
  private = data_sets.open_stores(kept)['private']
  assert private.digest == manifest['stores']['private']
  assert list(private.label_names['identity']) == ['ann', 'bob']
  assert list(private.label_names['category']) == ['x']
  index = private.index_of('bob')
  examples = private.read_user(index)
  assert examples.images.ravel().tolist() == [4, 5, 6, 7, 8, 9, 10, 11]
  assert examples.labels['identity'].tolist() == [1, 1]
