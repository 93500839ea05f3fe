import logging
import os
import socket

import numpy as np
import pytest
from PIL import Image

from tff_dpemb import config
from tff_dpemb.data import data_sets
from tff_dpemb.data import user_store
from tff_dpemb.data.sources import folder

_CONFIG = config.DataConfig(validation_identities=1, test_identities=2)
_SHAPE = (8, 8, 3)


def _picture(seed):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, _SHAPE, dtype=np.uint8)


def _make(directory, identities, images=2, suffix='.png'):
  for i, identity in enumerate(identities):
    (directory / identity).mkdir(parents=True)
    for j in range(images):
      Image.fromarray(_picture(100 * i + j)).save(
        directory / identity / f'{j}{suffix}'
      )


@pytest.fixture
def faces(tmp_path):
  _make(tmp_path / 'faces', ['a', 'b', 'c', 'd', 'e'])
  return tmp_path / 'faces'


def _build(faces, **options):
  output = faces.parent / 'set'
  options = {'config': _CONFIG, 'image_shape': _SHAPE, **options}
  folder.build_folder(faces, output, **options)
  return data_sets.open_stores(output)


class TestBuildFolder:
  @pytest.mark.parametrize('encoding', ['raw', 'encoded'])
  def test_users_are_folders(self, faces, encoding):
    stores = _build(faces, encoding=encoding)
    assert set(stores) == {'private', 'validation', 'test'}
    assert data_sets.verify(faces.parent / 'set') == {
      'private': 2,
      'validation': 1,
      'test': 2,
    }
    seen = {}
    for store in stores.values():
      assert store.manifest.encoding == encoding
      for user in range(store.num_users):
        examples = store.read_user(user)
        seen[store.user_id(user)] = examples.images
        (label,) = set(examples.labels['identity'].tolist())
        assert store.class_name('identity', label) == store.user_id(user)
    assert sorted(seen) == ['a', 'b', 'c', 'd', 'e']
    for i, name in enumerate(sorted(seen)):
      np.testing.assert_array_equal(
        seen[name], np.stack([_picture(100 * i), _picture(100 * i + 1)])
      )

  def test_public(self, faces, tmp_path):
    _make(tmp_path / 'open', ['x', 'y'], images=3)
    stores = _build(faces, public_dir=tmp_path / 'open')
    assert stores['public'].num_users == 2
    assert stores['public'].num_examples == 6
    assert stores['public'].num_classes('identity') == 2

  def test_a_person_cannot_be_public_and_private(self, faces, tmp_path):
    _make(tmp_path / 'open', ['x', 'c'])
    with pytest.raises(data_sets.DataError, match='no identity, got 1'):
      _build(faces, public_dir=tmp_path / 'open')

  def test_categories(self, faces, tmp_path):
    table = tmp_path / 'classes.csv'
    table.write_text(
      'identity,category\na,young\nb,old\nc,old\nd,young\ne,old\n'
    )
    stores = _build(faces, categories=table)
    expected = dict(
      zip('abcde', ('young', 'old', 'old', 'young', 'old'), strict=True)
    )
    for store in stores.values():
      for user in range(store.num_users):
        label = int(store.read_user(user).labels['category'][0])
        name = store.class_name('category', label)
        assert name == expected[store.user_id(user)]

  def test_private_categories_are_not_in_the_public_store(
    self, faces, tmp_path
  ):
    _make(tmp_path / 'open', ['x', 'y'])
    table = tmp_path / 'classes.csv'
    lines = 'identity,category\nb,old\nc,old\nd,young\ne,old\nx,young\ny,old\n'
    digests = []
    for category in ('old', 'rare'):  # One user's category.
      table.write_text(f'{lines}a,{category}\n')
      stores = _build(
        faces,
        public_dir=tmp_path / 'open',
        categories=table,
        replace=bool(digests),
      )
      digests.append(stores['public'].digest)
      public = stores['public']
      assert list(public.label_names['category']) == ['old', 'young']
      label = int(public.read_user(0).labels['category'][0])
      assert public.class_name('category', label) == 'young'
      holders = [
        split
        for split, store in stores.items()
        if 'rare' in list(store.label_names['category'])
      ]
      assert len(holders) == (category == 'rare')
    assert digests[0] == digests[1]

  def test_each_store_has_the_names_of_its_own_users(self, faces, tmp_path):
    table = tmp_path / 'classes.csv'
    rows = ''.join(f'{name},kind-{name}\n' for name in 'abcde')
    table.write_text(f'identity,category\n{rows}')
    for store in _build(faces, categories=table).values():
      users = [store.user_id(i) for i in range(store.num_users)]
      names = store.label_names
      assert list(names['identity']) == users
      assert list(names['category']) == [f'kind-{user}' for user in users]
      for i in range(store.num_users):
        for column in store.read_user(i).labels.values():
          assert column.tolist() == [i, i]
    assert data_sets.verify(tmp_path / 'set')['private'] == 2

  def test_cap_and_resize(self, faces):
    stores = _build(faces, max_images=1, image_shape=(4, 6, 1))
    assert stores['test'].image_shape == (4, 6, 1)
    assert stores['test'].examples_per_user.tolist() == [1, 1]

  def test_a_link_inside_the_folder_is_an_image(self, faces):
    (faces / 'a' / '2.png').symlink_to('0.png')
    stores = _build(faces)
    assert sum(store.num_examples for store in stores.values()) == 11

  def test_other_files_are_left_alone(self, faces, caplog):
    (faces / 'README.txt').write_text('about')
    (faces / '.hidden').mkdir()
    (faces / 'a' / 'notes.txt').write_text('about')
    with caplog.at_level(logging.WARNING):
      stores = _build(faces)
    assert sum(store.num_examples for store in stores.values()) == 10
    (record,) = caplog.records
    assert '3 files or folders were ignored' in record.getMessage()


