"""An index of a store: items and embeddings in the order of its images."""

import types

import numpy as np
import pytest

from launch.steps import index
from serving import index as index_lib
from tff_dpemb.data import user_store


@pytest.fixture(name='store')
def _store(tmp_path):
  rng = np.random.default_rng(0)
  with user_store.StoreWriter(
    tmp_path / 'store',
    name='store',
    image_shape=(4, 4, 1),
    label_names={'identity': ['x', 'y', 'z'], 'category': ['one', 'two']},
  ) as writer:
    for user in range(3):
      images = rng.integers(0, 256, [user + 1, 4, 4, 1]).astype(np.uint8)
      writer.add_user(f'u{user}', images, {'identity': user, 'category': 1})
  return user_store.UserStore.open(tmp_path / 'store')


@pytest.fixture(name='exported')
def _exported():
  """Stands for an export; keeps the sizes of the batches it embeds."""
  sizes = []

  def embed(images):
    sizes.append(len(images))
    flat = images.reshape(len(images), -1).astype(np.float32) + 1
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)

  return types.SimpleNamespace(embed=embed, digest='d' * 64, sizes=sizes)


@pytest.mark.parametrize(
  ('batch_size', 'sizes'), [(1, [1, 2, 3]), (3, [3, 3]), (1024, [6])]
)
def test_items_and_embeddings_are_in_the_order_of_the_images(
  store, exported, tmp_path, monkeypatch, batch_size, sizes
):
  monkeypatch.setattr(index, '_BATCH_SIZE', batch_size)
  built, embeddings = index.index_store(exported, store, tmp_path / 'index')
  assert exported.sizes == sizes
  images, _, _ = store.read_all()
  np.testing.assert_array_equal(embeddings, exported.embed(images))
  loaded = index_lib.load(tmp_path / 'index')
  for found in (built, loaded):
    assert list(found.ids) == store.example_ids()
    assert list(found.labels) == ['x', 'y', 'y', 'z', 'z', 'z']
    assert found.model_digest == exported.digest
  (best,) = loaded.neighbours(embeddings[3:4], 1)[0]
  assert best.id == 'u2/0'


def test_another_label_and_a_replaced_index(store, exported, tmp_path):
  path = tmp_path / 'index'
  index.index_store(exported, store, path)
  built, _ = index.index_store(
    exported, store, path, label='category', replace=True
  )
  assert set(built.labels) == {'two'}
