import errno
import hashlib
import os
import pathlib
import stat

import pytest

from tff_dpemb import artifacts


def _leftovers(directory):
  return sorted(
    path.name for path in directory.iterdir() if path.name.startswith('.')
  )


def _full_disk(*unused_args, **unused_kwargs):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestAtomicWrite:
  def test_writes_and_replaces(self, tmp_path):
    path = tmp_path / 'deep' / 'x.bin'
    artifacts.atomic_write_bytes(path, b'one')
    artifacts.atomic_write_bytes(path, b'two')
    assert path.read_bytes() == b'two'
    assert _leftovers(path.parent) == []

  def test_honours_the_umask(self, tmp_path):
    old = os.umask(0o027)
    try:
      artifacts.atomic_write_bytes(tmp_path / 'x', b'')
    finally:
      os.umask(old)
    assert stat.S_IMODE((tmp_path / 'x').stat().st_mode) == 0o640

  def test_full_disk_keeps_the_old_file(self, tmp_path, monkeypatch):
    path = tmp_path / 'x.json'
    artifacts.atomic_write_json(path, {'a': 1})
    monkeypatch.setattr(os, 'fsync', _full_disk)
    with pytest.raises(artifacts.ArtifactError, match='No space left.*again'):
      artifacts.atomic_write_json(path, {'a': 2})
    assert artifacts.read_json(path) == {'a': 1}
    assert _leftovers(tmp_path) == []

  def test_refuses_what_json_cannot_hold(self, tmp_path):
    with pytest.raises(ValueError, match='not JSON compliant'):
      artifacts.atomic_write_json(tmp_path / 'x.json', {'a': float('nan')})
    assert not (tmp_path / 'x.json').exists()

  def test_parent_that_is_a_file(self, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(artifacts.ArtifactError, match='could not be written'):
      artifacts.atomic_write_bytes(tmp_path / 'file' / 'x', b'')


class TestReadJson:
  def test_missing(self, tmp_path):
    with pytest.raises(artifacts.ArtifactError, match='must be a readable'):
      artifacts.read_json(tmp_path / 'none.json')

  @pytest.mark.parametrize('content', [b'{"a": ', b'', b'\xff\xfe'])
  def test_damaged(self, tmp_path, content):
    path = tmp_path / 'x.json'
    path.write_bytes(content)
    with pytest.raises(artifacts.ArtifactError, match='must be JSON.*again'):
      artifacts.read_json(path)


class TestAtomicDirectory:
  def test_publishes_whole(self, tmp_path):
    with artifacts.atomic_directory(tmp_path / 'out') as directory:
      (directory / 'sub').mkdir()
      (directory / 'sub' / 'a').write_text('a')
      assert not (tmp_path / 'out').exists()
    assert (tmp_path / 'out' / 'sub' / 'a').read_text() == 'a'
    assert _leftovers(tmp_path) == []

  def test_failure_publishes_nothing(self, tmp_path):
    with (
      pytest.raises(KeyError),
      artifacts.atomic_directory(tmp_path / 'out') as directory,
    ):
      (directory / 'a').write_text('half')
      raise KeyError('x')
    assert list(tmp_path.iterdir()) == []

  def test_existing_is_kept_unless_replaced(self, tmp_path):
    out = tmp_path / 'out'
    with artifacts.atomic_directory(out) as directory:
      (directory / 'a').write_text('old')
    with (
      pytest.raises(artifacts.ArtifactError, match='must not exist'),
      artifacts.atomic_directory(out),
    ):
      pass
    with artifacts.atomic_directory(out, replace=True) as directory:
      (directory / 'b').write_text('new')
    assert [path.name for path in out.iterdir()] == ['b']
    assert _leftovers(tmp_path) == []

  def test_full_disk_keeps_the_old_directory(self, tmp_path, monkeypatch):
    out = tmp_path / 'out'
    with artifacts.atomic_directory(out) as directory:
      (directory / 'a').write_text('old')
    monkeypatch.setattr(os, 'fsync', _full_disk)
    with (
      pytest.raises(artifacts.ArtifactError, match='No space left'),
      artifacts.atomic_directory(out, replace=True) as directory,
    ):
      (directory / 'a').write_text('new')
    assert (out / 'a').read_text() == 'old'
    assert _leftovers(tmp_path) == []


class TestSha256:
  def test_file(self, tmp_path):
    (tmp_path / 'x').write_bytes(b'abc')
    # FIPS 180-2, appendix B.1.
    assert artifacts.sha256_of(tmp_path / 'x') == (
      'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'
    )

  def test_directory_covers_names_and_contents(self, tmp_path):
    def digest(files):
      root = tmp_path / hashlib.sha256(repr(files).encode()).hexdigest()
      for name, content in files.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
      return artifacts.sha256_of(root)

    first = digest({'a': '1', 'd/b': '2'})
    assert digest({'d/b': '2', 'a': '1'}) == first
    assert digest({'a': '1', 'd/b': '3'}) != first
    assert digest({'a': '1', 'd/c': '2'}) != first
    assert digest({'a': '1', 'b': '2'}) != first

  def test_missing(self, tmp_path):
    with pytest.raises(artifacts.ArtifactError, match='must be a readable'):
      artifacts.sha256_of(tmp_path / 'none')
