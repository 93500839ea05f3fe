"""Where the first weights come from."""

import pytest

from launch.run import stamps
from launch.steps import data
from launch.steps import pretrain


def test_without_public_images_training_starts_from_random_weights(
  open_without_public,
):
  run = open_without_public(pretraining=False)
  data.data(run)
  pretrain.pretrain(run)
  assert (run.paths.pretrained / 'weights.npz').exists()
  found = run.read_done(run.paths.pretrained, 'pretrain')
  assert found['enabled'] is False and found['public_store'] == ''


def test_what_needs_public_images_names_the_option(open_without_public):
  run = open_without_public(pretraining=True)
  for step in (data.data, pretrain.pretrain, lambda run: run.public):
    with pytest.raises(stamps.StageError, match='data folder --public DIR'):
      step(run)
