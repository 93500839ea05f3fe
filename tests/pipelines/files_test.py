"""Whole or not at all, on a disk and in a bucket alike."""

import hashlib
import stat
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.pipelines import files


@pytest.fixture(params=['disk', 'bucket'])
def root(request, tmp_path, memory):
  return tmp_path / 'x' if request.param == 'disk' else 'memory://bucket/x'


def test_reads_what_was_written(root):
  path = files.join(root, 'a', 'b')
  assert path == f'{root}/a/b'
  assert not files.exists(path)
  for content in (b'one', b'two', b''):
    files.write(path, content)
    assert files.exists(path)
    assert files.read(path) == content


def test_names_do_not_compress(root):
  files.write(files.join(root, 'a.gz'), b'plain')
  assert files.read(files.join(root, 'a.gz')) == b'plain'


def test_missing_files_are_named(root):
  with pytest.raises(storage.ArtifactError, match=r'x/none.*; try this\.'):
    files.read(files.join(root, 'none'), remedy='try this')


def test_arrays_keep_names_and_types(root):
  path = files.join(root, 'sums.npz')
  arrays = {'sums': np.arange(6).reshape(2, 3), 'counts': np.ones(2, np.int64)}
  files.write_arrays(path, arrays)
  found = files.read_arrays(path)
  assert list(found) == list(arrays)
  for name, value in arrays.items():
    np.testing.assert_array_equal(found[name], value)
    assert found[name].dtype == value.dtype


@pytest.mark.parametrize('damaged', [b'PK not', b'', b'PK\x03\x04'])
def test_damaged_arrays_are_named(root, damaged):
  path = files.join(root, 'sums.npz')
  files.write(path, damaged)
  with pytest.raises(storage.ArtifactError, match=r'sums\.npz.*start anew'):
    files.read_arrays(path, remedy='start anew')


def test_tables_are_those_of_the_manifest(root):
  table = pa.table({'label': [1, 2, 3]})
  sink = pa.BufferOutputStream()
  parquet.write_table(table, sink)
  content = sink.getvalue().to_pybytes()
  path = files.join(root, 'a.parquet')
  files.write(path, content)
  sha256 = hashlib.sha256(content).hexdigest()
  assert files.read_table(path, sha256, remedy='start anew').equals(table)
  for other in ('0' * 64, None):
    with pytest.raises(
      storage.ArtifactError, match=r'a\.parquet.* SHA-256 .*; start anew'
    ):
      files.read_table(path, other, remedy='start anew')


class _Note(documents.Document):
  schema_name: Literal['dpemb.note/2'] = documents.schema('dpemb.note/2')
  text: str


def test_documents_are_read_by_their_form(root):
  path = files.join(root, 'note.json')
  files.write(path, _Note(text='a').to_bytes())
  assert files.read_document(_Note, path) == _Note(text='a')
  files.write(path, b'{"schema": "dpemb.note/1", "text": "a"}')
  with pytest.raises(
    documents.DocumentError, match=r"note\.json.*'dpemb.note/2'"
  ):
    files.read_document(_Note, path)
  for damaged in (b'{', b'\xff'):
    files.write(path, damaged)
    with pytest.raises(storage.ArtifactError, match='must be JSON'):
      files.read_document(_Note, path)


def test_a_directory_is_cleared(root):
  files.clear(root)  # It need not be there.
  for name in ('a', 'b'):
    files.write(files.join(root, name), b'1')
  files.write(f'{root}-other', b'2')
  files.clear(root)
  assert not files.exists(files.join(root, 'a'))
  assert not files.exists(files.join(root, 'b'))
  assert files.read(f'{root}-other') == b'2'


def test_a_directory_is_replaced(root):
  for names in (('a', 'b', 'last'), ('b', 'last')):
    files.write_directory(
      root, {name: name.encode() * 2 for name in names}, last='last'
    )
    for name in names:
      assert files.read(files.join(root, name)) == name.encode() * 2
  assert not files.exists(files.join(root, 'a'))


class TestDisk:
  def test_private_files_are_the_owners(self, tmp_path):
    for name, is_private in (('a', True), ('b', False)):
      files.write(tmp_path / name, b'1', is_private=is_private)
    mode = stat.S_IMODE((tmp_path / 'a').stat().st_mode)
    assert mode == 0o600
    files.write_arrays(tmp_path / 'c', {'x': np.ones(1)})
    assert stat.S_IMODE((tmp_path / 'c').stat().st_mode) == 0o600

  def test_is_synced_before_it_is_there(self, tmp_path, monkeypatch):
    synced = []
    fsync = storage.os.fsync
    monkeypatch.setattr(
      storage.os,
      'fsync',
      lambda handle: (synced.append((tmp_path / 'a').exists()), fsync(handle)),
    )
    files.write(tmp_path / 'a', b'1')
    assert synced == [False, True]  # The file; then the name.


class TestBucket:
  def test_a_write_that_breaks_off_leaves_what_was_there(self, memory):
    files.write('memory://b/a', b'old')
    memory.fails_to_write = '/a'
    with pytest.raises(
      storage.ArtifactError, match=r"'memory://b/a' could not"
    ):
      files.write('memory://b/a', b'new')
    assert memory.objects == {'memory://b/a': b'old'}

  def test_where_a_rename_does_not_replace(self, memory):
    memory.renames_replace = False
    for content in (b'one', b'two'):
      files.write('memory://b/a', content)
      assert memory.objects == {'memory://b/a': content}

  def test_the_last_file_goes_first_and_comes_last(self, memory):
    files.write_directory('memory://b/d', {'a': b'1', 'm': b'1'}, last='m')
    memory.fails_to_write = '/d/m'
    with pytest.raises(storage.ArtifactError, match='/d/m'):
      files.write_directory('memory://b/d', {'m': b'2', 'a': b'2'}, last='m')
    assert memory.objects == {'memory://b/d/a': b'2'}
    memory.fails_to_write = ''
    files.write_directory('memory://b/d', {'m': b'1', 'a': b'1'}, last='m')
    memory.fails_to_write = '/d/a'
    with pytest.raises(storage.ArtifactError, match='/d/a'):
      files.write_directory('memory://b/d', {'m': b'2', 'a': b'2'}, last='m')
    assert memory.objects == {}

  @pytest.mark.parametrize('name', ['a*', 'a?b', 'run[1]'])
  def test_patterns_are_refused(self, memory, name):
    files.write('memory://b/a1', b'1')
    with pytest.raises(storage.ArtifactError, match='which Beam reads as a'):
      files.clear(f'memory://b/{name}')
    assert memory.objects

  def test_an_unknown_scheme_is_refused(self):
    with pytest.raises(storage.ArtifactError, match='an installed file system'):
      files.join('unheard://b', 'a')


def test_which_paths_are_local(tmp_path):
  assert files.is_local(tmp_path) and files.is_local('a/b')
  assert not files.is_local('gs://bucket/a') and not files.is_local('s3://b')
