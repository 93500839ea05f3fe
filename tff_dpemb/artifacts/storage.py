"""Artefacts on disk: written whole or not at all, and hashed.

Stages hand each other files, never objects. Whatever is here is published by
write to a temporary sibling, fsync, rename, so that a crash or a full disk
leaves either the old artefact or the new one.

A temporary sibling is called `.NAME.<pid>.<machine>-<random>.tmp`. It may hold
private data, so the next writer of NAME removes those of processes of this
machine that are no more.
"""

import contextlib
import ctypes
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tff_dpemb.processes import liveness

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


# What reading a damaged .npz raises beside an OSError.
NPZ_ERRORS = (
  ValueError,
  EOFError,
  NotImplementedError,
  zipfile.BadZipFile,
  zlib.error,
)


class ArtifactError(RuntimeError):
  """An artefact that is missing, damaged or could not be written."""


def atomic_write_bytes(
  path: str | os.PathLike[str], data: bytes, *, is_private: bool = False
) -> None:
  """Writes `data` to `path` durably; readers see the old file or the new one.

  Args:
    path: The file.
    data: All of its new content.
    is_private: Whether other users of the machine are kept out (mode 0600),
      from the first byte on.

  Raises:
    ArtifactError: The file could not be written (for example a full disk);
      what was at `path` before is still there.
  """
  path = pathlib.Path(path)
  temporary = None
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    handle, temporary = tempfile.mkstemp(
      dir=path.parent, prefix=_prefix(path), suffix='.tmp'
    )
    with os.fdopen(handle, 'wb') as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o600 if is_private else 0o666 & ~_umask())
    os.replace(temporary, path)
    _fsync_directory(path.parent)
  except OSError as error:
    if temporary is not None:
      with contextlib.suppress(OSError):
        os.unlink(temporary)
    raise ArtifactError(_explain(path, error)) from error


def read_or_make_secret(
  path: str | os.PathLike[str], make: Callable[[], bytes]
) -> bytes:
  """Returns the secret at `path`; where there is none, keeps what `make` gives.

  It is its owner's alone (mode 0600) from the first byte on.

  Raises:
    ArtifactError: It could not be written.
  """
  path = pathlib.Path(path)
  if not path.exists():
    atomic_write_bytes(path, make(), is_private=True)
  return path.read_bytes()


def atomic_write_json(
  path: str | os.PathLike[str], content: Any, *, is_private: bool = False
) -> None:
  """Writes `content` as indented JSON; otherwise as `atomic_write_bytes`."""
  text = json.dumps(content, indent=2, allow_nan=False) + '\n'
  atomic_write_bytes(path, text.encode(), is_private=is_private)


def read_json(path: str | os.PathLike[str]) -> Any:
  """Returns the JSON at `path`.

  Raises:
    ArtifactError: The file is missing or is not JSON.
  """
  try:
    text = pathlib.Path(path).read_text(encoding='utf-8')
    return json.loads(text, object_pairs_hook=_without_doubles)
  except OSError as error:
    raise ArtifactError(
      f'{str(path)!r} must be a readable file ({error.strerror}).'
    ) from error
  except RecursionError as error:
    raise ArtifactError(
      f'{str(path)!r} must be JSON, but it is nested too deeply; make it again.'
    ) from error
  except ValueError as error:
    raise ArtifactError(
      f'{str(path)!r} must be JSON ({error}); it is damaged, make it again.'
    ) from error


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Returns an object; of two values of one key no reader knows which holds."""
  found = dict(pairs)
  if len(found) < len(pairs):
    raise ValueError('a key stands twice')
  return found


def atomic_write_npz(
  path: str | os.PathLike[str],
  arrays: Mapping[str, np.ndarray],
  *,
  is_private: bool = False,
) -> None:
  """Writes named arrays as .npz; otherwise as `atomic_write_bytes`."""
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  atomic_write_bytes(path, buffer.getvalue(), is_private=is_private)


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Returns the arrays of an .npz file, in the order they were written.

  Raises:
    ArtifactError: The file is missing or damaged.
  """
  try:
    with np.load(path, allow_pickle=False) as arrays:
      return {name: arrays[name] for name in arrays.files}
  except OSError as error:
    raise ArtifactError(
      f'{str(path)!r} must be a readable file ({error.strerror or error}).'
    ) from error
  except NPZ_ERRORS as error:
    raise ArtifactError(
      f'{str(path)!r} must be an .npz file; it is damaged, make it again.'
    ) from error


