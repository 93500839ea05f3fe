"""Versions of an export on disk: published whole, opened only if whole.

```
<root>/<version>/          version = 1, 2, 3, ...
  saved_model/             named signatures
  model.tflite             the same signature for devices and for `serve`
  manifest.json            hashes, signatures, parity, provenance
  certificate.json         what was promised about the users; absent: nothing
```

The *model digest* is the SHA-256 of the artefacts' hashes. Indexes and
embeddings carry it, so that embeddings of two models are never compared. The
certificate is not part of it, because a certificate may name the digest.

Opening, listing and verifying do not import TensorFlow.
"""

import contextlib
import dataclasses
import datetime
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import locks
from tff_dpemb.artifacts import storage
from tff_dpemb.export import manifest as manifest_lib
from tff_dpemb.export import signature

if TYPE_CHECKING:
  import tensorflow as tf

  from tff_dpemb.export import saved_model as saved_model_lib
  from tff_dpemb.export import tflite as tflite_lib

ExportError = signature.ExportError
ParityError = signature.ParityError

SAVED_MODEL = 'saved_model'
TFLITE = 'model.tflite'
MANIFEST = 'manifest.json'
CERTIFICATE = 'certificate.json'

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Published:
  """What `publish` wrote.

  Attributes:
    version: The new version.
    path: Its directory.
    digest: The model digest (64 hex digits).
    min_cosine: Smallest cosine of the parity check.
    parity: Cosines by artefact.
  """

  version: int
  path: pathlib.Path
  digest: str
  min_cosine: float
  parity: manifest_lib.Parity


def publish(
  root: str | os.PathLike[str],
  backbone: 'tf.keras.Model',
  *,
  image_shape: tuple[int, int, int],
  parity_images: np.ndarray,
  min_cosine: float,
  certificate: dict[str, Any] | Callable[[str], dict[str, Any]] | None,
  extra: manifest_lib.Extra = manifest_lib.Extra(),
  name: str = '',
) -> Published:
  """Writes `backbone` as the next version under `root`.

  Args:
    root: Directory of the versions; made if missing.
    backbone: float32 [N, H, W, C] in [-1, 1] -> float32 [N, D].
    image_shape: (H, W, C).
    parity_images: uint8 [n, H, W, C], n >= 1, to compare the artefacts on.
      They are not stored.
    min_cosine: The gate: the smallest cosine allowed, in (0, 1].
    certificate: The privacy certificate; a function of the model digest that
      returns it; or None for a model without any, which `serve` refuses.
    extra: Which run made the model, for the manifest.
    name: Name of the model; empty: the run's directory, or that of `root`.

  Returns:
    What was published. Readers see the whole version or none of it.

  Raises:
    ParityError: The parity gate refused; nothing is published.
    ExportError: The backbone cannot be exported, or the disk refused; nothing
      is published.
  """
  from tff_dpemb.export import parity as parity_lib
  from tff_dpemb.export import saved_model
  from tff_dpemb.export import tflite

  if not 0 < min_cosine <= 1:
    raise ExportError(f'min_cosine must be in (0, 1], got {min_cosine}.')
  root = pathlib.Path(root)
  with _as_export_error(), locks.hold(root / '.lock', wait=True):
    version = max(versions(root), default=0) + 1
    path = root / str(version)
    with storage.atomic_directory(path) as directory:
      written = saved_model.write(
        backbone, directory / SAVED_MODEL, image_shape=image_shape
      )
      tflite.write(directory / SAVED_MODEL, directory / TFLITE)
      parity = parity_lib.measure(
        backbone,
        parity_images,
        saved_model_directory=directory / SAVED_MODEL,
        tflite_path=directory / TFLITE,
      )
      if parity.min_cosine < min_cosine:
        raise ParityError(
          f'min_cosine must be >= {min_cosine}, got {parity.min_cosine:.6f}'
          f' (saved_model {parity.saved_model:.6f}, from files'
          f' {parity.saved_model_bytes:.6f}, tflite {parity.tflite:.6f}); the'
          ' export was not published.'
        )
      files = _hashes(directory)
      digest = documents.digest_of_files(files)
      if callable(certificate):
        certificate = certificate(digest)
      certificate_sha256 = None
      if certificate is not None:
        storage.atomic_write_json(directory / CERTIFICATE, certificate)
        certificate_sha256 = storage.sha256_of(directory / CERTIFICATE)
      manifest_lib.Manifest(
        name=name or _name_of(root),
        version=version,
        created=datetime.datetime.now(datetime.UTC).isoformat(
          timespec='seconds'
        ),
        model_digest=digest,
        signature=written,
        files=files,
        parity=parity,
        min_cosine=min_cosine,
        certificate_sha256=certificate_sha256,
        extra=extra,
      ).write(directory / MANIFEST)
  return Published(
    version=version,
    path=path,
    digest=digest,
    min_cosine=parity.min_cosine,
    parity=parity,
  )


