"""Embedding a store: same as the encoder on the array; reused; refused."""

import pickle

import cloudpickle
import numpy as np
import pytest

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.data import user_store
from tff_dpemb.pipelines import embed


def run(stores, tmp_path, encoder, **overrides):
  settings = dict(
    store=stores / 'private',
    export='model-1',
    label='category',
    directory=tmp_path / 'embeddings',
    open_export=encoder,
  )
  return embed.embed(**{**settings, **overrides})


def test_equals_the_encoder_on_the_whole_store(stores, tmp_path, encoder):
  embedded = run(stores, tmp_path, encoder)
  store = user_store.UserStore.open(stores / 'private')
  assert embedded.parts == len(store.shards) > 1
  embeddings, labels, users = embedded.read_all()
  parts = [store.read_shard(i) for i in range(len(store.shards))]
  images = np.concatenate([part[0] for part in parts])
  np.testing.assert_allclose(
    embeddings, encoder('model-1').embed(images), atol=1e-6
  )
  np.testing.assert_array_equal(
    labels, np.concatenate([part[1]['category'] for part in parts])
  )
  np.testing.assert_array_equal(
    users, np.concatenate([part[2] for part in parts])
  )
  assert embedded.rows == store.num_examples == len(users)


def test_is_reused_until_an_input_changes(stores, tmp_path, encoder):
  first = run(stores, tmp_path, encoder)
  stamp = embed.part_path(first.path, 0).stat().st_mtime_ns
  run(stores, tmp_path, encoder)
  assert embed.part_path(first.path, 0).stat().st_mtime_ns == stamp
  other = run(stores, tmp_path, encoder, export='model-2')
  assert other.export_digest != first.export_digest
  assert embed.part_path(first.path, 0).stat().st_mtime_ns != stamp


def test_dofn_can_be_pickled(stores, encoder):
  fn = embed.EmbedShard(
    store=str(stores / 'private'),
    export='x',
    label='category',
    directory='d',
    open_export=encoder,
  )
  copy = pickle.loads(cloudpickle.dumps(fn))
  copy.setup()
  assert copy._store.num_users == 300


def test_no_label_column(stores, tmp_path, encoder):
  embedded = run(stores, tmp_path, encoder, label='')
  assert (embedded.read(0)[1] == -1).all()


def test_unknown_label_is_refused(stores, tmp_path, encoder):
  with pytest.raises(user_store.StoreError, match='label must be one of'):
    run(stores, tmp_path, encoder, label='colour')


def test_store_without_images_is_nothing_to_release(
  stores, tmp_path, encoder, monkeypatch
):
  monkeypatch.setattr(user_store.UserStore, 'num_users', 0)
  with pytest.raises(errors.NothingToRelease, match='nothing to release'):
    run(stores, tmp_path, encoder)


def test_damaged_part_is_named(stores, tmp_path, encoder):
  embedded = run(stores, tmp_path, encoder)
  embed.part_path(embedded.path, 1).write_bytes(b'PAR1 not')
  with pytest.raises(storage.ArtifactError, match='part-00001'):
    embedded.read(1)
