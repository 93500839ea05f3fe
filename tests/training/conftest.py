"""One owned TFF worker, backbone and store for the tests of this folder."""

import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.data import user_store
from tff_dpemb.models import embedding_model
from tff_dpemb.training.execution import executors

IMAGE_SHAPE = (8, 8, 1)


@pytest.fixture(scope='session')
def tff_worker():
  """A running worker, set as TFF's default context."""
  with executors.local() as worker:
    yield worker


@pytest.fixture(scope='session')
def backbone():
  """A tiny backbone: 8 x 8 images to 8 dimensions."""
  return embedding_model.build_backbone(
    config.ModelConfig(embedding_dim=8), IMAGE_SHAPE
  )


@pytest.fixture(scope='session')
def pure(backbone):
  """The tiny backbone as a pure function."""
  return embedding_model.lift(backbone)


@pytest.fixture(scope='session')
def store(tmp_path_factory):
  """40 users of 5 images; user i owns identity i alone."""
  path = tmp_path_factory.mktemp('data') / 'private'
  rng = np.random.default_rng(0)
  with user_store.StoreWriter(
    path,
    name='private',
    image_shape=(8, 8, 1),
    label_names={'identity': [f'{i}' for i in range(40)]},
  ) as writer:
    for user in range(40):
      writer.add_user(
        f'user-{user}',
        rng.integers(0, 256, [5, 8, 8, 1]).astype(np.uint8),
        {'identity': np.full([5], user, np.int32)},
      )
  return user_store.UserStore.open(path)
