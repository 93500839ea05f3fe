"""What the tests of steps share: runs on stores of a few images."""

import contextlib

import numpy as np
import pytest

from launch.run import directory
from launch.run import opened
from tff_dpemb import config
from tff_dpemb.data import user_store

_SPLITS = ('private', 'validation', 'test')


@pytest.fixture(name='open_without_public')
def _open_without_public(tmp_path):
  """Opens runs on a data set without public images; closes them."""
  with contextlib.ExitStack() as closing:
    yield lambda **options: _run_without_public_images(
      closing, tmp_path, **options
    )


def _run_without_public_images(
  closing, folder, *, pretraining, population='some', splits=_SPLITS
):
  """Two private users and as many held-out ones."""
  for split in splits:
    if (folder / 'data' / split).exists():
      continue
    with user_store.StoreWriter(
      folder / 'data' / split,
      name=split,
      image_shape=(28, 28, 1),
      label_names={'identity': ['0', '1']},
    ) as writer:
      for user in range(2):
        images = np.zeros([1, 28, 28, 1], np.uint8)
        writer.add_user(f'{split}-{user}', images, {'identity': user})
  page = config.from_mapping(
    {
      'name': 'some',
      'data': {'directory': str(folder / 'data')},
      'model': {'embedding_dim': 8},
      'pretraining': {'enabled': pretraining},
      'privacy': {'population': population},
    }
  )
  paths = directory.RunDirectory(page, runs=folder / 'runs')
  return closing.enter_context(opened.open_run(paths))
