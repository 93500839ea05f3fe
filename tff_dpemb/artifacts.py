"""Artefacts on disk: written whole or not at all, and hashed.

Stages hand each other files, never objects. Whatever is here is published by
write to a temporary sibling, fsync, rename, so that a crash or a full disk
leaves either the old artefact or the new one.
"""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class ArtifactError(RuntimeError):
  """An artefact that is missing, damaged or could not be written."""


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
  """Writes `data` to `path` durably; readers see the old file or the new one.

  Raises:
    ArtifactError: The file could not be written (for example a full disk);
      what was at `path` before is still there.
  """
  path = pathlib.Path(path)
  temporary = None
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(
      dir=path.parent, prefix=f'.{path.name}.', suffix='.tmp'
    )
    with os.fdopen(handle, 'wb') as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    os.chmod(temporary, 0o666 & ~_umask())
    os.replace(temporary, path)
    _fsync_directory(path.parent)
  except OSError as error:
    if temporary is not None:
      with contextlib.suppress(OSError):
        os.unlink(temporary)
    raise ArtifactError(_explain(path, error)) from error


def atomic_write_json(path: str | os.PathLike[str], content: Any) -> None:
  """Writes `content` as indented JSON; errors as `atomic_write_bytes`."""
  text = json.dumps(content, indent=2, allow_nan=False) + '\n'
  atomic_write_bytes(path, text.encode())


def read_json(path: str | os.PathLike[str]) -> Any:
  """Returns the JSON at `path`.

  Raises:
    ArtifactError: The file is missing or is not JSON.
  """
  try:
    return json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
  except OSError as error:
    raise ArtifactError(
      f'{str(path)!r} must be a readable file ({error.strerror}).'
    ) from error
  except ValueError as error:
    raise ArtifactError(
      f'{str(path)!r} must be JSON ({error}); it is damaged, make it again.'
    ) from error


def atomic_write_npz(
  path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]
) -> None:
  """Writes named arrays as .npz; errors as `atomic_write_bytes`."""
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  atomic_write_bytes(path, buffer.getvalue())


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
  except (ValueError, EOFError, zipfile.BadZipFile) as error:
    raise ArtifactError(
      f'{str(path)!r} must be an .npz file; it is damaged, make it again.'
    ) from error


@contextlib.contextmanager
def atomic_directory(
  path: str | os.PathLike[str], *, replace: bool = False
) -> Iterator[pathlib.Path]:
  """Yields a temporary directory that becomes `path` when the body succeeds.

  Args:
    path: The directory to publish.
    replace: Whether an existing directory at `path` may be replaced.

  Raises:
    ArtifactError: `path` exists and `replace` is false, or the disk refused.
  """
  path = pathlib.Path(path)
  if path.exists() and not replace:
    raise ArtifactError(f'{str(path)!r} must not exist; remove it first.')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(
      tempfile.mkdtemp(dir=path.parent, prefix=f'.{path.name}.', suffix='.tmp')
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
    os.chmod(temporary, 0o777 & ~_umask())
    old = None
    if path.exists():
      old = path.with_name(f'.{path.name}.{os.getpid()}.old')
      os.replace(path, old)
    os.replace(temporary, path)
    _fsync_directory(path.parent)
    if old is not None:
      shutil.rmtree(old, ignore_errors=True)
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
  if path.is_dir():
    digest = hashlib.sha256()
    for file in sorted(item for item in path.rglob('*') if item.is_file()):
      name = file.relative_to(path).as_posix()
      digest.update(f'{name}\0{sha256_of(file)}\n'.encode())
    return digest.hexdigest()
  try:
    with path.open('rb') as stream:
      return hashlib.file_digest(stream, 'sha256').hexdigest()
  except OSError as error:
    raise ArtifactError(
      f'{str(path)!r} must be a readable file ({error.strerror}).'
    ) from error


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
