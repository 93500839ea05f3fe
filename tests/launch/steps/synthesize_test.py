"""What is refused before it is paid for."""

import contextlib
import pathlib
import sqlite3
import sys
import types

import cloudpickle
import numpy as np
import pytest

from launch.run import directory
from launch.run import opened
from launch.run import stamps
from launch.steps import synthesize
from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import classification
from tff_dpemb.pipelines import embed
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class _Encoder:
  """Stands for an export: the first pixels, with unit norm."""

  digest = 'd' * 64
  embedding_dim = 8

  def embed(self, images):
    x = images.reshape(len(images), -1)[:, :8].astype(np.float32) + 1
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def _open_encoder(path):
  del path
  return _Encoder()


@pytest.fixture
def run(tmp_path, monkeypatch):
  """A run before synthesis, whose held-out users have another class."""
  rng = np.random.default_rng(0)
  for split, users, name in (
    ('public', 40, 'b'),
    ('private', 60, 'a'),
    ('test', 10, 'b'),
  ):
    with user_store.StoreWriter(
      tmp_path / 'data' / split,
      name=split,
      image_shape=(4, 4, 1),
      label_names={'category': [name]},
    ) as writer:
      for user in range(users):
        images = rng.integers(0, 256, [3, 4, 4, 1]).astype(np.uint8)
        writer.add_user(f'{split}-{user}', images, {'category': 0})
  monkeypatch.setattr(
    synthesize.registry,
    'open_export',
    lambda path: types.SimpleNamespace(
      digest=_Encoder.digest, path=pathlib.Path('export')
    ),
  )
  real_embed = embed.embed
  monkeypatch.setattr(
    embed,
    'embed',
    lambda **options: real_embed(**{**options, 'open_export': _open_encoder}),
  )
  page = config.from_mapping(
    {
      'name': 'some',
      'data': {'directory': str(tmp_path / 'data')},
      'privacy': {
        'clipping': 'fixed',
        'users_per_round': 8,
        'virtual_clients': 2,
      },
      'synthesis': {
        'class_names': ['a'],
        'projection_dim': 4,
        'delta': 1e-3,
        'examples_per_class': 10,
      },
    }
  )
  paths = directory.RunDirectory(page, runs=tmp_path / 'runs')
  paths.root.mkdir(parents=True)
  with opened.open_run(paths) as made:
    yield made


def _draws(run):
  with ledger_lib.Ledger.open(run.paths.ledger_url) as ledger:
    return ledger.entries(kind='draw')


def test_held_out_users_without_the_classes_are_found_before_the_charge(run):
  with pytest.raises(
    classification.EvaluationError, match='some of the declared classes'
  ):
    synthesize.synthesize(run)
  assert _draws(run) == []


@contextlib.contextmanager
def _with(run, section, **changes):
  """The run with another page."""
  content = run.config.model_dump(mode='json')
  content[section].update(changes)
  page = config.from_mapping(content)
  paths = directory.RunDirectory(page, runs=run.paths.runs)
  with opened.open_run(paths) as made:
    yield made


def test_a_delta_that_gives_a_user_away_is_found_before_the_charge(run):
  with _with(run, 'synthesis', delta=0.5) as other:
    with pytest.raises(stamps.StageError, match='synthesis.delta must be in'):
      synthesize.synthesize(other)
  assert _draws(run) == []


def test_another_adjacency_is_found_before_the_charge(run):
  """A synthetic set's noise is made for add-or-remove-one alone."""
  with _with(
    run,
    'privacy',
    sampler='fixed-size',
    adjacency='replace-one-user',
    share_virtual_clients=True,
  ) as other:
    with pytest.raises(stamps.StageError, match='must be add-or-remove-one'):
      synthesize.synthesize(other)
  assert _draws(run) == []


def test_an_audit_that_contradicts_is_found_before_the_charge(run):
  (run.paths.root / 'audit').mkdir()
  storage.atomic_write_json(
    run.paths.root / 'audit' / 'audit.json',
    {'synthetic': {'verdict': 'VIOLATION'}},
  )
  with pytest.raises(stamps.StageError, match='nothing was published'):
    synthesize.synthesize(run)
  assert _draws(run) == []


def test_data_of_another_population_are_found_before_anything_is_embedded(run):
  with ledger_lib.Ledger.open(run.paths.ledger_url) as ledger:
    ledger.charge(
      population='faces',
      release='other/model',
      run='other',
      event=run.plan.round_event(),
      details={'data_digest': run.private.digest},
    )
  with pytest.raises(errors.LedgerError, match="population 'faces'"):
    synthesize.synthesize(run)
  assert len(_draws(run)) == 1
  assert not run.paths.restricted.exists()


def test_a_ledger_that_was_edited_since_it_was_opened_charges_nothing(run):
  """As in a quick start, whose training has opened it hours before."""
  run.ledger.charge(
    population=run.config.privacy.population,
    release='some/model',
    run='some',
    event=run.plan.round_event(),
  )
  path = run.paths.runs / 'ledger.sqlite'
  with contextlib.closing(sqlite3.connect(path)) as raw:
    for action in ('update', 'delete'):
      raw.execute(f'DROP TRIGGER entries_no_{action}')
    raw.execute("UPDATE entries SET run = 'other'")
    raw.commit()
  with pytest.raises(errors.LedgerDamagedError, match='nothing was charged'):
    synthesize.synthesize(run)
  assert len(_draws(run)) == 1
