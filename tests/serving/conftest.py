"""Fixtures of the serving tests: one export, one index, one service."""

import dataclasses
import io
import json
import os
import pathlib
import shutil

import numpy as np
import PIL.Image
import pytest

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('GRPC_VERBOSITY', 'NONE')

IMAGE_SHAPE = (12, 10, 3)
CERTIFICATE = {
  'kind': 'model',
  'simulation': False,
  'unit': {'unit': 'user'},
  'adjacency': {'relation': 'add-or-remove-one-user'},
  'accounting': {'epsilon': 3.5, 'delta': 1e-5},
}


@dataclasses.dataclass(frozen=True)
class Gallery:
  """Held-out images, what the export makes of them, and their index."""

  images: np.ndarray
  embeddings: np.ndarray
  path: pathlib.Path


@pytest.fixture(scope='session')
def random_images():
  """Returns a function: count -> uint8 [count, H, W, C]."""

  def make(count, image_shape=IMAGE_SHAPE, *, seed=1):
    return np.random.default_rng(seed).integers(
      0, 256, [count, *image_shape], dtype=np.uint8
    )

  return make


@pytest.fixture(scope='session')
def encode():
  """Returns a function: image [H, W, C] -> bytes of a file."""

  def make(image, form='PNG', **options):
    file = io.BytesIO()
    PIL.Image.fromarray(np.squeeze(image)).save(file, form, **options)
    return file.getvalue()

  return make


@pytest.fixture(scope='session')
def export(tmp_path_factory, random_images):
  """A certified export of a small convolutional backbone."""
  import tensorflow as tf

  from tff_dpemb.export import registry

  images = tf.keras.Input(IMAGE_SHAPE)
  hidden = tf.keras.layers.Conv2D(6, 3, activation='relu')(images)
  hidden = tf.keras.layers.Flatten()(hidden)
  model = tf.keras.Model(images, tf.keras.layers.Dense(16)(hidden))
  rng = np.random.default_rng(0)
  model.set_weights(
    [rng.normal(0, 0.3, w.shape).astype(np.float32) for w in model.weights]
  )
  published = registry.publish(
    tmp_path_factory.mktemp('faces') / 'export',
    model,
    image_shape=IMAGE_SHAPE,
    parity_images=random_images(8),
    min_cosine=0.9999,
    certificate=lambda digest: {
      **CERTIFICATE,
      'provenance': {'artifact_digest': digest},
    },
    name='faces',
  )
  return registry.open_export(published.path)


@pytest.fixture
def recertified(export, tmp_path):
  """Returns a function: certificate or None -> path of a copy with it."""

  def make(certificate):
    path = tmp_path / 'recertified' / '1'
    shutil.copytree(export.path, path)
    manifest = json.loads((path / 'manifest.json').read_text())
    (path / 'certificate.json').unlink()
    manifest['certificate_sha256'] = None
    if certificate is not None:
      from tff_dpemb.artifacts import storage

      storage.atomic_write_json(path / 'certificate.json', certificate)
      manifest['certificate_sha256'] = storage.sha256_of(
        path / 'certificate.json'
      )
    (path / 'manifest.json').write_text(json.dumps(manifest))
    return path

  return make


@pytest.fixture(scope='session')
def gallery(export, random_images, tmp_path_factory):
  from serving import index as index_lib

  images = random_images(60, seed=7)
  images[30] = images[5]  # An exact tie.
  embeddings = export.embed(images)
  path = tmp_path_factory.mktemp('gallery') / 'index'
  index_lib.build(
    path,
    embeddings,
    [f'item-{i}' for i in range(60)],
    [f'class-{i % 7}' for i in range(60)],
    model_digest=export.digest,
  )
  return Gallery(images, embeddings, path)


@pytest.fixture(scope='session')
def service(export, gallery):
  """A service with a small `max_images`, so that clients must split."""
  from serving import images as images_lib
  from serving import index as index_lib
  from serving import model_store
  from serving import servicer

  return servicer.Service(
    model_store.ServedModel(export, workers=2),
    index=index_lib.load(gallery.path),
    limits=images_lib.Limits(
      max_images=32,
      max_message_bytes=64 * 1024,
      max_pixels=10_000,
      max_request_pixels=25_000,
      max_neighbours=50,
    ),
  )


@pytest.fixture(scope='session')
def address(service):
  """Address of a server of `service` on a free port."""
  from serving import server

  options = server.ServerOptions(workers=2, drain_seconds=0.0)
  with server.running(service, options) as bound:
    yield bound
