"""Wrong input through the command line: one clear line, nothing lost.

Each case runs `dpemb` in a process of its own, as a user would.
"""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from tff_dpemb.data import user_store
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_PAGE = _ROOT / 'launch/configs/quickstart.toml'


def _dpemb(*arguments, timeout=300):
  return subprocess.run(
    [sys.executable, '-m', 'launch.cli', *map(str, arguments)],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=timeout,
  )


def _assert_one_line(result, *words):
  assert result.returncode not in (0, 1), result.stderr
  lines = [line for line in result.stderr.splitlines() if 'error:' in line]
  assert len(lines) == 1, result.stderr
  assert 'Traceback' not in result.stderr
  for word in words:
    assert word in lines[0]


@pytest.fixture
def folder(tmp_path):
  """Three users of two images each, as a folder of images."""
  root = tmp_path / 'images'
  rng = np.random.default_rng(0)
  for user in ('ann', 'ben', 'cat'):
    (root / user).mkdir(parents=True)
    for number in range(2):
      pixels = rng.integers(0, 256, [28, 28]).astype(np.uint8)
      PIL.Image.fromarray(pixels).save(root / user / f'{number}.png')
  return root


def _import(folder, tmp_path):
  return _dpemb(
    *('data', 'folder', '--input', folder, '--output', tmp_path / 'd'),
    *('--validation', 1, '--test', 1),
  )


def test_a_corrupt_image_is_named(folder, tmp_path):
  (folder / 'ben' / '1.png').write_bytes(b'\x89PNG\r\n\x1a\n cut short')
  _assert_one_line(_import(folder, tmp_path), 'ben/1.png')
  assert not (tmp_path / 'd').exists()


def test_a_missing_directory_is_named(tmp_path):
  _assert_one_line(_import(tmp_path / 'nowhere', tmp_path), 'nowhere')


def test_an_empty_user_is_refused(folder, tmp_path):
  for image in (folder / 'cat').iterdir():
    image.unlink()
  _assert_one_line(_import(folder, tmp_path), 'cat')


def _stores(root, *, private_users):
  """The four stores of a data set, 8 identities in each of the others."""
  rng = np.random.default_rng(0)
  for split in ('public', 'private', 'validation', 'test'):
    users = private_users if split == 'private' else 8
    with user_store.StoreWriter(
      root / split,
      name=split,
      image_shape=(28, 28, 1),
      label_names={'identity': [f'{split}{i}' for i in range(users)]},
    ) as writer:
      for user in range(users):
        writer.add_user(
          f'{split}-{user}',
          rng.integers(0, 256, [3, 28, 28, 1]).astype(np.uint8),
          {'identity': np.full([3], user, np.int32)},
        )


def _train(data, runs, *overrides):
  sets = [
    'name=small',
    f'data.directory={data}',
    'pretraining.enabled=false',
    'privacy.users_per_round=8',
    'privacy.virtual_clients=2',
    'training.rounds=3',
    *overrides,
  ]
  arguments = [part for value in sets for part in ('--set', value)]
  return _dpemb('train', _PAGE, '--runs', runs, *arguments)


def test_a_population_of_one_user_is_refused(tmp_path):
  _stores(tmp_path / 'data', private_users=1)
  result = _train(tmp_path / 'data', tmp_path / 'runs')
  _assert_one_line(result, 'population must be at least 2 users, got 1')


def test_an_unknown_key_names_the_nearest_one(tmp_path):
  result = _dpemb(
    'train', _PAGE, '--runs', tmp_path, '--set', 'training.round=3'
  )
  _assert_one_line(result, "'training.round'", "'training.rounds'")
  assert not list(tmp_path.iterdir())


def test_a_missing_data_set_is_named(tmp_path):
  _assert_one_line(_train(tmp_path / 'nowhere', tmp_path / 'runs'), 'nowhere')


def test_a_port_in_use_is_named(tmp_path):
  with socket.socket() as other:
    other.bind(('127.0.0.1', 0))
    other.listen()
    port = other.getsockname()[1]
    from serving import server

    with pytest.raises(Exception, match=str(port)):
      server.check_can_listen('127.0.0.1', port)


@contextlib.contextmanager
def _small_disk(path, *, size):
  path.mkdir()
  mounted = subprocess.run(
    ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(path)],
    capture_output=True,
  )
  if mounted.returncode != 0:
    pytest.skip('a full disk needs the right to mount a tmpfs (root)')
  try:
    yield path
  finally:
    subprocess.run(['umount', str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason='mounting a tmpfs needs root')
def test_a_full_disk_loses_nothing_and_the_run_goes_on(tmp_path):
  _stores(tmp_path / 'data', private_users=30)
  with _small_disk(tmp_path / 'disk', size='5m') as disk:
    first = _train(tmp_path / 'data', disk / 'runs', 'training.rounds=8')
    _assert_one_line(first, 'free space')
    url = disk / 'runs' / 'ledger.sqlite'
    subprocess.run(['mount', '-o', 'remount,size=60m', str(disk)], check=True)
    with ledger_lib.Ledger.open(url) as ledger:
      before = len(ledger.entries(kind='draw'))
      assert ledger.verify() == []
    second = _train(tmp_path / 'data', disk / 'runs', 'training.rounds=8')
    assert second.returncode == 0, second.stderr
    with ledger_lib.Ledger.open(url) as ledger:
      draws = ledger.entries(kind='draw')
      assert ledger.verify() == []
    assert len(draws) >= 8
    assert len(draws) >= before
    assert sorted({entry.round_number for entry in draws}) == list(range(8))


def test_a_spent_budget_stops_the_run_and_a_raised_one_resumes_it(tmp_path):
  _stores(tmp_path / 'data', private_users=30)
  page = (
    'privacy.clipping=fixed',
    'privacy.noise_multiplier=2.0',
    'privacy.budget_epsilon=0.9',
  )
  runs = tmp_path / 'runs'
  spent = _train(tmp_path / 'data', runs, *page)
  assert spent.returncode == 4, spent.stderr
  _assert_one_line(spent, 'budget', 'dpemb ledger budget')
  url = runs / 'ledger.sqlite'
  with ledger_lib.Ledger.open(url) as ledger:
    before = len(ledger.entries(kind='draw'))
    budget = ledger.budget('glyphs-bundled')
  assert 0 < before < 3
  raised = _dpemb(
    *('ledger', 'budget', 'glyphs-bundled', '--ledger', url),
    *('--epsilon', 50, '--delta', repr(budget.delta), '--replace'),
    *('--approved-by', 'a test'),
  )
  assert raised.returncode == 0, raised.stderr
  resumed = _train(tmp_path / 'data', runs, *page)
  assert resumed.returncode == 0, resumed.stderr
  assert "not the page's 0.9" in resumed.stderr
  with ledger_lib.Ledger.open(url) as ledger:
    assert len(ledger.entries(kind='draw')) == 3


def test_a_run_may_not_take_the_ledgers_name(tmp_path):
  result = _dpemb(
    'train', _PAGE, '--runs', tmp_path, '--set', 'name=ledger.sqlite'
  )
  _assert_one_line(result, "must not start with 'ledger.sqlite'")