class Export:
  """A version whose hashes were verified. Models load at first use."""

  def __init__(self, path: str | os.PathLike[str]) -> None:
    """Verifies the version at `path`; errors as `open_export`."""
    self.path = pathlib.Path(path)
    with _as_export_error():
      self.manifest = _verified_manifest(self.path)
      self.certificate: dict[str, Any] | None = (
        storage.read_json(self.path / CERTIFICATE)
        if self.manifest.certificate_sha256 is not None
        else None
      )
    self.signature = self.manifest.signature

  @property
  def name(self) -> str:
    return self.manifest.name

  @property
  def version(self) -> int:
    return self.manifest.version

  @property
  def digest(self) -> str:
    """The model digest: what embeddings and indexes are stamped with."""
    return self.manifest.model_digest

  @property
  def image_shape(self) -> tuple[int, int, int]:
    return self.signature.image_shape

  @property
  def embedding_dim(self) -> int:
    return self.signature.embedding_dim

  @functools.cached_property
  def model(self) -> 'saved_model_lib.LoadedModel':
    """The SavedModel, loaded at first use."""
    from tff_dpemb.export import saved_model

    return saved_model.load(self.path / SAVED_MODEL)

  def lite_model(self, *, num_threads: int = 1) -> 'tflite_lib.LiteModel':
    """Returns a new TFLite interpreter; one thread may use it at a time."""
    from tff_dpemb.export import tflite

    return tflite.load(self.path / TFLITE, num_threads=num_threads)

  def embed(self, images: np.ndarray) -> np.ndarray:
    """Returns unit-norm float32 [N, D] of uint8 [N, H, W, C] (SavedModel)."""
    return self.model.embed(images)

  def embed_bytes(self, encoded: Sequence[bytes]) -> np.ndarray:
    """Returns unit-norm float32 [N, D] of PNG or JPEG files (SavedModel)."""
    return self.model.embed_bytes(encoded)


def open_export(path_or_root: str | os.PathLike[str]) -> Export:
  """Returns a version, or the newest whole version of a root.

  Every file is hashed. A damaged or half-copied version raises when it is
  named; under a root it is passed over with a warning.

  Raises:
    ExportError: There is no version, or none that is whole.
  """
  path = pathlib.Path(path_or_root)
  if (path / MANIFEST).exists() or path.name.isdecimal():
    return Export(path)
  found = versions(path)
  for version in reversed(found):
    try:
      return Export(path / str(version))
    except ExportError as error:
      _LOG.warning('Passed over a version that is not whole: %s', error)
  if not found:
    raise ExportError(
      f'{str(path)!r} must hold a published version, got none; run'
      ' `dpemb export` first.'
    )
  raise ExportError(
    f'{str(path)!r} must hold a whole version, got only damaged ones'
    f' {found}; publish the model again.'
  )


def versions(root: str | os.PathLike[str]) -> list[int]:
  """Returns the version numbers under `root`, ascending, whole or not."""
  root = pathlib.Path(root)
  if not root.is_dir():
    return []
  return sorted(
    int(item.name)
    for item in root.iterdir()
    if item.is_dir() and item.name.isdecimal() and int(item.name) > 0
  )


def newest_certificate(root: str | os.PathLike[str]) -> pathlib.Path | None:
  """Returns where the newest version keeps its certificate, if there is one."""
  found = versions(root)
  if not found:
    return None
  path = pathlib.Path(root) / str(found[-1]) / CERTIFICATE
  return path if path.exists() else None


def name_certificate(path: str | os.PathLike[str]) -> None:
  """Makes a version name the certificate that lies in it now (a signed one).

  Does nothing where there is no version, or one that has no certificate.

  Raises:
    ExportError: The version's manifest is damaged.
  """
  path = pathlib.Path(path)
  if not (path / SAVED_MODEL).is_dir() or not (path / MANIFEST).exists():
    return
  with _as_export_error():
    manifest = manifest_lib.Manifest.read(path / MANIFEST)
    if manifest.certificate_sha256 is not None:
      named = storage.sha256_of(path / CERTIFICATE)
      manifest.model_copy(update={'certificate_sha256': named}).write(
        path / MANIFEST
      )


def verify(path: str | os.PathLike[str]) -> list[str]:
  """Returns what is wrong with a version; empty when it is whole."""
  try:
    Export(path)
  except ExportError as error:
    return [str(error)]
  return []


def _hashes(directory: pathlib.Path) -> dict[str, str]:
  paths = [directory / TFLITE, *(directory / SAVED_MODEL).rglob('*')]
  return {
    path.relative_to(directory).as_posix(): storage.sha256_of(path)
    for path in sorted(paths)
    if path.is_file()
  }


def _verified_manifest(path: pathlib.Path) -> manifest_lib.Manifest:
  manifest = manifest_lib.Manifest.read(path / MANIFEST)
  found = _hashes(path)
  expected = manifest.files
  for file in sorted(expected.keys() | found.keys()):
    if file not in found:
      raise _damaged(path, file, 'is missing')
    if file not in expected:
      raise _damaged(path, file, 'is not in the manifest')
    if found[file] != expected[file]:
      raise _damaged(path, file, 'has another SHA-256 than the manifest')
  if TFLITE not in found or manifest.files_digest != manifest.model_digest:
    raise _damaged(path, MANIFEST, 'has another digest than its files')
  certificate = path / CERTIFICATE
  stated = manifest.certificate_sha256
  if certificate.exists() != (stated is not None):
    raise _damaged(
      path,
      CERTIFICATE,
      'is missing' if stated else 'is not in the manifest',
    )
  if stated is not None and storage.sha256_of(certificate) != stated:
    raise _damaged(path, CERTIFICATE, 'has another SHA-256 than the manifest')
  return manifest


def _damaged(path: pathlib.Path, file: str, what: str) -> ExportError:
  return ExportError(
    f'export {str(path)!r} must be whole: {file!r} {what}; copy it again or'
    ' publish the model again.'
  )


def _name_of(root: pathlib.Path) -> str:
  root = root.resolve()
  return root.parent.name if root.name == 'export' else root.name


@contextlib.contextmanager
def _as_export_error() -> Iterator[None]:
  try:
    yield
  except storage.ArtifactError as error:
    raise ExportError(str(error)) from error
  except OSError as error:
    raise ExportError(
      f'{error.filename!r} could not be used ({error.strerror}).'
    ) from error
