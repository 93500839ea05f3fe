"""A small world on disk: stores of labelled images and a linear encoder.

And a file system that is no disk: `memory://`.
"""

import contextlib
import hashlib
import io
import pathlib
import shutil
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from apache_beam.io import filesystem

from tff_dpemb import config
from tff_dpemb.clustering import noise
from tff_dpemb.data import user_store
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import publish

SHAPE = (4, 4, 1)
CLASSES = 4
EMBEDDING_DIM = 8
DELTA = 1e-3

# Workers of other processes cannot import this file: send it with the job.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class LinearEncoder:
  """Stands for an export: a fixed random map, then unit norm."""

  embedding_dim = EMBEDDING_DIM

  def __init__(self, path):
    self.digest = hashlib.sha256(str(path).encode()).hexdigest()
    self._matrix = np.random.default_rng(0).normal(size=(16, EMBEDDING_DIM))

  def embed(self, images):
    assert images.dtype == np.uint8
    x = (images.reshape(len(images), -1) / 127.5 - 1) @ self._matrix
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def open_encoder(path):
  return LinearEncoder(path)


def write_store(
  path,
  users,
  *,
  seed,
  images=4,
  shard_bytes=64 << 20,
  first_names=(),
  class_format='class {}',
):
  """Writes `users` users; a user's class decides the mean image.

  `first_names` are categories, before the others, that no user has.
  """
  rng = np.random.default_rng(seed)
  means = np.random.default_rng(99).uniform(40, 215, (CLASSES, *SHAPE))
  with user_store.StoreWriter(
    path,
    name=pathlib.Path(path).name,
    image_shape=SHAPE,
    label_names={
      'category': [
        *first_names,
        *(class_format.format(i) for i in range(CLASSES)),
      ]
    },
    shard_bytes=shard_bytes,
  ) as writer:
    for user in range(users):
      label = int(rng.integers(CLASSES))
      pixels = means[label] + rng.normal(size=(images, *SHAPE)) * 25
      pixels = np.clip(pixels, 0, 255).astype(np.uint8)
      writer.add_user(
        f'user-{user}', pixels, {'category': label + len(first_names)}
      )
    # A user that comes again, in another shard and another class.
    writer.add_user('user-0', pixels, {'category': len(first_names)})
  return path


@pytest.fixture(scope='session')
def stores(tmp_path_factory):
  """Returns the directory of stores `private` (3 shards) and `public`."""
  root = tmp_path_factory.mktemp('stores')
  write_store(root / 'private', 300, seed=1, shard_bytes=8000)
  write_store(root / 'public', 80, seed=2)
  write_store(root / 'test', 60, seed=3)
  return root


@pytest.fixture(scope='session')
def encoder():
  return open_encoder


@pytest.fixture(scope='session', name='write_store')
def write_store_fixture():
  return write_store


@pytest.fixture
def settings():
  return config.SynthesisConfig(
    class_names=tuple(f'class {i}' for i in range(CLASSES)),
    projection_dim=5,
    examples_per_class=100,
    hidden_units=16,
  )


@pytest.fixture(scope='session')
def embedded(stores, tmp_path_factory, encoder):
  """Returns a restricted folder in which the stores are embedded already."""
  restricted = tmp_path_factory.mktemp('embedded')
  for name, directory in (
    ('private', publish.PRIVATE),
    ('public', publish.PUBLIC),
  ):
    embed.embed(
      store=stores / name,
      export='model-1',
      label='category',
      directory=restricted / directory,
      open_export=encoder,
    )
  return restricted


@pytest.fixture
def call(stores, tmp_path, encoder, settings, embedded):
  """Returns a function that publishes; `call.request` is what it asked for."""
  charged = []

  def run(**overrides):
    restricted = overrides.get('restricted', tmp_path / 'restricted')
    if not restricted.exists():
      shutil.copytree(embedded, restricted)
    arguments = dict(
      private_store=stores / 'private',
      public_store=stores / 'public',
      export='model-1',
      output=tmp_path / 'synthetic',
      restricted=tmp_path / 'restricted',
      config=settings,
      delta=DELTA,
      charge=lambda event, name: charged.append((event, name)),
      release='run/synthetic',
      open_export=encoder,
      source=noise.SeededGaussian(0),
    )
    run.request = publish.Request(**{**arguments, **overrides})
    return publish.run(run.request)

  run.charged = charged
  return run


class MemoryFiles(filesystem.FileSystem):
  """A bucket in this process: objects appear when they are closed.

  Beam finds it by its scheme, as any that is defined.
  """

  objects: dict[str, bytes] = {}
  threads: set[int] = set()  # that wrote
  renames_replace = True
  fails_to_write = ''  # names that end so break off half-way
  _lock = threading.RLock()

  @classmethod
  def scheme(cls):
    return 'memory'

  def join(self, basepath, *paths):
    return '/'.join([basepath.rstrip('/'), *paths])

  def split(self, path):
    return tuple(path.rsplit('/', 1))

  def mkdirs(self, path):
    pass

  def has_dirs(self):
    return False

  def _list(self, dir_or_prefix):
    with self._lock:
      names = [n for n in self.objects if n.startswith(dir_or_prefix)]
    return [self.metadata(name) for name in names]

  @contextlib.contextmanager
  def create(self, path, mime_type='', compression_type=None):
    buffer = io.BytesIO()
    if self.fails_to_write and self.fails_to_write in path:
      self.objects[path] = b'half'
      raise ConnectionError('broken off')
    yield buffer
    with self._lock:
      self.objects[path] = buffer.getvalue()
      self.threads.add(threading.get_ident())

  def open(self, path, mime_type='', compression_type=None):
    with self._lock:
      if path not in self.objects:
        raise KeyError(path)  # Of a client library: no OSError.
      return io.BytesIO(self.objects[path])

  def copy(self, source_file_names, destination_file_names):
    raise NotImplementedError

  def rename(self, source_file_names, destination_file_names):
    with self._lock:
      for old, new in zip(source_file_names, destination_file_names):
        if new in self.objects and not self.renames_replace:
          raise filesystem.BeamIOError('the name is taken')
        self.objects[new] = self.objects.pop(old)

  def exists(self, path):
    return path in self.objects

  def size(self, path):
    return len(self.objects[path])

  def last_updated(self, path):
    return 0.0

  def metadata(self, path):
    return filesystem.FileMetadata(path, self.size(path))

  def delete(self, paths):
    with self._lock:
      for path in paths:
        del self.objects[path]


@pytest.fixture
def memory(monkeypatch):
  """Returns the empty bucket `memory://`."""
  monkeypatch.setattr(MemoryFiles, 'objects', {})
  monkeypatch.setattr(MemoryFiles, 'threads', set())
  monkeypatch.setattr(MemoryFiles, 'renames_replace', True)
  monkeypatch.setattr(MemoryFiles, 'fails_to_write', '')
  return MemoryFiles
