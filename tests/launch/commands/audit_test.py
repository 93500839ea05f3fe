"""The command `audit`, on stores of a few random images."""

import inspect
import json
import pathlib

import numpy as np
import pytest

from launch import cli
from launch.commands import audit as audit_command
from launch.run import audits
from launch.run import directory
from launch.steps.audit import membership
from launch.steps.audit import synthetic
from launch.steps.audit import training
from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.audit import bounds

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_PAGE = _ROOT / 'launch/configs/quickstart.toml'


@pytest.fixture(scope='module', name='data')
def _data(tmp_path_factory):
  """Four stores of 24 users with three images each."""
  root = tmp_path_factory.mktemp('data')
  rng = np.random.default_rng(0)
  for split in ('public', 'private', 'validation', 'test'):
    with user_store.StoreWriter(
      root / split,
      name=split,
      image_shape=(28, 28, 1),
      label_names={'identity': [f'{split}{i}' for i in range(24)]},
    ) as writer:
      for user in range(24):
        writer.add_user(
          f'{split}-{user}',
          rng.integers(0, 256, [3, 28, 28, 1]).astype(np.uint8),
          {'identity': np.full([3], user, np.int32)},
        )
  return root


@pytest.fixture(name='dpemb')
def _dpemb(tmp_path, data, capsys):
  """Runs `dpemb audit` on a small page; returns (exit code, output)."""

  def run(*arguments, sets=()):
    values = (
      'name=small',
      f'data.directory={data}',
      'model.embedding_dim=8',
      'privacy.users_per_round=24',  # everyone in each round
      'privacy.virtual_clients=2',
      'training.rounds=2',
      'synthesis.classes=2',
      'synthesis.projection_dim=4',
      *sets,
    )
    overrides = [part for value in values for part in ('--set', value)]
    command = ['audit', str(_PAGE), '--runs', str(tmp_path), *overrides]
    capsys.readouterr()
    code = cli.run([*command, *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err

  return run


def _block(tmp_path, what):
  return storage.read_json(tmp_path / 'small/audit/audit.json')[what]


def test_training_and_synthetic_write_what_a_certificate_carries(
  dpemb, tmp_path
):
  code, output = dpemb('--canaries', 64, '--clients', 1)
  assert code == 0, output
  assert 'could not have been contradicted' in output
  assert 'simulation' in output
  block = _block(tmp_path, 'training')
  assert block['canaries'] == 64
  assert block['kind'] == 'flip'
  assert block['verdict'] == 'consistent'
  assert block['trivial'] is True
  assert block['claimed_by'] == 'plan'
  assert block['lower_bound'] <= block['claimed_epsilon']
  # Noise of .02 clips hides nothing, and the claim says so.
  assert block['lower_bound'] > 1
  code, output = dpemb('--what', 'synthetic', '--repeats', 64)
  assert code == 0, output
  both = storage.read_json(tmp_path / 'small/audit/audit.json')
  assert both['training'] == block
  assert both['synthetic']['claimed_epsilon'] == pytest.approx(8, abs=0.01)
  # No export, no checkpoint, no ledger: nothing was released or charged.
  left = {path.name for path in (tmp_path / 'small').iterdir()}
  assert left == {'.lock', 'audit', 'config.json'}
  assert [path.name for path in tmp_path.iterdir()] == ['small']
  run = directory.RunDirectory(
    config.load(_PAGE, overrides=['name=small']), runs=tmp_path
  )
  assert audits.for_certificate(run, 'training') == block


def test_a_certificate_that_claims_too_little_is_a_violation(dpemb, tmp_path):
  """Next to no noise, and a certificate in the export that says 0.1."""
  plan_delta = 24**-1.1
  place = tmp_path / 'small/export/1'
  place.mkdir(parents=True)
  content = {'accounting': {'epsilon': 0.1, 'delta': plan_delta}}
  (place / 'certificate.json').write_text(json.dumps(content))
  (place / 'manifest.json').write_text('{}')
  code, output = dpemb('--canaries', 64, '--clients', 0)
  assert code == 5, output
  assert 'VIOLATION' in output
  assert _block(tmp_path, 'training')['claimed_by'] == 'certificate'


def test_membership_stays_in_the_restricted_folder(dpemb, tmp_path, data):
  code, output = dpemb('--what', 'membership')
  assert code == 2
  assert 'must have finished `dpemb train`' in output
  training = tmp_path / 'small/training'
  training.mkdir(parents=True)
  backbone = embedding_model.build_backbone(
    config.ModelConfig(embedding_dim=8), (28, 28, 1)
  )
  embedding_model.save_weights(
    training / 'weights.npz', embedding_model.get_weights(backbone)
  )
  storage.atomic_write_json(training / 'stage.json', {})
  code, output = dpemb('--what', 'membership')
  assert code == 0, output
  assert '24 members, 48 held-out users' in output
  assert not (tmp_path / 'small/audit').exists()
  kept = storage.read_json(tmp_path / 'small/restricted/audit.json')
  attacks = kept['membership']['membership']['attacks']
  assert attacks[-1]['name'] == 'logistic regression'
  # Images are noise, and no training took place: nothing to find.
  assert all(a['auc']['low'] < 0.6 for a in attacks)


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (('--canaries', 10), 'canaries must be >= 64'),
    (('--what', 'synthetic', '--repeats', 3), 'repeats must be >= 64'),
    (('--confidence', 1), 'confidence must be in (0, 1), got 1.0'),
    (('--canaries', 10**7), 'canaries must be in [1, '),
    (('--what', 'nothing'), "'nothing' is not one of"),
  ],
)
def test_wrong_input_is_one_line(dpemb, arguments, words):
  code, output = dpemb(*arguments)
  assert code == 2
  assert words in output
  errors = [line for line in output.splitlines() if 'error:' in line]
  assert len(errors) == 1


def test_fewer_rounds_are_held_to_what_fewer_rounds_claim(dpemb, tmp_path):
  code, output = dpemb('--canaries', 64, '--clients', 0, '--rounds', 1)
  assert code == 0, output
  assert _block(tmp_path, 'training')['rounds'] == 1
  assert bounds.CONSISTENT in output


@pytest.mark.parametrize('step', [membership, synthetic, training])
def test_each_attack_is_told_what_it_takes(step):
  what = step.__name__.rpartition('.')[2]
  taken = set(inspect.signature(step.audit).parameters)
  assert taken == {'run', 'confidence', *audit_command._OPTIONS[what]}
