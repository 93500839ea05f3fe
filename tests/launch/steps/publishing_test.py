"""Look-ups against brute force; what is refused before it is paid for."""

import pathlib
import sys
import types

import cloudpickle
import numpy as np
import pytest

from launch.run import directory
from launch.steps import publishing
from launch.steps import training
from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import classification
from tff_dpemb.pipelines import embed
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib

cloudpickle.register_pickle_by_value(sys.modules[__name__])

_GALLERY = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]], np.float32)


@pytest.mark.parametrize(
  'found, expected',
  [
    ([0, 1, 2], True),
    ([0, 2, 1], False),  # Wrong order.
    ([0, 1, 3], False),  # A farther item.
    ([0, 0, 1], False),  # One item twice.
  ],
)
def test_neighbours_must_be_those_of_brute_force(found, expected):
  query = np.array([1, 0], np.float32)
  assert publishing.agrees_with_exact(query, _GALLERY, found) is expected


def test_only_cosines_that_float32_cannot_tell_apart_may_change_places():
  query = np.array([1, 0], np.float32)
  near = np.array([[1, 0], [1 - 1e-7, 0], [1 - 1e-4, 0]], np.float64)
  assert publishing.agrees_with_exact(query, near, [1, 0, 2])
  assert not publishing.agrees_with_exact(query, near, [0, 2, 1])


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
    publishing.registry,
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
  made = directory.RunDirectory(page, runs=tmp_path / 'runs')
  made.root.mkdir(parents=True)
  return made


def _draws(run):
  with ledger_lib.Ledger.open(run.ledger_url) as ledger:
    return ledger.entries(kind='draw')


def test_held_out_users_without_the_classes_are_found_before_the_charge(run):
  with pytest.raises(
    classification.EvaluationError, match='some of the declared classes'
  ):
    publishing.synthesize(run)
  assert _draws(run) == []


def _with(run, section, **changes):
  """The run with another page."""
  content = run.config.model_dump(mode='json')
  content[section].update(changes)
  page = config.from_mapping(content)
  return directory.RunDirectory(page, runs=run.runs)


def test_a_delta_that_gives_a_user_away_is_found_before_the_charge(run):
  other = _with(run, 'synthesis', delta=0.5)
  with pytest.raises(training.StageError, match='synthesis.delta must be in'):
    publishing.synthesize(other)
  assert _draws(run) == []


def test_another_adjacency_is_found_before_the_charge(run):
  """A synthetic set's noise is made for add-or-remove-one alone."""
  other = _with(
    run,
    'privacy',
    sampler='fixed-size',
    adjacency='replace-one-user',
    share_virtual_clients=True,
  )
  with pytest.raises(training.StageError, match='must be add-or-remove-one'):
    publishing.synthesize(other)
  assert _draws(run) == []


def test_a_published_digest_of_private_data_is_its_owners_alone(run):
  digest = user_store.UserStore.open(run.store('private')).digest
  blinded = publishing._blinded(run, digest)
  assert blinded != digest
  assert len(blinded) == 64
  assert publishing._blinded(run, digest) == blinded
  assert publishing._blinded(run, 'e' * 64) != blinded
  (run.restricted / 'provenance.key').unlink()
  assert publishing._blinded(run, digest) != blinded


def test_an_audit_that_contradicts_is_found_before_the_charge(run):
  (run.root / 'audit').mkdir()
  storage.atomic_write_json(
    run.root / 'audit' / 'audit.json', {'synthetic': {'verdict': 'VIOLATION'}}
  )
  with pytest.raises(training.StageError, match='nothing was published'):
    publishing.synthesize(run)
  assert _draws(run) == []


def test_data_of_another_population_are_found_before_anything_is_embedded(run):
  with ledger_lib.Ledger.open(run.ledger_url) as ledger:
    ledger.charge(
      population='faces',
      release='other/model',
      run='other',
      event=training.private_plan(run).round_event(),
      details={
        'data_digest': user_store.UserStore.open(run.store('private')).digest
      },
    )
  with pytest.raises(errors.LedgerError, match="population 'faces'"):
    publishing.synthesize(run)
  assert len(_draws(run)) == 1
  assert not run.restricted.exists()
