"""Each step says its figures, what was spent and where it lies."""

import numpy as np
import pytest

from launch.run import directory
from launch.run import opened
from launch.run import outcome
from launch.run import stamps
from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store

_SPENT = {
  'accounting': {'epsilon': 8.0},
  'composition': {'epsilon': None, 'population': 'glyphs'},
}


@pytest.fixture(name='trained')
def _trained(tmp_path):
  """A run of 20 users a store whose steps are stamps alone."""
  for split in ('private', 'validation', 'test'):
    with user_store.StoreWriter(
      tmp_path / 'data' / split,
      name=split,
      image_shape=(4, 4, 1),
      label_names={'identity': [str(i) for i in range(20)]},
    ) as writer:
      for user in range(20):
        images = np.zeros([1, 4, 4, 1], np.uint8)
        writer.add_user(f'{split}-{user}', images, {'identity': user})
  page = config.from_mapping(
    {
      'name': 'some',
      'data': {'directory': str(tmp_path / 'data')},
      'privacy': {
        'clipping': 'fixed',
        'noise_multiplier': 4.0,
        'users_per_round': 8,
        'virtual_clients': 2,
      },
    }
  )
  paths = directory.RunDirectory(page, runs=tmp_path / 'runs')
  stamps.Stamp(paths.pretrained, '').write({'enabled': True, 'steps': 5})
  stamps.Stamp(paths.training, '').write(
    {'rounds': 2, 'replayed_rounds': 0, 'seconds': 4.0}
  )
  with opened.open_run(paths) as run:
    yield run


def test_training_says_rounds_epsilon_and_path(trained):
  first, second = outcome.of('train', trained)
  assert first.startswith('2 rounds in 4 s; ')
  assert first.endswith('some/training/weights.npz')
  proved = trained.plan.guarantee(2).epsilon
  assert second == (
    f'epsilon {proved:.4g} at delta {trained.plan.delta:.2g} so far'
  )


def test_draws_that_were_lost_are_in_epsilon(trained):
  found = stamps.read_any(trained.paths.training)
  stamps.Stamp(trained.paths.training, '').write(
    {**found, 'replayed_rounds': 3}
  )
  first, second = outcome.of('train', trained)
  assert '2 rounds and 3 drawn again' in first
  assert f'{trained.plan.guarantee(2, replays=3).epsilon:.4g}' in second


def test_evaluation_says_figures_with_intervals(trained):
  figure = {'value': 0.5, 'low': 0.25, 'high': 0.75}
  stamps.Stamp(trained.paths.evaluation, '').write(
    {
      'trained': {
        'identities': 20,
        'recall_at_1': figure,
        'recall_at_far': {'0.01': figure, '0.1': {**figure, 'high': 1.0}},
      }
    }
  )
  first, second = outcome.of('evaluate', trained)
  assert first.startswith(
    'recall@1 0.500 [0.250, 0.750] on 20 held-out identities; '
  )
  assert second == (
    'recall@FAR 0.01 0.500 [0.250, 0.750], recall@FAR 0.1 0.500 [0.250, 1.000]'
  )


def test_releases_say_what_they_cost_and_what_all_cost(trained):
  paths = trained.paths
  for folder in (paths.export / '1', paths.synthetic):
    storage.atomic_write_json(folder / 'certificate.json', _SPENT)
  stamps.Stamp(paths.export, '').write({'version': 1, 'min_cosine': 0.99999})
  stamps.Stamp(paths.synthetic_stage, '').write(
    {'examples': 100, 'classes': 10}
  )
  for step, path in (
    ('export', paths.export / '1'),
    ('synthesize', paths.synthetic),
  ):
    first, second = outcome.of(step, trained)
    assert first.endswith(f'; {path}')
    assert second.startswith(
      "epsilon 8 of this release, no guarantee so far of population 'glyphs'"
    )


def test_the_other_steps_say_a_line_and_checks_none(trained):
  stamps.Stamp(trained.paths.serving, '').write(
    {'lookups': 60, 'agreement_with_exact': 1.0}
  )
  assert outcome.of('data', trained)[0].startswith(
    'users: 20 private, 20 validation, 20 test; '
  )
  assert outcome.of('pretrain', trained)[0].startswith('5 steps; ')
  assert outcome.of('serve_check', trained)[0].startswith(
    '60 look-ups, 1.000 agree'
  )
  assert outcome.of('data:check_plan', trained) == []


def test_a_step_without_a_stamp_is_named(trained):
  with pytest.raises(stamps.StageError, match='must hold a finished step'):
    outcome.of('evaluate', trained)
