"""Tests of tff_dpemb.export.registry."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tff_dpemb.export import registry

SHAPE = (12, 10, 3)


@pytest.fixture
def version_copy(published, tmp_path):
  """A copy of the published version that a test may damage."""
  shutil.copytree(published.path, tmp_path / 'export' / '1')
  return tmp_path / 'export' / '1'


def _publish(root, model, images, **changes):
  arguments = {
    'image_shape': SHAPE,
    'parity_images': images,
    'min_cosine': 0.9999,
    'certificate': None,
  } | changes
  return registry.publish(root, model, **arguments)


def test_published_version(published):
  assert published.version == 1
  assert published.path.name == '1'
  assert published.min_cosine >= 0.9999
  assert len(published.digest) == 64
  export = registry.open_export(published.path)
  assert export.digest == published.digest
  assert export.name == 'faces'
  assert export.image_shape == SHAPE
  assert export.embedding_dim == 8
  assert export.certificate == {'schema': 'test', 'simulation': False}
  assert export.manifest.extra.config_digest == 'ab' * 32
  assert export.manifest.parity == published.parity
  assert export.manifest.min_cosine == 0.9999
  assert registry.verify(published.path) == []


def test_second_version_certificate_and_digest(
  version_copy, build_conv, random_images
):
  """The digest follows the weights, not the certificate."""
  root = version_copy.parent
  first = registry.open_export(root)
  second = _publish(
    root,
    build_conv(seed=9),
    random_images(4),
    certificate=lambda digest: {'model': digest},
  )
  assert second.version == 2
  latest = registry.open_export(root)
  assert latest.version == 2
  assert latest.name == root.parent.name
  assert latest.digest == second.digest != first.digest
  assert latest.certificate == {'model': second.digest}
  shutil.copytree(second.path, root / '7')
  assert registry.open_export(root / '7').digest == second.digest


def test_below_the_gate_nothing_is_published(
  tmp_path, conv_model, build_conv, random_images, monkeypatch
):
  from tff_dpemb.export import saved_model

  monkeypatch.setattr(
    saved_model, 'usable_copy', lambda backbone: build_conv(seed=4)
  )
  with pytest.raises(
    registry.ParityError, match='min_cosine must be >= 0.9999, got'
  ):
    _publish(tmp_path, conv_model, random_images(4))
  assert [p.name for p in tmp_path.iterdir()] == ['.lock']


def test_layer_that_fixes_the_batch_is_refused(tmp_path, random_images):
  """Keras' GroupNormalization converts but does not run with a free batch."""
  import tensorflow as tf

  model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(SHAPE),
      tf.keras.layers.Conv2D(8, 3),
      tf.keras.layers.GroupNormalization(4),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(4),
    ]
  )
  with pytest.raises(registry.ExportError) as caught:
    _publish(tmp_path, model, random_images(4))
  assert '\n' not in str(caught.value)
  assert registry.versions(tmp_path) == []


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'min_cosine': 0.0}, r'min_cosine must be in \(0, 1\], got 0.0'),
    ({'image_shape': (28, 28, 1)}, 'image_shape must be'),
    ({'parity_images': np.zeros([0, *SHAPE], np.uint8)}, 'at least 1 image'),
    ({'parity_images': np.zeros([1, *SHAPE], np.float32)}, 'parity_images'),
  ],
)
def test_bad_arguments(tmp_path, conv_model, random_images, changes, message):
  with pytest.raises(registry.ExportError, match=message):
    _publish(tmp_path, conv_model, random_images(2), **changes)
  assert registry.versions(tmp_path) == []


def _truncate(path):
  data = (path / 'model.tflite').read_bytes()
  (path / 'model.tflite').write_bytes(data[:-1])


def _edit_manifest(path):
  manifest = json.loads((path / 'manifest.json').read_text())
  manifest['model_digest'] = '0' * 64
  (path / 'manifest.json').write_text(json.dumps(manifest))


def _edit_certificate(path):
  (path / 'certificate.json').write_text('{"simulation": false, "epsilon": 1}')


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (_truncate, "'model.tflite' has another SHA-256"),
    (_edit_manifest, 'has another digest than its files'),
    (_edit_certificate, "'certificate.json' has another SHA-256"),
    (
      lambda p: (p / 'certificate.json').unlink(),
      "'certificate.json' is missing",
    ),
    (lambda p: (p / 'model.tflite').unlink(), "'model.tflite' is missing"),
    (lambda p: (p / 'manifest.json').unlink(), 'must be a readable file'),
    (lambda p: (p / 'manifest.json').write_text('{'), 'must be JSON'),
    (lambda p: (p / 'manifest.json').write_text('{}'), 'must have schema'),
    (
      lambda p: (p / 'manifest.json').write_text(
        '{"schema": "dpemb.export/1"}'
      ),
      "'dpemb.export/2', got 'dpemb.export/1'; publish the model again",
    ),
    (
      lambda p: (p / 'manifest.json').write_text(
        '{"schema": "dpemb.export/2"}'
      ),
      'version must be there',
    ),
    (
      lambda p: (p / 'saved_model' / 'more').write_text(''),
      "'saved_model/more' is not in the manifest",
    ),
    (
      lambda p: (p / 'saved_model' / 'saved_model.pb').unlink(),
      "'saved_model/saved_model.pb' is missing",
    ),
  ],
)
def test_a_damaged_version_is_never_opened(version_copy, damage, message):
  damage(version_copy)
  with pytest.raises(registry.ExportError, match=message) as caught:
    registry.open_export(version_copy)
  assert '\n' not in str(caught.value)
  assert registry.verify(version_copy) == [str(caught.value)]
  with pytest.raises(registry.ExportError, match='only damaged ones'):
    registry.open_export(version_copy.parent)


def test_the_newest_certificate_is_that_of_the_newest_version(tmp_path):
  root = tmp_path / 'export'
  assert registry.newest_certificate(root) is None
  for version in (2, 10):
    (root / str(version)).mkdir(parents=True)
    (root / str(version) / 'certificate.json').write_text('{}')
  newest = root / '10' / 'certificate.json'
  assert registry.newest_certificate(root) == newest
  newest.unlink()
  assert registry.newest_certificate(root) is None


def test_an_older_whole_version_stands_in(version_copy, caplog):
  half = version_copy.parent / '2'
  half.mkdir()
  shutil.copy(version_copy / 'manifest.json', half)
  assert registry.open_export(version_copy.parent).version == 1
  assert 'not whole' in caplog.text


@pytest.mark.parametrize('make', [True, False])
def test_no_version(tmp_path, make):
  root = tmp_path / 'export'
  if make:
    root.mkdir()
  with pytest.raises(
    registry.ExportError, match='a published version, got none'
  ):
    registry.open_export(root)


def test_opening_does_not_import_tensorflow(published):
  program = (
    'import sys\n'
    'from tff_dpemb.export import registry\n'
    'print(registry.open_export(sys.argv[1]).digest)\n'
    'assert "tensorflow" not in sys.modules\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', program, str(published.path)],
    check=True,
    capture_output=True,
    text=True,
    timeout=30,
  )
  assert result.stdout.strip() == published.digest
