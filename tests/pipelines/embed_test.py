"""Embedding a store: same as the encoder on the array; reused; refused."""

import pathlib
import pickle

import cloudpickle
import numpy as np
import pytest

from tff_dpemb.artifacts import documents
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
  assert embedded.manifest.rows == store.num_examples == len(users)


def stamp_of(embedded):
  path = pathlib.Path(embed.part_path(embedded.path, 0))
  return path.stat().st_mtime_ns


def test_is_reused_until_an_input_changes(stores, tmp_path, encoder):
  first = run(stores, tmp_path, encoder)
  stamp = stamp_of(first)
  run(stores, tmp_path, encoder)
  assert stamp_of(first) == stamp
  other = run(stores, tmp_path, encoder, export='model-2')
  assert other.manifest.export_digest != first.manifest.export_digest
  assert stamp_of(first) != stamp


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
  pathlib.Path(embed.part_path(embedded.path, 1)).write_bytes(b'PAR1 not')
  with pytest.raises(storage.ArtifactError, match='part-00001'):
    embedded.read(1)


def test_altered_part_is_named(stores, tmp_path, encoder):
  """A part of an equal form, as a worker of another job would write it."""
  embedded = run(stores, tmp_path, encoder)
  x, labels, users = embedded.read(0)
  other = embed.part_from_arrays(-x, labels, users)
  pathlib.Path(embed.part_path(embedded.path, 0)).write_bytes(other)
  with pytest.raises(
    storage.ArtifactError, match='part-00000.* another SHA-256'
  ):
    embedded.read(0)


def test_what_was_there_before_is_removed(stores, tmp_path, encoder):
  """Nothing of users stays that are in the store no more."""
  stale = tmp_path / 'embeddings' / 'part-00077.parquet'
  stale.parent.mkdir()
  stale.write_bytes(b'of a larger store')
  embedded = run(stores, tmp_path, encoder)
  assert not stale.exists()
  assert sorted(item.name for item in stale.parent.iterdir()) == sorted(
    ['manifest.json', *embedded.manifest.files]
  )
  modes = {item.stat().st_mode & 0o777 for item in stale.parent.iterdir()}
  assert modes == {0o600}


def test_without_a_manifest_there_are_no_embeddings(stores, tmp_path, encoder):
  first = run(stores, tmp_path, encoder)
  stamp = stamp_of(first)
  pathlib.Path(first.path, 'manifest.json').unlink()
  again = run(stores, tmp_path, encoder)
  assert again == first and stamp_of(again) != stamp


def test_an_older_form_is_refused(stores, tmp_path, encoder):
  run(stores, tmp_path, encoder)
  storage.atomic_write_json(
    tmp_path / 'embeddings' / 'manifest.json',
    {'schema': 'dpemb.embeddings/1', 'parts': 3},
  )
  with pytest.raises(
    documents.DocumentError,
    match="schema 'dpemb.embeddings/2', got .* remove its directory and run",
  ):
    run(stores, tmp_path, encoder)


def test_the_kept_manifest_is_read():
  """Made once: later releases must go on to read it, to the same digest."""
  path = pathlib.Path(__file__).parent / 'kept' / 'embeddings' / 'manifest.json'
  found = embed.Manifest.read(path)
  assert found.digest == (
    '09e1006f6d48c9d99092e50d3f90c68f432b03dcdbfb6f6e54d19aa9c4179b2c'
  )
  assert (found.rows, found.num_users, found.embedding_dim) == (324, 80, 8)
