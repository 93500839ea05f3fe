"""Tests of serving.model_store."""

import concurrent.futures

import numpy as np
import pytest

from serving import model_store
from serving import status
from tff_dpemb.export import registry

GOOD = {
  'kind': 'model',
  'simulation': False,
  'accounting': {'epsilon': 1.0, 'delta': 1e-6},
}
_OF_IT = object()  # Stands for the digest of the export.


@pytest.mark.parametrize(
  ('certificate', 'reason'),
  [
    (None, 'no certificate'),
    (GOOD | {'simulation': True}, 'a certificate of a simulation'),
    (GOOD | {'simulation': 'no'}, 'a certificate of a simulation'),
    (
      GOOD | {'provenance': {'artifact_digest': '0' * 64}},
      'the certificate of another model',
    ),
    (
      GOOD
      | {
        'provenance': {'artifact_digest': _OF_IT},
        'accounting': {'epsilon': None, 'delta': 1e-6},
      },
      'a certificate without a guarantee',
    ),
    (
      GOOD | {'kind': 'synthetic', 'provenance': {'artifact_digest': _OF_IT}},
      'a certificate that is not of a model',
    ),
    ({}, 'a certificate that is not of a model'),
    (GOOD, 'a certificate that does not say of which model'),
    (
      GOOD | {'provenance': {'artifact_digest': ''}},
      'a certificate that does not say of which model',
    ),
  ],
)
def test_unprotected_export_is_refused_unless_asked(
  recertified, export, certificate, reason
):
  named = (certificate or {}).get('provenance', {})
  if named.get('artifact_digest') is _OF_IT:
    named = {'artifact_digest': export.digest}
    certificate = certificate | {'provenance': named}
  path = recertified(certificate)
  with pytest.raises(status.UnprotectedExport) as caught:
    model_store.open_for_serving(path)
  assert str(caught.value) == (
    f'export {str(path)!r} must have a certificate of a real run, got'
    f' {reason}; publish a certified model, or serve it knowingly with'
    ' --allow-unprotected.'
  )
  opened = model_store.open_for_serving(path, allow_unprotected=True)
  assert opened.certificate == certificate


def test_certified_export_is_opened(recertified, export):
  good = GOOD | {'provenance': {'artifact_digest': export.digest}}
  opened = model_store.open_for_serving(recertified(good))
  summary = model_store.privacy_summary(opened)
  assert (summary.epsilon, summary.delta) == (1.0, 1e-6)
  assert summary.certified
  assert not summary.simulation


def test_damaged_export_is_refused(recertified):
  path = recertified(GOOD)
  (path / 'model.tflite').unlink()
  with pytest.raises(registry.ExportError, match='is missing'):
    model_store.open_for_serving(path, allow_unprotected=True)


@pytest.mark.parametrize('backend', model_store.BACKENDS)
def test_many_threads_get_their_own_answers(export, random_images, backend):
  """More callers than interpreters, with batches of different sizes."""
  model = model_store.ServedModel(export, backend=backend, workers=2)
  batches = [random_images(1 + i % 5, seed=i) for i in range(60)]
  expected = [export.embed(batch) for batch in batches]
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    actual = list(pool.map(model.embed, batches))
  for one, other in zip(actual, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_bad_arguments(export):
  with pytest.raises(ValueError, match='workers must be >= 1, got 0'):
    model_store.ServedModel(export, workers=0)
  with pytest.raises(ValueError, match='backend must be in'):
    model_store.ServedModel(export, backend='onnx')
