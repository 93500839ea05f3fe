from concurrent import futures

import numpy as np
import pytest

from tff_dpemb import images as image_codec
from tff_dpemb.data import store_format
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


def test_a_user_that_comes_twice_is_one_user(tmp_path):
  pictures = _pictures(6)
  with _writer(tmp_path / 's', shard_bytes=40) as writer:  # 2 images a shard
    writer.add_user('u', pictures[:3], {'identity': 0, 'category': 0})
    writer.add_user('v', pictures[3:4], {'identity': 1, 'category': 0})
    writer.add_user(
      'u', pictures[4:], {'identity': np.array([2, 0]), 'category': 1}
    )
    assert writer.num_users == 2
  store = user_store.UserStore.open(tmp_path / 's')
  assert store.num_users == 2
  assert len(store.shards) == 3
  mine = store.read_user(store.index_of('u'))
  np.testing.assert_array_equal(mine.images, pictures[[0, 1, 2, 4, 5]])
  assert mine.labels['identity'].tolist() == [0, 0, 0, 2, 0]
  assert mine.labels['category'].tolist() == [0, 0, 0, 1, 1]
  images, labels, users = store.read_all()
  np.testing.assert_array_equal(images, pictures[[0, 1, 2, 4, 5, 3]])
  assert users.tolist() == [0, 0, 0, 0, 0, 1]
  assert labels['identity'].tolist() == [0, 0, 0, 2, 0, 1]


def test_blocks_equal_single_users(tmp_path):
  pictures = _pictures(24).reshape(8, 3, *_SHAPE)
  ids = [f'u{i}' for i in range(8)]
  identity = np.arange(8) % 3
  with _writer(tmp_path / 'one', shard_bytes=150) as writer:
    for i in range(8):
      labels = {'identity': int(identity[i]), 'category': 0}
      writer.add_user(ids[i], pictures[i], labels)
  with _writer(tmp_path / 'block', shard_bytes=150) as writer:
    writer.add_users(
      ids, pictures, {'identity': identity, 'category': np.zeros(8, int)}
    )
  one = user_store.UserStore.open(tmp_path / 'one')
  block = user_store.UserStore.open(tmp_path / 'block')
  assert len(one.shards) > 2
  for i in range(8):
    for store in (one, block):
      np.testing.assert_array_equal(store.read_user(i).images, pictures[i])
      assert set(store.read_user(i).labels['identity']) == {identity[i]}


def test_same_content_same_digest(tmp_path):
  for name in ('a', 'b'):
    with _writer(tmp_path / name) as writer:
      writer.add_user('u', _pictures(2), {'identity': 0, 'category': 0})
  with _writer(tmp_path / 'c') as writer:
    writer.add_user('u', _pictures(2, 9), {'identity': 0, 'category': 0})
  digests = [
    user_store.UserStore.open(tmp_path / name).digest for name in 'abc'
  ]
  assert digests[0] == digests[1] != digests[2]


def test_encoded_files(tmp_path):
  pictures = _pictures(3)
  files = [image_codec.encode_png(image) for image in pictures]
  with _writer(tmp_path / 's', encoding='encoded', shard_bytes=100) as writer:
    writer.add_user('u', files, {'identity': 0, 'category': 0})
  store = user_store.UserStore.open(tmp_path / 's')
  np.testing.assert_array_equal(store.read_user(0).images, pictures)
  np.testing.assert_array_equal(store.read_all()[0], pictures)
  with futures.ThreadPoolExecutor(3) as pool:
    threaded = store.read_user(0, apply=pool.map).images
  np.testing.assert_array_equal(threaded, pictures)


@pytest.mark.parametrize(
  ('images', 'labels', 'message'),
  [
    (_pictures(0), {'identity': 0, 'category': 0}, 'at least one image'),
    (_pictures(2)[:, :3], {'identity': 0, 'category': 0}, r'\[n, 4, 5, 1\]'),
    (_pictures(2) / 255, {'identity': 0, 'category': 0}, 'float64'),
    (_pictures(2), {'identity': 3, 'category': 0}, r'in \[0, 3\), got 3'),
    (_pictures(2), {'identity': -1, 'category': 0}, r'got -1'),
    (_pictures(2), {'identity': [0, 1, 2], 'category': 0}, r'int \[2\]'),
    (_pictures(2), {'identity': 0.5, 'category': 0}, 'float64'),
    (_pictures(2), {'identity': 0}, r"\['category', 'identity'\]"),
  ],
)
def test_refusals(tmp_path, images, labels, message):
  with pytest.raises(user_store.StoreError, match=message) as error:
    with _writer(tmp_path / 's') as writer:
      writer.add_user('secret-name', images, labels)
  assert 'secret-name' not in str(error.value)
  assert list(tmp_path.iterdir()) == []


