import json

import pyarrow as pa
import pytest

from tff_dpemb.data import store_format


def _info(name, rows=1):
  return store_format.FileInfo(name=name, rows=rows, bytes=8, sha256='0' * 64)


def _manifest(**fields):
  fields = {
    'name': 'small',
    'image_shape': (4, 5, 1),
    'encoding': 'raw',
    'num_users': 2,
    'num_examples': 3,
    'num_classes': {'identity': 2, 'category': 1},
    'source': 'drawn',
    'licence': 'CC0',
    'shards': (_info('shard-00000.arrow', 3),),
    'files': tuple(
      map(_info, ('users.arrow', 'extents.arrow', 'classes.arrow'))
    ),
    **fields,
  }
  return store_format.StoreManifest(**fields)


class TestManifest:
  def test_written_and_read(self, tmp_path):
    path = tmp_path / 'manifest.json'
    _manifest().write(path)
    assert store_format.read_manifest(path) == _manifest()

  def test_the_digest_is_of_the_facts_not_of_the_file(self, tmp_path):
    path = tmp_path / 'manifest.json'
    content = dict(reversed(_manifest().to_json().items()))
    content['num_classes'] = {'category': 1, 'identity': 2}
    path.write_text(json.dumps(content))
    assert store_format.read_manifest(path).digest == _manifest().digest
    assert _manifest(licence='CC-BY').digest != _manifest().digest

  def test_what_was_skipped_is_kept(self, tmp_path):
    path = tmp_path / 'manifest.json'
    bad = store_format.BadFile(file='ann/0.png', reason='must be whole')
    _manifest(skipped=(bad,)).write(path)
    assert store_format.read_manifest(path).skipped == (bad,)
    assert _manifest(skipped=(bad,)).digest != _manifest().digest

  def test_of_nothing_skipped_the_json_says_nothing(self):
    """The digest is the one that the form had before it could skip."""
    assert 'skipped' not in _manifest().to_json()
    assert _manifest(skipped=()).digest == (
      'abcdd5852410586fd4f0ee50a729d985c6d4608864a9b2cb141c8ffe827bb49c'
    )

  def test_an_older_form_is_refused(self, tmp_path):
    path = tmp_path / 'manifest.json'
    content = _manifest().to_json()
    del content['schema']
    path.write_text(json.dumps({'format': 'dpemb.user_store/1', **content}))
    with pytest.raises(
      store_format.StoreError,
      match=r"must have schema 'dpemb.user_store/2', got None; .* Build the",
    ):
      store_format.read_manifest(path)

  @pytest.mark.parametrize(
    ('field', 'value', 'message'),
    [
      ('image_shape', [4, 5], 'image_shape'),
      ('encoding', 'jpeg', "encoding must be one of 'raw' or 'encoded'"),
      ('num_users', 0, 'num_users must be >= 1, got 0'),
      (
        'num_classes',
        {'identity': '2'},
        'num_classes.identity must be a whole',
      ),
      ('label_names', {}, 'label_names is not part of this form'),
      (
        'files',
        [_info('users.arrow').to_json()] * 3,
        'files must be users.arrow, extents.arrow and classes.arrow, got',
      ),
    ],
  )
  def test_a_broken_rule_is_named(self, tmp_path, field, value, message):
    path = tmp_path / 'manifest.json'
    path.write_text(json.dumps({**_manifest().to_json(), field: value}))
    with pytest.raises(
      store_format.StoreError, match=rf'{message}.*(?i:build) the store again'
    ):
      store_format.read_manifest(path)


class TestCheckDirectory:
  def test_what_is_there_instead(self, tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'file').touch()
    (tmp_path / 'store').mkdir()
    (tmp_path / 'store' / 'manifest.json').touch()
    store_format.check_directory(
      tmp_path / 'store', 'manifest.json', 'a user store'
    )
    for name, found in (
      ('empty', 'a directory without manifest.json'),
      ('file', 'a file'),
      ('no', 'no such directory'),
      ('no/private', "no directory '.*/no'"),
    ):
      with pytest.raises(
        store_format.StoreError,
        match=f"{name}' must be a user store, got {found}; check the path",
      ):
        store_format.check_directory(
          tmp_path / name, 'manifest.json', 'a user store'
        )


class TestFiles:
  @pytest.fixture
  def batch(self):
    return pa.RecordBatch.from_pydict({'a': pa.array([1, 2, 3])})

  def test_written_and_mapped(self, tmp_path, batch):
    info = store_format.write_batch(tmp_path / 'x.arrow', batch)
    assert (info.name, info.rows) == ('x.arrow', 3)
    assert info.bytes == (tmp_path / 'x.arrow').stat().st_size
    assert store_format.map_batch(tmp_path, info).equals(batch)
    store_format.check_digest(tmp_path, info)

  def test_other_rows_than_the_manifest_says(self, tmp_path, batch):
    info = store_format.write_batch(tmp_path / 'x.arrow', batch)
    with pytest.raises(store_format.StoreError, match='3 rows instead of 2'):
      store_format.map_batch(tmp_path, info.model_copy(update={'rows': 2}))

  def test_several_batches(self, tmp_path, batch):
    path = tmp_path / 'x.arrow'
    with pa.OSFile(str(path), 'wb') as sink:
      with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    info = _info('x.arrow', 3).model_copy(update={'bytes': path.stat().st_size})
    with pytest.raises(store_format.StoreError, match='2 record batches'):
      store_format.map_batch(tmp_path, info)
