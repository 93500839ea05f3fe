"""What is opened once for a command, and what opening refuses."""

import sqlite3

import numpy as np
import pytest

from launch.run import directory
from launch.run import opened
from launch.run import stamps
from tff_dpemb import config
from tff_dpemb.data import user_store
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib

_PAGE = {
  'users_per_round': 20,
  'virtual_clients': 4,
  'clipping': 'fixed',
  'noise_multiplier': 4.0,
}


def _paths_of(tmp_path, **privacy):
  """A run of 40 private users."""
  with user_store.StoreWriter(
    tmp_path / 'data' / 'private',
    name='private',
    image_shape=(4, 4, 1),
    label_names={'identity': ['a']},
  ) as writer:
    for user in range(40):
      images = np.full([1, 4, 4, 1], user, np.uint8)
      writer.add_user(f'{user}', images, {'identity': 0})
  page = config.from_mapping(
    {
      'name': 'some',
      'data': {'directory': str(tmp_path / 'data')},
      'privacy': _PAGE | privacy,
      'training': {'rounds': 3},
    }
  )
  return directory.RunDirectory(page, runs=tmp_path / 'runs')


def test_nothing_is_charged_on_a_ledger_that_was_edited(tmp_path):
  paths = _paths_of(tmp_path, budget_epsilon=0.01)
  with opened.open_run(paths) as run:
    _ = run.ledger
  connection = sqlite3.connect(paths.runs / 'ledger.sqlite')
  for (trigger,) in connection.execute(
    "SELECT name FROM sqlite_master WHERE type = 'trigger'"
  ).fetchall():
    connection.execute(f'DROP TRIGGER {trigger}')
  connection.execute("UPDATE entries SET details = '{}'")
  connection.commit()
  connection.close()
  with pytest.raises(errors.LedgerDamagedError, match='nothing was charged'):
    with opened.open_run(paths) as run:
      _ = run.ledger


def test_a_budget_has_the_adjacency_of_the_page(tmp_path):
  paths = _paths_of(tmp_path, budget_epsilon=2.0, sampler='fixed-size')
  with opened.open_run(paths) as run:
    assert run.ledger.budget('glyphs').adjacency.value == 'replace-one-user'


def test_a_budget_at_a_useless_delta_is_refused(tmp_path):
  paths = _paths_of(tmp_path)
  paths.runs.mkdir(exist_ok=True)
  with ledger_lib.Ledger.open(paths.ledger_url) as ledger:
    ledger.set_budget('glyphs', guarantee.Budget(4.0, 0.5))
  with pytest.raises(stamps.StageError, match='a delta below 1 / 40 users'):
    with opened.open_run(paths) as run:
      _ = run.ledger


def test_stores_plan_and_ledger_are_opened_once_and_closed(
  tmp_path, monkeypatch
):
  verified, closed = [], []
  monkeypatch.setattr(against_ledger, 'refuse_damaged', verified.append)
  close = ledger_lib.Ledger.close
  monkeypatch.setattr(
    ledger_lib.Ledger,
    'close',
    lambda ledger: (closed.append(ledger), close(ledger)),
  )
  with opened.open_run(_paths_of(tmp_path)) as run:
    assert run.private is run.private
    assert run.plan is run.plan
    assert run.unverified_ledger is run.ledger is run.ledger
    ledger = run.ledger
    assert verified == [ledger]
    assert closed == []
    assert run.draws_of(run.model_release) == 0
  assert closed == [ledger]


def test_nothing_is_opened_that_is_not_asked_for(tmp_path):
  page = config.from_mapping(
    {'name': 'some', 'data': {'directory': str(tmp_path / 'gone')}}
  )
  paths = directory.RunDirectory(page, runs=tmp_path / 'runs')
  with opened.open_run(paths) as run:
    with pytest.raises(user_store.StoreError, match='gone/private'):
      _ = run.private
    with pytest.raises(stamps.StageError, match='finished `dpemb train`'):
      run.read_done(run.paths.training, 'train')
  assert list(tmp_path.iterdir()) == []
