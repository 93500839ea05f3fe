"""One owned TFF worker for the tests of this folder."""

import pytest

from tff_dpemb import config
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
