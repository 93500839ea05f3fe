"""A set on disk: read as written; damage and older forms are refused."""

import json
import pathlib
import shutil

import numpy as np
import pytest

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.pipelines import manifest as manifest_lib
from tff_dpemb.pipelines import synthetic_set

# Made once: later releases must go on to read it.
_KEPT = pathlib.Path(__file__).parent / 'kept' / 'synthetic'


@pytest.fixture
def made(tmp_path):
  """Returns the kept set as a release to be written elsewhere."""
  manifest = manifest_lib.Manifest.read(_KEPT / 'manifest.json')
  embeddings, labels = synthetic_set.read(_KEPT)
  return synthetic_set.SyntheticRelease(
    path=str(tmp_path / 'set'),
    manifest=manifest,
    event=manifest.plan.event(),
    embeddings=embeddings,
    labels=labels,
  )


def _content():
  return (_KEPT / 'embeddings.parquet').read_bytes()


def test_the_kept_set_is_read(made):
  assert made.embeddings.shape == (4, 8)
  np.testing.assert_array_equal(made.labels, [0, 0, 1, 1])
  np.testing.assert_allclose(
    np.linalg.norm(made.embeddings, axis=1), 1, atol=1e-6
  )
  # The first numbers of each class.
  np.testing.assert_allclose(
    made.embeddings[::2, :2],
    [[0.0382358, -0.6918685], [-0.3526502, -0.1835189]],
    atol=1e-6,
  )


def test_facts_are_those_of_the_manifest(made):
  assert made.class_names == ('class 0', 'class 1', 'nobody')
  assert made.classes == (0, 1)
  assert (made.examples, made.delta) == (4, 1e-3)
  assert made.epsilon == pytest.approx(8, abs=0.01)
  arguments = made.certificate_arguments()
  assert arguments['dropped_classes'] == ['nobody']
  assert arguments['thresholds'].startswith('a class with fewer than 6.44')
  assert [(item.name, item.times) for item in arguments['queries']] == [
    ('centres_0/counts', 1),
    ('centres_0/sums', 1),
    ('centres_1/sums', 1),
    ('centres_1/scatter', 1),
  ]
  assert 'not covered' in made.data_accesses().values()


def test_parquet_round_trip(made, tmp_path):
  content = synthetic_set.to_parquet(made.embeddings, made.labels)
  synthetic_set.write(made, _content(), certify=None)
  (pathlib.Path(made.path) / 'embeddings.parquet').write_bytes(content)
  manifest = made.manifest.to_json()
  manifest['files'] = {
    'embeddings.parquet': storage.sha256_of(
      pathlib.Path(made.path) / 'embeddings.parquet'
    )
  }
  storage.atomic_write_json(pathlib.Path(made.path, 'manifest.json'), manifest)
  embeddings, labels = synthetic_set.read(made.path)
  np.testing.assert_array_equal(embeddings, made.embeddings)
  np.testing.assert_array_equal(labels, made.labels)


def test_is_written_once(made):
  calls = []

  def certify(release, hashes):
    calls.append(hashes)
    assert release is made
    return {'certificate.json': b'{}'}

  for _ in range(2):
    synthetic_set.write(made, _content(), certify=certify)
  assert len(calls) == 1
  path = pathlib.Path(made.path)
  assert calls[0] == {
    name: storage.sha256_of(path / name)
    for name in ('embeddings.parquet', 'manifest.json')
  }
  (path / 'manifest.json').write_text('{"schema": "dpemb.synthetic/1"}')
  synthetic_set.write(made, _content(), certify=certify)
  assert len(calls) == 2
  synthetic_set.read(path)


def test_no_certificate_no_set(made):
  with pytest.raises(errors.ClusteringError, match='certify must return'):
    synthetic_set.write(made, _content(), certify=lambda *_: {})
  assert not pathlib.Path(made.path).exists()


@pytest.mark.parametrize(
  ('name', 'content', 'error', 'message'),
  [
    ('embeddings.parquet', b'x', storage.ArtifactError, 'another SHA-256'),
    ('embeddings.parquet', None, storage.ArtifactError, 'readable file.*again'),
    ('manifest.json', b'{', storage.ArtifactError, 'must be JSON'),
    ('manifest.json', None, storage.ArtifactError, 'readable file.*again'),
    (
      'manifest.json',
      json.dumps({'schema': 'dpemb.synthetic/1', 'sha256': 'a'}).encode(),
      documents.DocumentError,
      "must have schema 'dpemb.synthetic/2', got 'dpemb.synthetic/1'",
    ),
  ],
)
def test_what_is_not_as_published_is_refused(
  tmp_path, name, content, error, message
):
  shutil.copytree(_KEPT, tmp_path / 'set')
  (tmp_path / 'set' / name).unlink()
  if content is not None:
    (tmp_path / 'set' / name).write_bytes(content)
  with pytest.raises(error, match=message):
    synthetic_set.read(tmp_path / 'set')
