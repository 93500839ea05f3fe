"""The served model: which export may be served, and how it is computed.

TFLite is the default on a CPU: one image costs a fraction of the SavedModel's
CPU time, and a batch costs no more. Its interpreters are not thread-safe, so
each call borrows one from a pool.
"""

import contextlib
import math
import os
import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from protos.gen.dpemb.serving.v1 import model_service_pb2
from serving import status
from tff_dpemb.export import registry

BACKENDS = ('tflite', 'saved_model')


def open_for_serving(
  path: str | os.PathLike[str], *, allow_unprotected: bool = False
) -> registry.Export:
  """Returns the export at `path`, if it may be served.

  Args:
    path: A version, or the root of versions (then the newest whole one).
    allow_unprotected: Whether a model that protects nobody may be served.

  Raises:
    tff_dpemb.export.registry.ExportError: The export is missing or not whole.
    status.UnprotectedExport: It has no certificate, or one that is not of a
      model, of a simulation, of another model or without a guarantee.
  """
  export = registry.open_export(path)
  what = unprotected_reason(export)
  if what and not allow_unprotected:
    raise status.UnprotectedExport(
      f'export {str(export.path)!r} must have a certificate of a real run, got'
      f' {what}; publish a certified model, or serve it knowingly with'
      ' --allow-unprotected.'
    )
  return export


def unprotected_reason(export: registry.Export) -> str:
  """Returns why nobody is protected by an export; empty if somebody is.

  The certificate is read, not verified: `dpemb certificate verify` recomputes
  its accounting.
  """
  certificate = export.certificate
  if certificate is None:
    return 'no certificate'
  if certificate.get('kind') != 'model':
    return 'a certificate that is not of a model'
  if certificate.get('simulation', False) is not False:
    return 'a certificate of a simulation'
  certified = _part(certificate, 'provenance').get('artifact_digest')
  if not certified:
    return 'a certificate that does not say of which model'
  if certified != export.digest:
    return 'the certificate of another model'
  if _number(_part(certificate, 'accounting').get('epsilon')) is None:
    return 'a certificate without a guarantee'
  return ''


def check_index(index_model_digest: str, export: registry.Export) -> None:
  """Refuses an index of another model than the export.

  Raises:
    status.ModelMismatch: The digests differ.
  """
  if index_model_digest != export.digest:
    raise status.ModelMismatch(
      f'the index must be of the served model {export.digest}, got one of'
      f' {index_model_digest}; build it again with `dpemb index`.'
    )


def privacy_summary(
  export: registry.Export,
) -> model_service_pb2.PrivacySummary:
  """Returns what the certificate promises, in short."""
  certificate = export.certificate
  if certificate is None:
    return model_service_pb2.PrivacySummary()
  accounting = _part(certificate, 'accounting')
  return model_service_pb2.PrivacySummary(
    certified=True,
    simulation=certificate.get('simulation', False) is not False,
    epsilon=_number(accounting.get('epsilon')),
    delta=_number(accounting.get('delta')),
    adjacency=str(_part(certificate, 'adjacency').get('relation', '')),
    unit=str(_part(certificate, 'unit').get('unit', '')),
  )


def _part(certificate: Mapping[str, Any], name: str) -> Mapping[str, Any]:
  part = certificate.get(name)
  return part if isinstance(part, Mapping) else {}


def _number(value: Any) -> float | None:
  """Returns a finite number, or None: a certificate writes no infinity."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  return float(value) if math.isfinite(value) else None


class ServedModel:
  """A model in memory that several threads may call.

  Attributes:
    export: The verified export.
    backend: Which artefact computes.
  """

  def __init__(
    self,
    export: registry.Export,
    *,
    backend: str = 'tflite',
    workers: int = 1,
  ) -> None:
    """Loads and warms up: the first request must not pay for it.

    Args:
      export: From `open_for_serving`.
      backend: 'tflite' or 'saved_model'.
      workers: Threads that will call at the same time, >= 1.

    Raises:
      status.InvalidValue: An argument breaks a rule.
    """
    if workers < 1:
      raise status.InvalidValue(f'workers must be >= 1, got {workers}.')
    self.export = export
    self.backend = backend
    self._pool: queue.SimpleQueue[Callable[[np.ndarray], np.ndarray]] = (
      queue.SimpleQueue()
    )
    blank = np.zeros([1, *export.image_shape], np.uint8)
    embed: Callable[[np.ndarray], np.ndarray]
    for _ in range(workers):
      match backend:
        case 'tflite':
          embed = export.lite_model().embed
        case 'saved_model':
          embed = export.embed
        case _:
          raise status.InvalidValue(
            f'backend must be in {BACKENDS}, got {backend!r}.'
          )
      embed(blank)
      self._pool.put(embed)

  def embed(self, images: np.ndarray) -> np.ndarray:
    """Returns unit-norm float32 [N, D] of uint8 [N, H, W, C]."""
    with self._borrowed() as embed:
      return embed(images)

  def version(self) -> model_service_pb2.ModelVersion:
    """Returns what identifies the model."""
    return model_service_pb2.ModelVersion(
      name=self.export.name,
      version=self.export.version,
      digest=self.export.digest,
    )

  def model_signature(self) -> model_service_pb2.ModelSignature:
    """Returns the shapes of input and output."""
    height, width, channels = self.export.image_shape
    return model_service_pb2.ModelSignature(
      height=height,
      width=width,
      channels=channels,
      embedding_dim=self.export.embedding_dim,
    )

  @contextlib.contextmanager
  def _borrowed(self) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    embed = self._pool.get()
    try:
      yield embed
    finally:
      self._pool.put(embed)