@contextlib.contextmanager
def atomic_directory(
  path: str | os.PathLike[str],
  *,
  replace: bool = False,
  is_private: bool = False,
) -> Iterator[pathlib.Path]:
  """Yields a temporary directory that becomes `path` when the body succeeds.

  An existing one is exchanged for it in one step where the file system can
  (Linux); elsewhere by two renames, undone if the second one fails.

  Args:
    path: The directory to publish.
    replace: Whether an existing directory at `path` may be replaced.
    is_private: Whether other users of the machine are kept out (mode 0700).

  Raises:
    ArtifactError: `path` exists and `replace` is false, or the disk refused.
  """
  path = pathlib.Path(path)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
  except OSError as error:
    raise ArtifactError(_explain(path, error)) from error
  if path.exists() and not replace:
    raise ArtifactError(f'{str(path)!r} must not exist; remove it first.')
  try:
    temporary = pathlib.Path(
      tempfile.mkdtemp(dir=path.parent, prefix=_prefix(path), suffix='.tmp')
    )
  except OSError as error:
    raise ArtifactError(_explain(path, error)) from error
  try:
    yield temporary
    for root, _, files in os.walk(temporary):
      for name in files:
        handle = os.open(os.path.join(root, name), os.O_RDONLY)
        try:
          os.fsync(handle)
        finally:
          os.close(handle)
      _fsync_directory(root)
    os.chmod(temporary, 0o700 if is_private else 0o777 & ~_umask())
    if path.exists():
      old = _swap(temporary, path)
      _fsync_directory(path.parent)
      _remove(old)
    else:
      os.replace(temporary, path)
      _fsync_directory(path.parent)
  except OSError as error:
    shutil.rmtree(temporary, ignore_errors=True)
    raise ArtifactError(_explain(path, error)) from error
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def sha256_of(path: str | os.PathLike[str]) -> str:
  """Returns the SHA-256 hex digest of a file, or of a directory's files.

  A directory's digest covers relative names and contents, in sorted order.
  """
  path = pathlib.Path(path)
  try:
    if path.is_dir():
      digest = hashlib.sha256()
      for file in sorted(item for item in path.rglob('*') if item.is_file()):
        name = file.relative_to(path).as_posix()
        digest.update(f'{name}\0{sha256_of(file)}\n'.encode())
      return digest.hexdigest()
    with path.open('rb') as stream:
      return hashlib.file_digest(stream, 'sha256').hexdigest()
  except OSError as error:
    raise ArtifactError(
      f'{str(path)!r} must be a readable file ({error.strerror}).'
    ) from error


# ---- temporary names ----


def _prefix(path: pathlib.Path) -> str:
  return f'.{path.name}.{os.getpid()}.{_tag()}-'


def _tag() -> str:
  """Returns a short tag of this machine and its namespace of process ids."""
  return hashlib.sha256(liveness.machine().encode()).hexdigest()[:8]


def _sweep(path: pathlib.Path) -> None:
  """Removes what dead writers of `path` left beside it.

  An old directory that was moved away for a new one that never came is put
  back.
  """
  pattern = re.compile(
    rf'\.{re.escape(path.name)}\.(\d+)\.(?:([0-9a-f]{{8}})-)?[^.-]+\.(tmp|old)'
  )
  try:
    names = os.listdir(path.parent)
  except PermissionError:
    return  # A directory that may be written, not listed.
  for name in names:
    found = pattern.fullmatch(name)
    if found is None or found[2] not in (None, _tag()):
      continue
    if liveness.is_alive(int(found[1])):
      continue
    stale = path.with_name(name)
    if found[3] == 'old' and not path.exists():
      with contextlib.suppress(OSError):
        os.replace(stale, path)
      continue  # Never removed: it may be the only copy.
    _remove(stale)


def _remove(path: pathlib.Path) -> None:
  """Removes a file, a link or a directory as far as it can."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path, ignore_errors=True)
  else:
    with contextlib.suppress(OSError):
      path.unlink()


# ---- replacing a directory ----


def _swap(new: pathlib.Path, path: pathlib.Path) -> pathlib.Path:
  """Puts `new` at `path`; returns where the old directory is now."""
  if _exchange(new, path):
    return new
  old = new.with_suffix('.old')
  os.replace(path, old)
  try:
    os.replace(new, path)
  except BaseException:
    os.replace(old, path)
    raise
  return old


def _exchange(one: pathlib.Path, other: pathlib.Path) -> bool:
  """Exchanges two paths in one step; False if that cannot be done here."""
  if sys.platform != 'linux':
    return False
  try:
    rename = ctypes.CDLL(None, use_errno=True).renameat2
  except (OSError, AttributeError):
    return False
  status = rename(
    ctypes.c_int(_AT_FDCWD),
    ctypes.c_char_p(os.fsencode(one)),
    ctypes.c_int(_AT_FDCWD),
    ctypes.c_char_p(os.fsencode(other)),
    ctypes.c_uint(_RENAME_EXCHANGE),
  )
  return status == 0


def _explain(path: pathlib.Path, error: OSError) -> str:
  return (
    f'{str(path)!r} could not be written ({error.strerror}); free space or'
    ' choose another directory, then run the same command again.'
  )


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _fsync_directory(path: str | os.PathLike[str]) -> None:
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
