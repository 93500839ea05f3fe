"""What the tests of steps share: runs on stores of a few images."""

import contextlib

import numpy as np
import pytest

from launch.run import directory
from launch.run import opened
from launch.run import stamps
from launch.steps import train
from tff_dpemb import config
from tff_dpemb.data import user_store
from tff_dpemb.models import embedding_model

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


@pytest.fixture(name='trained')
def _trained(tmp_path):
  """A run of two charged rounds whose weights are random; 20 users a store."""
  rng = np.random.default_rng(0)
  for split in ('public', *_SPLITS):
    with user_store.StoreWriter(
      tmp_path / 'data' / split,
      name=split,
      image_shape=(28, 28, 1),
      label_names={'identity': [f'{split}{i}' for i in range(20)]},
    ) as writer:
      for user in range(20):
        images = rng.integers(0, 256, [3, 28, 28, 1]).astype(np.uint8)
        writer.add_user(f'{split}-{user}', images, {'identity': user})
  page = config.from_mapping(
    {
      'name': 'some',
      'data': {'directory': str(tmp_path / 'data')},
      'model': {'embedding_dim': 8},
      'privacy': {
        'clipping': 'fixed',
        'noise_multiplier': 4.0,
        'users_per_round': 8,
        'virtual_clients': 2,
        'extrapolate_to': [],
      },
      'training': {'rounds': 2},
      'export': {'parity_images': 4},
    }
  )
  paths = directory.RunDirectory(page, runs=tmp_path / 'runs')
  for folder in (paths.pretrained, paths.training):
    backbone = embedding_model.build_backbone(page.model, (28, 28, 1))
    embedding_model.save_weights(
      folder / 'weights.npz', embedding_model.get_weights(backbone)
    )
  with opened.open_run(paths) as run:
    lease = run.ledger.acquire_lease('some', 'train')
    charge = train.round_charge(run, lease)
    assert [charge(0), charge(1)] == [1, 1]
    run.ledger.release_lease(lease)
    stamps.Stamp(paths.pretrained, '').write(
      {'enabled': True, 'steps': 5, 'public_store': run.public.digest}
    )
    stamps.Stamp(paths.training, 'of training').write(
      {
        'rounds': 2,
        'replayed_rounds': 0,
        'seconds': 4.0,
        'final_clip_norm': 0.5,
        'participation': 'within',
        'plan': run.plan.to_json(),
        'plan_digest': run.plan.digest(),
        'private_store': run.private.digest,
      }
    )
    yield run
