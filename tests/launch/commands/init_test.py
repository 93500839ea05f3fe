"""`dpemb init` as a shell would run it; what it prints is what comes next."""

import shlex

import numpy as np
import PIL.Image
import pytest

from tff_dpemb.data import data_sets


@pytest.fixture(name='images')
def _images(tmp_path):
  rng = np.random.default_rng(0)
  for identity in range(20):
    folder = tmp_path / 'my images' / str(identity)
    folder.mkdir(parents=True)
    for number in range(2):
      pixels = rng.integers(0, 256, [40, 40, 3]).astype(np.uint8)
      PIL.Image.fromarray(pixels).save(folder / f'{number}.jpg')
  return tmp_path / 'my images'


def _commands(result):
  lines = result.output.partition('next:\n')[2].splitlines()
  words = [shlex.split(line) for line in lines]
  assert all(line[0] == 'dpemb' for line in words)
  return [line[1:] for line in words]


def test_the_commands_it_prints_lead_on(run, images, tmp_path):
  result = run('init', tmp_path / 'faces', '--images', images)
  assert result.exit_code == 0, result.errors
  assert 'found: 20 identities with 40 images, 2 to 2 each' in result.output
  assert 'a simulation, which protects nobody' in result.output
  first, second = _commands(result)
  assert second == ['quickstart', str(tmp_path / 'faces' / 'page.toml')]
  made = run(*first)
  assert made.exit_code == 0, made.errors
  assert data_sets.verify(tmp_path / 'faces' / 'data') == {
    'private': 14,
    'validation': 2,
    'test': 4,
  }
  again = run('init', tmp_path / 'faces', '--images', images)
  assert again.exit_code == 2 and 'never overwritten' in again.errors


def test_the_images_may_lie_beside_the_page(run, images, tmp_path):
  images.rename(tmp_path / 'faces')
  (tmp_path / 'faces').rename(tmp_path / 'images')
  (tmp_path / 'faces').mkdir()
  (tmp_path / 'images').rename(tmp_path / 'faces' / 'images')
  result = run(
    'init', tmp_path / 'faces', '--public', tmp_path / 'faces' / 'images'
  )
  assert result.exit_code == 0, result.errors
  first, _ = _commands(result)
  for flag in ('--input', '--public'):
    assert first[first.index(flag) + 1] == str(tmp_path / 'faces' / 'images')


def test_without_images_the_flag_is_named(run, tmp_path):
  result = run('init', tmp_path / 'faces')
  assert result.exit_code == 2
  assert '--images must be a directory' in result.errors
  assert not (tmp_path / 'faces').exists()
