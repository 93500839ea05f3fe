"""Files of the jobs, on any file system that Beam knows, whole or not at all.

A path without a scheme is local, or mounted: it is written as everything else
here (`artifacts.storage`: temporary sibling, fsync, rename). A path with one
(`gs://`, `s3://`, `hdfs://`, ...) goes through Beam's `FileSystems`: written as
another object, which is durable when it is closed, then renamed. Driver and
workers read what is there with the same functions.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from apache_beam.io import filesystem
from apache_beam.io import filesystems
from pyarrow import parquet

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage

Path: TypeAlias = str | os.PathLike[str]
_Form = TypeVar('_Form', bound=documents.Document)

_systems = filesystems.FileSystems
_AS_IT_IS = filesystem.CompressionTypes.UNCOMPRESSED
_PATTERN = frozenset('*?[')  # Beam cannot quote them: a listing would see more.
_RUN_AGAIN = 'run the same command again'


def is_local(path: Path) -> bool:
  """Returns whether a path has no scheme: local, or a mounted file system."""
  return _systems.get_scheme(os.fspath(path)) is None


def join(path: Path, *names: str) -> str:
  """Returns the path of a file below a directory.

  Raises:
    ArtifactError: No file system is installed for the scheme of `path`, or
      Beam would read it as a pattern.
  """
  path = os.fspath(path)
  if not is_local(path) and _PATTERN & set(path):
    raise storage.ArtifactError(
      f'{path!r} must have none of the characters * ? [, which Beam reads as a'
      ' pattern; choose another directory.'
    )
  try:
    return _systems.join(path, *names)
  except ValueError as error:
    raise storage.ArtifactError(
      f'{path!r} must be of an installed file system ({error}).'
    ) from error


def exists(path: Path) -> bool:
  """Returns whether there is something at a path."""
  return _systems.exists(os.fspath(path))


def read(path: Path, *, remedy: str = _RUN_AGAIN) -> bytes:
  """Returns the content of a file.

  Raises:
    ArtifactError: It is missing or cannot be read; `remedy` says what to do.
  """
  path = os.fspath(path)
  try:
    with _systems.open(path, compression_type=_AS_IT_IS) as file:
      return file.read()
  except Exception as error:  # Each file system has errors of its own.
    raise storage.ArtifactError(
      f'{path!r} must be a readable file ({error}); {remedy}.'
    ) from error


def write(path: Path, data: bytes, *, is_private: bool = False) -> None:
  """Writes a file durably; readers see the old content or the new one.

  Args:
    path: The file.
    data: All of its new content.
    is_private: Whether other users of the machine are kept out (mode 0600) of
      a local file; elsewhere the file system's own permissions hold.

  Raises:
    ArtifactError: It could not be written; what was there before still is.
  """
  path = os.fspath(path)
  if is_local(path):
    storage.atomic_write_bytes(path, data, is_private=is_private)
    return
  temporary = f'{path}.{uuid.uuid4().hex}.tmp'
  try:
    with _systems.create(temporary, compression_type=_AS_IT_IS) as file:
      file.write(data)
    _replace(temporary, path)
  except Exception as error:  # Each file system has errors of its own.
    with contextlib.suppress(Exception):
      _systems.delete([temporary])
    raise storage.ArtifactError(
      f'{path!r} could not be written ({error}); {_RUN_AGAIN}.'
    ) from error


def _replace(temporary: str, path: str) -> None:
  try:
    _systems.rename([temporary], [path])
  except OSError:
    if not (exists(temporary) and exists(path)):
      raise
    # HDFS renames to a free name only: a moment without the file, never one
    # with half of it.
    _systems.delete([path])
    _systems.rename([temporary], [path])


def read_arrays(
  path: Path, *, remedy: str = _RUN_AGAIN
) -> dict[str, np.ndarray]:
  """Returns what `write_arrays` wrote.

  Raises:
    ArtifactError: The file is missing or damaged; `remedy` says what to do.
  """
  try:
    with np.load(io.BytesIO(read(path, remedy=remedy))) as content:
      return {name: content[name] for name in content.files}
  except (OSError, *storage.NPZ_ERRORS) as error:
    raise storage.ArtifactError(
      f'{os.fspath(path)!r} must be an .npz file, it is damaged; {remedy}.'
    ) from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes named private arrays as .npz; otherwise as `write`."""
  buffer = io.BytesIO()
  np.savez(buffer, **arrays)
  write(path, buffer.getvalue(), is_private=True)


def read_table(path: Path, sha256: str | None, *, remedy: str) -> pa.Table:
  """Returns the Parquet table in a file, which must have this SHA-256.

  Raises:
    ArtifactError: It is missing, or has another one; `remedy` says what to do.
  """
  content = read(path, remedy=remedy)
  if hashlib.sha256(content).hexdigest() != sha256:
    raise storage.ArtifactError(
      f'{os.fspath(path)!r} has another SHA-256 than its manifest; {remedy}.'
    )
  # Without Arrow's pools of threads: a runner has its own, and those that are
  # left at the end of a process can abort it.
  return parquet.ParquetFile(pa.BufferReader(content)).read(use_threads=False)


def read_document(form: type[_Form], path: Path) -> _Form:
  """Returns the document in a file.

  Raises:
    ArtifactError: The file is missing or is not JSON.
    DocumentError: It is of another form, or breaks a rule of this one.
  """
  name = repr(os.fspath(path))
  try:
    content = json.loads(read(path, remedy=form.remedy))
  except (ValueError, RecursionError) as error:
    raise storage.ArtifactError(
      f'{name} must be JSON, it is damaged; {form.remedy}.'
    ) from error
  return form.from_json(content, name=name)


def clear(directory: Path) -> None:
  """Removes the files of a directory, if it is there.

  Raises:
    ArtifactError: One could not be removed.
  """
  try:
    if not is_local(directory):
      (found,) = _systems.match([join(directory, '*')])
      _systems.delete([item.path for item in found.metadata_list])
    elif os.path.lexists(directory):
      shutil.rmtree(directory)
  except OSError as error:
    raise storage.ArtifactError(
      f'{os.fspath(directory)!r} could not be cleared ({error}); remove it.'
    ) from error


def write_directory(
  path: Path, contents: Mapping[str, bytes], *, last: str
) -> None:
  """Replaces a directory by these files.

  A local one is exchanged in one step. An object store has no such step: there
  `last` goes first and comes last, so that whoever begins with it finds all of
  the files or none.

  Args:
    path: The directory.
    contents: {file name: content}.
    last: Name of the file that every reader begins with.

  Raises:
    ArtifactError: They could not be written.
  """
  if is_local(path):
    with storage.atomic_directory(path, replace=True) as directory:
      for name, data in contents.items():
        storage.atomic_write_bytes(directory / name, data)
    return
  if exists(join(path, last)):
    _systems.delete([join(path, last)])
  clear(path)
  for name in sorted(contents, key=lambda name: name == last):
    write(join(path, name), contents[name])
