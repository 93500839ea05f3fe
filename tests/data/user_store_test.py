import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from tff_dpemb.data import names
from tff_dpemb.data import user_store

_SHAPE = (4, 5, 1)


def _pictures(count, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (count, *_SHAPE), dtype=np.uint8)


def _writer(path, **options):
  options = {
    'name': 'small',
    'image_shape': _SHAPE,
    'label_names': {'identity': ['a', 'b', 'c'], 'category': ['x', 'y']},
    **options,
  }
  return user_store.StoreWriter(path, **options)


@pytest.fixture
def pictures():
  return {'ann': _pictures(3, 1), 'bob': _pictures(1, 2), 'cy': _pictures(7, 3)}


@pytest.fixture
def path(tmp_path, pictures):
  with _writer(tmp_path / 'store', source='drawn', licence='CC0') as writer:
    for index, (user_id, images) in enumerate(pictures.items()):
      writer.add_user(user_id, images, {'identity': index, 'category': 1})
  return tmp_path / 'store'


class TestReading:
  def test_manifest(self, path):
    store = user_store.UserStore.open(path)
    assert store.num_users == 3
    assert store.num_examples == 11
    assert store.image_shape == _SHAPE
    assert store.manifest.name == 'small'
    assert store.manifest.encoding == 'raw'
    assert store.manifest.source == 'drawn'
    assert store.manifest.licence == 'CC0'
    assert list(store.label_names['identity']) == ['a', 'b', 'c']
    assert store.num_classes('category') == 2
    assert store.class_name('identity', 2) == 'c'
    assert store.examples_per_user.tolist() == [3, 1, 7]

  def test_ids_of_examples_are_in_the_order_of_read_all(self, path):
    store = user_store.UserStore.open(path)
    ids = store.example_ids()
    assert ids[:5] == ['ann/0', 'ann/1', 'ann/2', 'bob/0', 'cy/0']
    _, _, owners = store.read_all()
    assert [name.split('/')[0] for name in ids] == [
      store.user_id(int(owner)) for owner in owners
    ]

  @pytest.mark.parametrize('count', [1, 3, 4, 5, 11, 40])
  def test_first_images_are_those_of_read_all(self, path, count):
    store = user_store.UserStore.open(path)
    images, _, _ = store.read_all()
    np.testing.assert_array_equal(store.read_first(count), images[:count])

  def test_a_store_is_its_owners_alone(self, path):
    assert path.stat().st_mode & 0o777 == 0o700

  def test_users_read_back_what_was_written(self, path, pictures):
    store = user_store.UserStore.open(path)
    for index, (user_id, images) in enumerate(pictures.items()):
      assert store.user_id(index) == user_id
      assert store.index_of(user_id) == index
      examples = store.read_user(index)
      np.testing.assert_array_equal(examples.images, images)
      assert examples.images.flags.writeable
      assert examples.labels['identity'].dtype == np.int32
      assert examples.labels['identity'].tolist() == [index] * len(images)
      assert examples.labels['category'].tolist() == [1] * len(images)

  def test_unknown_user(self, path):
    store = user_store.UserStore.open(path)
    with pytest.raises(user_store.StoreError, match='unknown') as error:
      store.index_of('secret-name')
    assert 'secret-name' not in str(error.value)
    with pytest.raises(user_store.StoreError, match=r'\[0, 3\), got 3'):
      store.read_user(3)
    with pytest.raises(user_store.StoreError, match=r'\[0, 3\), got -1'):
      store.user_id(-1)
    with pytest.raises(user_store.StoreError, match="got 'colour'"):
      store.num_classes('colour')

  def test_cap_without_generator_keeps_the_first(self, path, pictures):
    store = user_store.UserStore.open(path)
    examples = store.read_user(2, max_examples=4)
    np.testing.assert_array_equal(examples.images, pictures['cy'][:4])
    assert len(store.read_user(1, max_examples=4).images) == 1

  def test_cap_with_generator_is_uniform(self, path, pictures):
    # 3 of 7, 700 draws: each image is kept 300 times on average with standard
    # deviation sqrt(700 * 3/7 * 4/7) = 13.1. Six of them: a false alarm in
    # 7 * 2e-9 runs; the seed is fixed besides.
    store = user_store.UserStore.open(path)
    rng = np.random.default_rng(5)
    kept = np.zeros(7, int)
    flat = pictures['cy'].reshape(7, -1)
    for _ in range(700):
      images = store.read_user(2, max_examples=3, rng=rng).images
      match = (images.reshape(3, 1, -1) == flat).all(axis=2)
      assert match.sum() == 3  # Three different ones.
      kept += match.any(axis=0)
    assert np.abs(kept - 300).max() < 6 * 13.1

  def test_read_all_and_shards_agree(self, path, pictures):
    store = user_store.UserStore.open(path)
    images, labels, users = store.read_all()
    np.testing.assert_array_equal(
      images, np.concatenate(list(pictures.values()))
    )
    assert users.dtype == np.int32
    assert users.tolist() == [0] * 3 + [1] + [2] * 7
    assert labels['identity'].tolist() == users.tolist()
    shard_images = [store.read_shard(i)[0] for i in range(len(store.shards))]
    np.testing.assert_array_equal(np.concatenate(shard_images), images)
    with pytest.raises(user_store.StoreError, match='shard must be'):
      store.read_shard(len(store.shards))

  def test_read_all_of_some_users(self, path, pictures):
    store = user_store.UserStore.open(path)
    images, labels, users = store.read_all(users=[2, 0], max_examples=2)
    np.testing.assert_array_equal(
      images, np.concatenate([pictures['cy'][:2], pictures['ann'][:2]])
    )
    assert users.tolist() == [2, 2, 0, 0]
    assert labels['identity'].tolist() == [2, 2, 0, 0]

  def test_pickles_as_its_path(self, path):
    store = user_store.UserStore.open(path)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.digest == store.digest
    np.testing.assert_array_equal(
      copy.read_user(2).images, store.read_user(2).images
    )