class TestRefusals:
  """Each names the file and the remedy, and nothing is written."""

  def _refused(self, faces, message, **options):
    with pytest.raises(data_sets.DataError, match=message) as error:
      _build(faces, **options)
    assert '\n' not in str(error.value)
    assert not (faces.parent / 'set').exists()
    assert not list(faces.parent.glob('.set.*'))

  @pytest.mark.parametrize('encoding', ['raw', 'encoded'])
  def test_corrupt_image(self, faces, encoding):
    file = faces / 'c' / '1.png'
    file.write_bytes(file.read_bytes()[:60])
    self._refused(
      faces, r'faces/c/1\.png.*damaged.*remove the file', encoding=encoding
    )

  def test_empty_image(self, faces):
    (faces / 'c' / '1.png').write_bytes(b'')
    self._refused(faces, r'faces/c/1\.png.*0 bytes')

  def test_dangling_link(self, faces):
    (faces / 'c' / '7.png').symlink_to('nowhere')
    self._refused(faces, r'faces/c/7\.png.*No such file')

  def test_link_out_of_the_folder(self, faces):
    (faces / 'c' / '7.png').symlink_to(faces / 'a' / '0.png')
    self._refused(faces, r'faces/c/7\.png.*link out of its folder')

  def test_linked_folder(self, faces):
    (faces / 'f').symlink_to('a')
    self._refused(faces, 'faces/f.*not a link')

  def test_pipe_and_socket(self, faces, monkeypatch):
    os.mkfifo(faces / 'c' / '7.png')
    self._refused(faces, r'faces/c/7\.png.*regular file')
    (faces / 'c' / '7.png').unlink()
    monkeypatch.chdir(faces / 'c')  # A socket's path is short.
    with socket.socket(socket.AF_UNIX) as server:
      server.bind('7.png')
      self._refused(faces, r'faces/c/7\.png.*regular file')

  def test_huge_size(self, faces):
    with pytest.raises(user_store.StoreError, match='--size.*100000 x 100000'):
      _build(faces, image_shape=(100_000, 100_000, 3))
    assert not (faces.parent / 'set').exists()

  @pytest.mark.parametrize('replace', [True, False])
  def test_output_over_an_input(self, faces, replace):
    options = {'config': _CONFIG, 'image_shape': _SHAPE, 'replace': replace}
    for output in (faces, faces / 'set', faces.parent):
      with pytest.raises(data_sets.DataError, match='apart from input'):
        folder.build_folder(faces, output, **options)
    with pytest.raises(data_sets.DataError, match='apart from public'):
      folder.build_folder(
        faces, faces.parent / 'x', public_dir=faces.parent / 'x', **options
      )
    assert len(list(faces.glob('*/*.png'))) == 10

  def test_missing_directory(self, faces):
    self._refused(faces.parent / 'no', 'input must be a directory.*no')

  def test_missing_public_directory(self, faces):
    self._refused(faces, 'public must be a dir.*zz', public_dir=faces / 'zz')

  def test_empty_user(self, faces):
    (faces / 'f').mkdir()
    self._refused(faces, 'faces/f.*at least one image.*remove the folder')

  def test_nested_folder(self, faces):
    (faces / 'a' / 'more').mkdir()
    self._refused(faces, "faces/a.*images only.*'more'")

  def test_one_user_only(self, tmp_path):
    _make(tmp_path / 'one', ['a'])
    self._refused(tmp_path / 'one', 'at least two identities.*got 1')

  def test_no_user(self, tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'empty' / 'a.png').write_bytes(b'x')
    self._refused(tmp_path / 'empty', 'one folder an identity.*got none')

  def test_too_many_held_out(self, faces):
    settings = config.DataConfig(validation_identities=2, test_identities=3)
    self._refused(faces, r'of 5, got 2 \+ 3', config=settings)

  @pytest.mark.parametrize(
    ('text', 'message'),
    [
      ('name,class\na,x\n', "header 'identity,category'"),
      ('identity,category\na,x\n', "every identity, got none for '.*faces/b'"),
      ('identity,category\na,x\na,y\n', 'line 3.*second category'),
      ('identity,category\na,\n', 'line 2.*identity and a category'),
    ],
  )
  def test_categories(self, faces, tmp_path, text, message):
    table = tmp_path / 'classes.csv'
    table.write_text(text)
    self._refused(faces, message, categories=table)

  def test_missing_categories(self, faces, tmp_path):
    self._refused(faces, 'CSV.*No such', categories=tmp_path / 'none.csv')

  def test_what_is_stored_stays(self, faces):
    before = _build(faces)['private'].digest
    (faces / 'c' / '1.png').write_bytes(b'')
    with pytest.raises(data_sets.DataError, match=r'1\.png'):
      _build(faces, replace=True)
    after = data_sets.open_stores(faces.parent / 'set')['private'].digest
    assert after == before
