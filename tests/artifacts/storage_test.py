import errno
import hashlib
import os
import pathlib
import stat
import subprocess
import sys

import pytest

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage


def _leftovers(directory):
  return sorted(
    path.name for path in directory.iterdir() if path.name.startswith('.')
  )


def _full_disk(*unused_args, **unused_kwargs):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestAtomicWrite:
  def test_writes_and_replaces(self, tmp_path):
    path = tmp_path / 'deep' / 'x.bin'
    storage.atomic_write_bytes(path, b'one')
    storage.atomic_write_bytes(path, b'two')
    assert path.read_bytes() == b'two'
    assert _leftovers(path.parent) == []

  def test_honours_the_umask(self, tmp_path):
    old = os.umask(0o027)
    try:
      storage.atomic_write_bytes(tmp_path / 'x', b'')
    finally:
      os.umask(old)
    assert stat.S_IMODE((tmp_path / 'x').stat().st_mode) == 0o640

  def test_private_whatever_the_umask(self, tmp_path):
    old = os.umask(0)
    try:
      storage.atomic_write_json(tmp_path / 'x', {}, is_private=True)
    finally:
      os.umask(old)
    assert stat.S_IMODE((tmp_path / 'x').stat().st_mode) == 0o600

  def test_a_secret_is_made_once_and_is_its_owners_alone(self, tmp_path):
    path = tmp_path / 'deep' / 'key'
    assert storage.read_or_make_secret(path, lambda: b'one') == b'one'
    assert storage.read_or_make_secret(path, lambda: b'two') == b'one'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

  def test_full_disk_keeps_the_old_file(self, tmp_path, monkeypatch):
    path = tmp_path / 'x.json'
    storage.atomic_write_json(path, {'a': 1})
    monkeypatch.setattr(os, 'fsync', _full_disk)
    with pytest.raises(storage.ArtifactError, match='No space left.*again'):
      storage.atomic_write_json(path, {'a': 2})
    assert storage.read_json(path) == {'a': 1}
    assert _leftovers(tmp_path) == []

  def test_refuses_what_json_cannot_hold(self, tmp_path):
    with pytest.raises(ValueError, match='not JSON compliant'):
      storage.atomic_write_json(tmp_path / 'x.json', {'a': float('nan')})
    assert not (tmp_path / 'x.json').exists()

  def test_parent_that_is_a_file(self, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(storage.ArtifactError, match='could not be written'):
      storage.atomic_write_bytes(tmp_path / 'file' / 'x', b'')


class TestReadJson:
  def test_missing(self, tmp_path):
    with pytest.raises(storage.ArtifactError, match='must be a readable'):
      storage.read_json(tmp_path / 'none.json')

  @pytest.mark.parametrize('content', [b'{"a": ', b'', b'\xff\xfe'])
  def test_damaged(self, tmp_path, content):
    path = tmp_path / 'x.json'
    path.write_bytes(content)
    with pytest.raises(storage.ArtifactError, match='must be JSON.*again'):
      storage.read_json(path)


class TestAtomicDirectory:
  def test_publishes_whole(self, tmp_path):
    with storage.atomic_directory(tmp_path / 'out') as directory:
      (directory / 'sub').mkdir()
      (directory / 'sub' / 'a').write_text('a')
      assert not (tmp_path / 'out').exists()
    assert (tmp_path / 'out' / 'sub' / 'a').read_text() == 'a'
    assert _leftovers(tmp_path) == []

  def test_failure_publishes_nothing(self, tmp_path):
    with (
      pytest.raises(KeyError),
      storage.atomic_directory(tmp_path / 'out') as directory,
    ):
      (directory / 'a').write_text('half')
      raise KeyError('x')
    assert list(tmp_path.iterdir()) == []

  def test_existing_is_kept_unless_replaced(self, tmp_path):
    out = tmp_path / 'out'
    with storage.atomic_directory(out) as directory:
      (directory / 'a').write_text('old')
    with (
      pytest.raises(storage.ArtifactError, match='must not exist'),
      storage.atomic_directory(out),
    ):
      pass
    with storage.atomic_directory(out, replace=True) as directory:
      (directory / 'b').write_text('new')
    assert [path.name for path in out.iterdir()] == ['b']
    assert _leftovers(tmp_path) == []

  def test_full_disk_keeps_the_old_directory(self, tmp_path, monkeypatch):
    out = tmp_path / 'out'
    with storage.atomic_directory(out) as directory:
      (directory / 'a').write_text('old')
    monkeypatch.setattr(os, 'fsync', _full_disk)
    with (
      pytest.raises(storage.ArtifactError, match='No space left'),
      storage.atomic_directory(out, replace=True) as directory,
    ):
      (directory / 'a').write_text('new')
    assert (out / 'a').read_text() == 'old'
    assert _leftovers(tmp_path) == []

  def test_replacing_never_leaves_the_path_empty(self, tmp_path, monkeypatch):
    out = _published(tmp_path / 'out', 'old')
    inode = out.stat().st_ino
    if not storage._exchange(out, _published(tmp_path / 'probe', 'x')):
      pytest.skip('this file system cannot exchange two names')
    assert out.stat().st_ino != inode
    assert (out / 'a').read_text() == 'x'

    def never(*unused):
      raise AssertionError('two renames leave a gap')

    with storage.atomic_directory(out, replace=True) as directory:
      (directory / 'a').write_text('new')
      monkeypatch.setattr(os, 'replace', never)
    assert (out / 'a').read_text() == 'new'
    assert _leftovers(tmp_path) == []

  def test_two_renames_where_names_cannot_be_exchanged(
    self, tmp_path, monkeypatch
  ):
    monkeypatch.setattr(storage, '_exchange', lambda *unused: False)
    out = _published(tmp_path / 'out', 'old')
    with storage.atomic_directory(out, replace=True) as directory:
      (directory / 'a').write_text('new')
    assert (out / 'a').read_text() == 'new'
    assert _leftovers(tmp_path) == []

  def test_a_failed_second_rename_is_undone(self, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, '_exchange', lambda *unused: False)
    out = _published(tmp_path / 'out', 'old')
    rename, calls = os.replace, []

    def second_fails(source, target):
      calls.append((source, target))
      if len(calls) == 2:
        _full_disk()
      rename(source, target)

    monkeypatch.setattr(os, 'replace', second_fails)
    with (
      pytest.raises(storage.ArtifactError, match='No space left'),
      storage.atomic_directory(out, replace=True) as directory,
    ):
      (directory / 'a').write_text('new')
    assert len(calls) == 3
    assert (out / 'a').read_text() == 'old'
    assert _leftovers(tmp_path) == []

  def test_a_link_is_replaced_not_followed(self, tmp_path):
    elsewhere = _published(tmp_path / 'elsewhere', 'kept')
    out = tmp_path / 'out'
    out.symlink_to(elsewhere)
    with storage.atomic_directory(out, replace=True) as directory:
      (directory / 'a').write_text('new')
    assert not out.is_symlink()
    assert (elsewhere / 'a').read_text() == 'kept'
    assert _leftovers(tmp_path) == []


def _published(path, content):
  path.mkdir()
  (path / 'a').write_text(content)
  return path


@pytest.fixture(name='dead')
def _dead():
  """The id of a process that is no more."""
  process = subprocess.Popen([sys.executable, '-c', ''])
  process.wait()
  return process.pid


def _write(path):
  storage.atomic_write_bytes(path, b'new')


def _make(path):
  with storage.atomic_directory(path):
    pass


@pytest.mark.parametrize('writer', [_write, _make])
class TestStaleTemporaries:
  def test_those_of_dead_writers_of_the_path_are_removed(
    self, tmp_path, dead, writer
  ):
    stale = tmp_path / f'.out.{dead}.abc_123.tmp'
    _published(stale, 'embeddings')
    (tmp_path / f'.out.{dead}.def.tmp').write_text('embeddings')
    mine = f'.out.{dead}.{storage._tag()}-k3y.tmp'
    (tmp_path / mine).write_text('embeddings')
    writer(tmp_path / 'out')
    assert _leftovers(tmp_path) == []

  def test_all_others_are_kept(self, tmp_path, dead, writer):
    kept = [
      f'.out.{os.getpid()}.abc.tmp',  # May be another thread's.
      '.out.1.abc.tmp',  # Alive.
      f'.out.{dead}.00000000-abc.tmp',  # Of another machine.
      f'.other.{dead}.abc.tmp',
      f'.out.5.{dead}.abc.tmp',  # Of 'out.5'.
      f'.out.npz.{dead}.abc.tmp',
      f'.out.{dead}.abc.txt',
      '.out.abc.tmp',
    ]
    for name in kept:
      (tmp_path / name).write_text('')
    writer(tmp_path / 'out')
    assert _leftovers(tmp_path) == sorted(kept)

  def test_a_killed_writer_leaves_nothing_for_good(self, tmp_path, writer):
    code = """
import os, sys
from tff_dpemb.artifacts import storage
with storage.atomic_directory(sys.argv[1]) as directory:
  (directory / 'a').write_text('embeddings')
  os.kill(os.getpid(), 9)
"""
    process = subprocess.Popen([sys.executable, '-c', code, tmp_path / 'out'])
    process.wait()
    (left,) = _leftovers(tmp_path)
    assert left.startswith(f'.out.{process.pid}.')
    assert left.endswith('.tmp')
    writer(tmp_path / 'out')
    assert _leftovers(tmp_path) == []


def test_an_old_directory_that_lost_its_place_is_put_back(tmp_path, dead):
  """A crash between two renames, where names cannot be exchanged."""
  name = f'.out.{dead}.{storage._tag()}-abc'
  _published(tmp_path / f'{name}.old', 'old')
  _published(tmp_path / f'{name}.tmp', 'new')
  with (
    pytest.raises(storage.ArtifactError, match='must not exist'),
    storage.atomic_directory(tmp_path / 'out'),
  ):
    pass
  assert (tmp_path / 'out' / 'a').read_text() == 'old'
  assert _leftovers(tmp_path) == []


def test_digest_of_files_is_that_of_sorted_json():
  expected = hashlib.sha256(b'{"a":"1","b":"2"}').hexdigest()
  for files in ({'a': '1', 'b': '2'}, {'b': '2', 'a': '1'}):
    assert documents.digest_of_files(files) == expected


class TestSha256:
  def test_file(self, tmp_path):
    (tmp_path / 'x').write_bytes(b'abc')
    # FIPS 180-2, appendix B.1.
    assert storage.sha256_of(tmp_path / 'x') == (
      'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'
    )

  def test_directory_covers_names_and_contents(self, tmp_path):
    def digest(files):
      root = tmp_path / hashlib.sha256(repr(files).encode()).hexdigest()
      for name, content in files.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
      return storage.sha256_of(root)

    first = digest({'a': '1', 'd/b': '2'})
    assert digest({'d/b': '2', 'a': '1'}) == first
    assert digest({'a': '1', 'd/b': '3'}) != first
    assert digest({'a': '1', 'd/c': '2'}) != first
    assert digest({'a': '1', 'b': '2'}) != first

  def test_missing(self, tmp_path):
    with pytest.raises(storage.ArtifactError, match='must be a readable'):
      storage.sha256_of(tmp_path / 'none')


def test_a_key_that_stands_twice_is_damage(tmp_path):
  """One reader takes the first value, another the last."""
  (tmp_path / 'a.json').write_text('{"epsilon": 0.01, "epsilon": 8}')
  with pytest.raises(storage.ArtifactError, match='a key stands twice'):
    storage.read_json(tmp_path / 'a.json')


def test_a_name_that_is_too_long_is_no_file(tmp_path):
  with pytest.raises(storage.ArtifactError, match='must be a readable file'):
    storage.sha256_of(tmp_path / ('x' * 300))