def test_a_store_of_before_names_had_one_form(tmp_path, monkeypatch):
  with monkeypatch.context() as before:
    before.setattr(names, 'normal', lambda name: name)
    with _writer(tmp_path / 's') as writer:
      labels = {'identity': 0, 'category': 0}
      writer.add_user('Jose\u0301', _pictures(1), labels)
  assert user_store.UserStore.open(tmp_path / 's').index_of('Jose\u0301') == 0


class TestDamage:
  def test_no_store(self, tmp_path):
    with pytest.raises(user_store.StoreError, match='manifest.json'):
      user_store.UserStore.open(tmp_path)
    with pytest.raises(user_store.StoreError, match='no such directory'):
      user_store.UserStore.open(tmp_path / 'nothing')

  @pytest.mark.parametrize(
    'name', ['shard-00000.arrow', 'users.arrow', 'extents.arrow']
  )
  def test_truncated_file(self, path, name):
    file = path / name
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(user_store.StoreError, match=f'{name}.*bytes.*again'):
      user_store.UserStore.open(path)

  def test_missing_shard(self, path):
    (path / 'shard-00000.arrow').unlink()
    with pytest.raises(user_store.StoreError, match='shard-00000.*No such'):
      user_store.UserStore.open(path)

  def test_overwritten_shard(self, path):
    file = path / 'shard-00000.arrow'
    file.write_bytes(b'\0' * file.stat().st_size)
    store = user_store.UserStore.open(path)
    with pytest.raises(user_store.StoreError, match='shard-00000.*again'):
      store.read_user(0)

  def test_verify_finds_one_changed_pixel(self, path, pictures):
    store = user_store.UserStore.open(path)
    store.verify()
    file = path / 'shard-00000.arrow'
    content = bytearray(file.read_bytes())
    place = content.find(pictures['cy'].tobytes())
    content[place] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(user_store.StoreError, match='shard-00000.*SHA-256'):
      store.verify()

  @pytest.mark.parametrize(
    'content', ['', '[]', '{"schema": "other/9"}', '{"schema": "%s"}']
  )
  def test_damaged_manifest(self, path, content):
    form = json.loads((path / 'manifest.json').read_text())['schema']
    text = content % form if '%s' in content else content
    (path / 'manifest.json').write_text(text)
    with pytest.raises(user_store.StoreError, match='manifest.json'):
      user_store.UserStore.open(path)


_MEASURE = """
import resource, sys
import psutil
from tff_dpemb.data import user_store
before = psutil.Process().memory_info().rss
store = user_store.UserStore.open(sys.argv[1])
opened = psutil.Process().memory_info().rss - before
examples = store.read_user(77_777)
assert store.index_of(store.user_id(77_777)) == 77_777
read = psutil.Process().memory_info().rss - before
print(store.num_users, int(examples.labels['identity'][0]), opened, read)
"""


def test_100_000_users_do_not_live_in_memory(tmp_path):
  users, block = 100_000, 10_000
  path = tmp_path / 'large'
  with user_store.StoreWriter(
    path,
    name='large',
    image_shape=(24, 24, 1),
    label_names={'identity': [str(i) for i in range(users)]},
  ) as writer:
    for start in range(0, users, block):
      these = np.arange(start, start + block)
      images = np.broadcast_to(
        (these % 251).astype(np.uint8)[:, None, None, None, None],
        (block, 1, 24, 24, 1),
      )
      ids = [f'user-{i}' for i in these]
      writer.add_users(ids, images, {'identity': these})
  size = sum(file.stat().st_size for file in path.iterdir())
  assert size > 60e6
  measured = subprocess.run(
    [sys.executable, '-c', _MEASURE, str(path)],
    check=True,
    capture_output=True,
    text=True,
  ).stdout
  num_users, identity, opened, read = map(int, measured.split())
  assert (num_users, identity) == (users, 77_777)
  assert opened < 200e6  # What the product promises ...
  assert read < size / 3  # ... and one user does not load the store.