def test_an_empty_store_is_refused(tmp_path):
  with pytest.raises(user_store.StoreError, match='at least one user'):
    with _writer(tmp_path / 's'):
      pass
  assert list(tmp_path.iterdir()) == []


def test_both_forms_of_a_name_are_one_user(tmp_path):
  """`e` with an acute accent: one character, or a letter and a mark."""
  pictures = _pictures(4)
  labels = {'identity': 0, 'category': 0}
  with _writer(tmp_path / 's') as writer:
    writer.add_user('Jose\u0301', pictures[:1], labels)
    writer.add_user('Jos\u00e9', pictures[1:2], labels)
    writer.add_users(
      ['Jose\u0301', 'Jos\u00e9'],
      pictures[2:, None],
      {'identity': np.zeros(2, int), 'category': np.zeros(2, int)},
    )
  store = user_store.UserStore.open(tmp_path / 's')
  assert store.num_users == 1
  assert store.user_id(0) == 'Jos\u00e9'
  np.testing.assert_array_equal(store.read_user(0).images, pictures)
  for form in ('Jos\u00e9', 'Jose\u0301'):
    assert store.index_of(form) == 0


def test_class_names_have_one_form(tmp_path):
  names = {'identity': ['cafe\u0301'], 'category': ['x', 'y']}
  with _writer(tmp_path / 's', label_names=names) as writer:
    writer.add_user('u', _pictures(1), {'identity': 0, 'category': 0})
  store = user_store.UserStore.open(tmp_path / 's')
  assert list(store.label_names['identity']) == ['caf\u00e9']
  with pytest.raises(user_store.StoreError, match="'identity'.*NFC or NFD"):
    _writer(
      tmp_path / 't', label_names={'identity': ['caf\u00e9', 'cafe\u0301']}
    )


def test_what_is_skipped_is_in_the_manifest(tmp_path):
  bad = [
    store_format.BadFile(file=f'ann/{i}.png', reason='must be whole')
    for i in range(2)
  ]
  with _writer(tmp_path / 's') as writer:
    writer.note_skipped(bad[:1])
    writer.add_user('u', _pictures(1), {'identity': 0, 'category': 0})
    writer.note_skipped(bad[1:])
  manifest = user_store.UserStore.open(tmp_path / 's').manifest
  assert manifest.skipped == tuple(bad)


def test_illegal_description(tmp_path):
  with pytest.raises(user_store.StoreError, match='image_shape'):
    _writer(tmp_path / 's', image_shape=(4, 5, 2))
  with pytest.raises(user_store.StoreError, match='encoding'):
    _writer(tmp_path / 's', encoding='jpeg')
  with pytest.raises(user_store.StoreError, match="named 'user'"):
    _writer(tmp_path / 's', label_names={'user': ['a']})
  with pytest.raises(user_store.StoreError, match='source must be Unicode'):
    _writer(tmp_path / 's', source='folder caf\udce9')


def test_a_failure_keeps_the_old_store(tmp_path):
  path, pictures = tmp_path / 'store', _pictures(3, 1)
  with _writer(path) as writer:
    writer.add_user('ann', pictures, {'identity': 0, 'category': 1})
  before = user_store.UserStore.open(path).digest
  with pytest.raises(RuntimeError, match='stop'):
    with _writer(path, replace=True) as writer:
      writer.add_user('u', _pictures(2), {'identity': 0, 'category': 0})
      raise RuntimeError('stop')
  store = user_store.UserStore.open(path)
  assert store.digest == before
  np.testing.assert_array_equal(store.read_user(0).images, pictures)
  assert [item.name for item in path.parent.iterdir()] == ['store']
