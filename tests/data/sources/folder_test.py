import logging
import os
import shutil
import socket
import unicodedata

import numpy as np
import pytest
from PIL import Image

from tff_dpemb.data import data_sets
from tff_dpemb.data import user_store
from tff_dpemb.data.sources import folder

_HELD_OUT = {'validation': 1, 'test': 2}
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
  options = {**_HELD_OUT, 'image_shape': _SHAPE, **options}
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

  def test_the_same_images_at_another_path_are_the_same_data(
    self, faces, tmp_path
  ):
    one = _build(faces)
    copy = tmp_path / 'elsewhere' / 'pictures'
    shutil.copytree(faces, copy)
    two = _build(copy)
    for split, store in one.items():
      assert two[split].digest == store.digest

  def test_proposed_sizes_are_kept_in_the_manifest(self, tmp_path):
    _make(tmp_path / 'many', [f'{i:02d}' for i in range(20)], images=1)
    stores = _build(tmp_path / 'many', validation=None, test=None)
    sizes = {split: store.num_users for split, store in stores.items()}
    assert sizes == {'private': 14, 'validation': 2, 'test': 4}
    manifest = data_sets.DataSetManifest.read(tmp_path / 'set/data_set.json')
    assert manifest.options['validation_identities'] == 2
    assert manifest.options['test_identities'] == 4

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
    assert (
      '3 files or folders were ignored: .txt 2, hidden 1; read are .png'
      in (record.getMessage())
    )


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
      faces, r'c/1\.png.*damaged.*mend or remove', encoding=encoding
    )

  def test_empty_image(self, faces):
    (faces / 'c' / '1.png').write_bytes(b'')
    self._refused(faces, r'c/1\.png.*0 bytes')

  def test_dangling_link(self, faces):
    (faces / 'c' / '7.png').symlink_to('nowhere')
    self._refused(faces, r'c/7\.png.*No such file')

  def test_link_out_of_the_folder(self, faces):
    (faces / 'c' / '7.png').symlink_to(faces / 'a' / '0.png')
    self._refused(faces, r'c/7\.png.*link out of its folder')

  def test_linked_folder(self, faces):
    (faces / 'f').symlink_to('a')
    self._refused(faces, "'f'.*not a link")

  def test_pipe_and_socket(self, faces, monkeypatch):
    os.mkfifo(faces / 'c' / '7.png')
    self._refused(faces, r'c/7\.png.*regular file')
    (faces / 'c' / '7.png').unlink()
    monkeypatch.chdir(faces / 'c')  # A socket's path is short.
    with socket.socket(socket.AF_UNIX) as server:
      server.bind('7.png')
      self._refused(faces, r'c/7\.png.*regular file')

  def test_huge_size(self, faces):
    with pytest.raises(user_store.StoreError, match='--size.*100000 x 100000'):
      _build(faces, image_shape=(100_000, 100_000, 3))
    assert not (faces.parent / 'set').exists()

  @pytest.mark.parametrize('replace', [True, False])
  def test_output_over_an_input(self, faces, replace):
    options = {'image_shape': _SHAPE, 'replace': replace}
    for output in (faces, faces / 'set', faces.parent):
      with pytest.raises(data_sets.DataError, match='apart from --input'):
        folder.build_folder(faces, output, **options)
    with pytest.raises(data_sets.DataError, match='apart from --public'):
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
    self._refused(faces, "'f'.*at least one image.*remove")

  def test_nested_folder(self, faces):
    (faces / 'a' / 'more').mkdir()
    self._refused(faces, "'a/more'.*got a folder: move its images up")

  def test_one_user_only(self, tmp_path):
    _make(tmp_path / 'one', ['a'])
    self._refused(tmp_path / 'one', 'at least 3 identities.*got 1')

  def test_no_user(self, tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'empty' / 'a.png').write_bytes(b'x')
    self._refused(tmp_path / 'empty', 'one folder an identity.*got none')

  def test_too_many_held_out(self, faces):
    self._refused(faces, r'of 5, got 2 \+ 3', validation=2, test=3)

  @pytest.mark.parametrize(
    ('text', 'message'),
    [
      ('name,class\na,x\n', "header 'identity,category'"),
      ('identity,category\na,x\n', "every identity, got none for 'b'"),
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

  def test_twins(self, faces):
    _make(faces, ['Jos\u00e9', 'Jose\u0301'])
    for skip_bad in (False, True):  # Never left out: which one is right?
      self._refused(
        faces,
        r"--input must differ.*1 twice, as 'Jos.*and 'Jos.*merge",
        skip_bad=skip_bad,
      )

  def test_public_and_private_twins(self, faces, tmp_path):
    _make(faces, ['Jos\u00e9'])
    _make(tmp_path / 'open', ['x', 'Jose\u0301'])
    self._refused(faces, 'no identity, got 1', public_dir=tmp_path / 'open')

  def test_what_is_stored_stays(self, faces):
    before = _build(faces)['private'].digest
    (faces / 'c' / '1.png').write_bytes(b'')
    with pytest.raises(data_sets.DataError, match=r'1\.png'):
      _build(faces, replace=True)
    after = data_sets.open_stores(faces.parent / 'set')['private'].digest
    assert after == before


class TestNames:
  """Both Unicode forms of a name are one name, wherever it comes from."""

  def test_look_alikes_are_pointed_out(self, faces, tmp_path):
    _make(faces, ['A'])
    _make(tmp_path / 'open', ['x', 'B'])
    lines = []
    stores = _build(faces, public_dir=tmp_path / 'open', report=lines.append)
    assert sum(store.num_users for store in stores.values()) == 8
    (line,) = lines
    assert line.startswith('2 names of folders differ')
    assert 'merge the folders' in line

  @pytest.mark.parametrize('on_disk', ['Jos\u00e9', 'Jose\u0301'])
  @pytest.mark.parametrize('in_file', ['Jos\u00e9', 'Jose\u0301'])
  def test_folder_and_csv(self, faces, tmp_path, on_disk, in_file):
    _make(faces, [on_disk])
    table = tmp_path / 'classes.csv'
    rows = ''.join(f'{name},cafe\u0301\n' for name in (*'abcde', in_file))
    table.write_text(f'identity,category\n{rows}')
    stores = _build(faces, categories=table)
    names = {
      name
      for store in stores.values()
      for name in list(store.label_names['identity'])
    }
    assert names == {*'abcde', 'Jos\u00e9'}
    for store in stores.values():
      assert list(store.label_names['category']) == ['caf\u00e9']

  def test_the_form_on_disk_changes_nothing(self, tmp_path):
    """NFD sorts `e\u0301` before `f`, NFC sorts `\u00e9` behind it."""
    digests = []
    for form in ('NFC', 'NFD'):
      root = tmp_path / form / 'faces'
      for i, name in enumerate(('e', 'f', '\u00e9', 'z')):
        name = unicodedata.normalize(form, name)
        (root / name).mkdir(parents=True)
        for j, file in enumerate(('1', '\u00e9', 'f')):
          file = unicodedata.normalize(form, file)
          picture = Image.fromarray(_picture(10 * i + j))
          picture.save(root / name / f'{file}.png')
      stores = _build(root, test=1)
      digests.append({split: store.digest for split, store in stores.items()})
    assert digests[0] == digests[1]


class TestSkipBad:
  def _spoil(self, faces):
    """Two bad images of `c`, one of `a`, nothing of `f` and `g`, a link."""
    (faces / 'c' / '0.png').write_bytes(b'')
    (faces / 'c' / '5.png').write_bytes(b'GIF89a')
    (faces / 'a' / 'more').mkdir()
    (faces / 'f').mkdir()
    (faces / 'f' / 'notes.HEIC').touch()
    (faces / 'g').mkdir()
    (faces / 'g' / '0.jpg').write_bytes(b'no picture')
    (faces / 'h').symlink_to('b')
    return ['a/more', 'c/0.png', 'c/5.png', 'f', 'g/0.jpg', 'h']

  def test_all_are_listed_at_once(self, faces):
    expected = self._spoil(faces)
    with pytest.raises(folder.BadFilesError, match='and 5 more') as error:
      _build(faces)
    assert [item.file for item in error.value.bad] == expected
    reasons = {item.file: item.reason for item in error.value.bad}
    assert '0 bytes' in reasons['c/0.png']
    assert reasons['f'].endswith('got none but .heic 1')
    assert 'one person could be two users' in reasons['h']
    assert not (faces.parent / 'set').exists()

  @pytest.mark.parametrize('encoding', ['raw', 'encoded'])
  def test_the_rest_is_imported(self, faces, encoding):
    expected = self._spoil(faces)
    stores = _build(faces, skip_bad=True, encoding=encoding)
    data_sets.verify(faces.parent / 'set')
    images = {
      store.user_id(i): store.read_user(i).images
      for store in stores.values()
      for i in range(store.num_users)
    }
    assert {user: len(found) for user, found in images.items()} == {
      'a': 2,
      'b': 2,
      'c': 1,
      'd': 2,
      'e': 2,
    }
    np.testing.assert_array_equal(images['c'][0], _picture(201))
    skipped = {
      split: [item.file for item in store.manifest.skipped]
      for split, store in stores.items()
    }
    listed = [file for files in skipped.values() for file in files]
    assert sorted(listed) == expected
    # Those without a store of theirs, and each store's own users.
    assert {'f', 'g/0.jpg', 'h'} <= set(skipped['private'])
    (home,) = (
      split for split, store in stores.items() if 'c' in _users_of(store)
    )
    assert {'c/0.png', 'c/5.png'} <= set(skipped[home])
    # The manifest of the data set may be read by others: no names.
    text = (faces.parent / 'set' / 'data_set.json').read_text()
    assert 'png' not in text

  def test_who_is_left_decides_who_is_held_out(self, faces):
    self._spoil(faces)
    spoilt = _build(faces, skip_bad=True)
    for name in ('f', 'g'):
      shutil.rmtree(faces / name)
    (faces / 'h').unlink()
    clean = _build(faces, skip_bad=True, replace=True)
    for split, store in clean.items():
      assert _users_of(store) == _users_of(spoilt[split])

  def test_the_cap_counts_good_images(self, faces):
    (faces / 'c' / '0.png').write_bytes(b'')
    stores = _build(faces, skip_bad=True, max_images=1)
    assert sum(store.num_examples for store in stores.values()) == 5

  def test_of_a_whole_input_nothing_is_said(self, faces):
    one = _build(faces)
    two = _build(faces, skip_bad=True, replace=True)
    for split, store in two.items():
      assert store.digest == one[split].digest
      path = faces.parent / 'set' / split / 'manifest.json'
      assert 'skipped' not in path.read_text()

  def test_public(self, faces, tmp_path):
    _make(tmp_path / 'open', ['x', 'y'])
    (tmp_path / 'open' / 'x' / '0.png').write_bytes(b'')
    (tmp_path / 'open' / 'z').mkdir()
    options = {'public_dir': tmp_path / 'open'}
    with pytest.raises(folder.BadFilesError, match='--input and --public'):
      _build(faces, **options)
    stores = _build(faces, skip_bad=True, **options)
    skipped = [item.file for item in stores['public'].manifest.skipped]
    assert sorted(skipped) == ['x/0.png', 'z']
    assert stores['private'].manifest.skipped == ()

  def test_too_few_are_left(self, tmp_path):
    _make(tmp_path / 'faces', ['a', 'b', 'c'])
    for image in (tmp_path / 'faces' / 'b').iterdir():
      image.write_bytes(b'')
    with pytest.raises(data_sets.DataError, match='at least 3.*got 2'):
      _build(tmp_path / 'faces', skip_bad=True)


def _users_of(store):
  return [store.user_id(i) for i in range(store.num_users)]
