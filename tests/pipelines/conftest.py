"""A small world on disk: stores of labelled images and a linear encoder."""

import hashlib
import pathlib
import sys

import cloudpickle
import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.data import user_store

SHAPE = (4, 4, 1)
CLASSES = 4
EMBEDDING_DIM = 8

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
  path, users, *, seed, images=4, shard_bytes=64 << 20, first_names=()
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
      'category': [*first_names, *(f'class {i}' for i in range(CLASSES))]
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
