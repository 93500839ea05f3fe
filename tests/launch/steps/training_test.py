"""What a round is charged, and when a run may not go on."""

import sqlite3

import numpy as np
import pytest
from dp_accounting import dp_event

from launch.run import directory
from launch.steps import training as stages
from tff_dpemb import config
from tff_dpemb.data import user_store
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.planning import settings as settings_lib

_PAGE = {
  'users_per_round': 20,
  'virtual_clients': 4,
  'clipping': 'fixed',
  'noise_multiplier': 4.0,
}
_TREE = {**_PAGE, 'sampler': 'min-separation', 'noise': 'tree'}


class _Training:
  """A run of 3 rounds whose ledger is open."""

  def __init__(self, folder, privacy):
    page = config.from_mapping(
      {'name': 'some', 'privacy': privacy, 'training': {'rounds': 3}}
    )
    self.run = directory.RunDirectory(page, runs=folder)
    self.run.runs.mkdir(exist_ok=True)
    self.plan = settings_lib.plan_from_config(
      page.privacy, population=100, rounds=3
    )
    self.ledger = ledger_lib.Ledger.open(self.run.ledger_url)
    self.lease = None

  def charge(self):
    """Returns the charge function of a new start of the run."""
    if self.lease is not None:
      self.ledger.release_lease(self.lease)
    self.lease = self.ledger.acquire_lease('some', 'train')
    return stages.round_charge(
      self.run, self.ledger, self.plan, self.lease, 'a' * 64
    )

  def drawn(self):
    return [
      (entry.round_number, entry.attempt, entry.event)
      for entry in self.ledger.entries(kind='draw')
    ]


@pytest.fixture
def build(tmp_path):
  """Builds trainings; closes their ledgers."""
  made = []

  def one(privacy, folder='runs'):
    made.append(_Training(tmp_path / folder, privacy))
    return made[-1]

  yield one
  for training in made:
    training.ledger.close()


def test_every_draw_of_independent_noise_costs_the_same(build):
  training = build(_PAGE)
  charge = training.charge()
  assert [charge(0), charge(1), charge(1), charge(2)] == [1, 1, 2, 1]
  event = training.plan.round_event()
  assert training.drawn() == [
    (0, 1, event),
    (1, 1, event),
    (1, 2, event),
    (2, 1, event),
  ]


def test_the_first_round_of_correlated_noise_pays_for_all(build):
  training = build(_TREE)
  charge = training.charge()
  assert [charge(0), charge(1)] == [1, 1]
  charge = training.charge()  # A new start: the result of round 1 was lost.
  assert [charge(1), charge(2)] == [2, 1]
  plan = training.plan
  assert training.drawn() == [
    (0, 1, plan.event(3)),
    (1, 1, dp_event.NoOpDpEvent()),
    (1, 2, plan.replay_event()),
    (2, 1, dp_event.NoOpDpEvent()),
  ]


@pytest.mark.parametrize('privacy', [_PAGE, _TREE], ids=['independent', 'tree'])
def test_a_ledger_without_the_rounds_before_is_refused(build, privacy):
  """With another ledger the rest of a run would be free of charge."""
  training = build(privacy, 'runs')
  training.charge()(0)
  other = build(privacy, 'other')
  with pytest.raises(stages.StageError, match='it lacks 1 of the first 1'):
    other.charge()(1)
  assert other.drawn() == []


def test_an_entry_of_somebody_else_stops_the_run(build):
  training = build(_TREE)
  charge = training.charge()
  charge(0)
  training.ledger.charge(
    population=training.run.config.privacy.population,
    release=stages.model_release(training.run),
    run='some',
    event=dp_event.NoOpDpEvent(),
    round_number=1,
  )
  with pytest.raises(
    stages.StageError, match='as attempt 1, the ledger says 2'
  ):
    charge(1)


def test_a_run_goes_on_under_its_own_plan_only(build):
  training = build(_TREE)
  training.run.training.mkdir(parents=True)
  stages.refuse_another_start(
    training.run, training.ledger, training.plan, 'digest'
  )
  charge = training.charge()
  for number in (0, 1, 1, 2):
    charge(number)
  stages.refuse_another_start(
    training.run, training.ledger, training.plan, 'digest'
  )
  for privacy in (_PAGE, {**_TREE, 'noise_multiplier': 4.1}):
    other = build(privacy)
    with pytest.raises(stages.StageError, match='under another plan'):
      stages.refuse_another_start(other.run, other.ledger, other.plan, 'digest')
  with pytest.raises(stages.StageError, match='on other private images'):
    stages.refuse_another_start(
      training.run, training.ledger, training.plan, 'other'
    )


def test_an_event_of_the_plan_at_another_place_is_another_plan(build):
  """A one-round plan's whole may be a longer plan's repeat: far cheaper."""
  training = build(_TREE)
  training.run.training.mkdir(parents=True)
  training.ledger.charge(
    population=training.run.config.privacy.population,
    release=stages.model_release(training.run),
    run='some',
    event=training.plan.replay_event(),
    round_number=0,
    plan_digest=training.plan.digest(),
  )
  with pytest.raises(stages.StageError, match='under another plan'):
    stages.refuse_another_start(
      training.run, training.ledger, training.plan, 'digest'
    )


def test_draws_that_another_population_paid_for_are_refused(build):
  """Else its first round would pass for ours, and ours be a cheap repeat."""
  build(_TREE).charge()(0)
  other = build({**_TREE, 'population': 'other'})
  other.run.training.mkdir(parents=True, exist_ok=True)
  with pytest.raises(stages.StageError, match='for another population'):
    stages.refuse_another_start(other.run, other.ledger, other.plan, 'digest')


def test_no_round_is_paid_for_after_a_request_to_stop(build):
  training = build(_PAGE)
  charge = training.charge()
  charge(0)
  training.run.stop_requested.set()
  with pytest.raises(SystemExit) as stopped:
    charge(1)
  assert stopped.value.code == directory.EXIT_RETRY
  assert len(training.drawn()) == 1


def _run_without_public_images(folder, *, pretraining, population='some'):
  for split in ('private', 'validation', 'test'):
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
  return directory.RunDirectory(page, runs=folder / 'runs')


def test_without_public_images_training_starts_from_random_weights(tmp_path):
  run = _run_without_public_images(tmp_path, pretraining=False)
  stages.data(run)
  stages.pretrain(run)
  assert (run.pretrained / 'weights.npz').exists()
  found = stages.read_done(run.pretrained, 'pretrain', run)
  assert found['enabled'] is False and found['public_store'] == ''


def test_what_needs_public_images_names_the_option(tmp_path):
  run = _run_without_public_images(tmp_path, pretraining=True)
  for stage in (stages.data, stages.pretrain, stages.open_public):
    with pytest.raises(stages.StageError, match='data folder --public DIR'):
      stage(run)


def test_a_plan_that_breaks_a_rule_is_refused_before_pretraining(tmp_path):
  run = _run_without_public_images(tmp_path, pretraining=False)
  with pytest.raises(guarantee.PlanError, match='users_per_round'):
    stages.check_plan(run)  # For two users.


def test_data_of_another_population_are_refused_and_no_budget_is_set(tmp_path):
  run = _run_without_public_images(
    tmp_path, pretraining=False, population='fresh'
  )
  stages.check_population(run)
  digest = user_store.UserStore.open(run.store('private')).digest
  with ledger_lib.Ledger.open(run.ledger_url) as ledger:
    ledger.charge(
      population='faces',
      release='other/model',
      run='other',
      event=dp_event.GaussianDpEvent(4.0),
      details={'data_digest': digest},
    )
  with pytest.raises(errors.LedgerError, match="population 'faces'"):
    stages.check_population(run)
  stages.check_population(
    _run_without_public_images(tmp_path, pretraining=False, population='faces')
  )


def _run_of(tmp_path, **privacy):
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
  run = _run_of(tmp_path, budget_epsilon=0.01)
  with stages.open_ledger(run):
    pass
  connection = sqlite3.connect(run.runs / 'ledger.sqlite')
  for (trigger,) in connection.execute(
    "SELECT name FROM sqlite_master WHERE type = 'trigger'"
  ).fetchall():
    connection.execute(f'DROP TRIGGER {trigger}')
  connection.execute("UPDATE entries SET details = '{}'")
  connection.commit()
  connection.close()
  with pytest.raises(errors.LedgerDamagedError, match='nothing was charged'):
    with stages.open_ledger(run):
      pass


def test_a_budget_has_the_adjacency_of_the_page(tmp_path):
  run = _run_of(tmp_path, budget_epsilon=2.0, sampler='fixed-size')
  with stages.open_ledger(run) as ledger:
    assert ledger.budget('glyphs').adjacency.value == 'replace-one-user'


def test_a_budget_at_a_useless_delta_is_refused(tmp_path):
  run = _run_of(tmp_path)
  run.runs.mkdir(exist_ok=True)
  with ledger_lib.Ledger.open(run.ledger_url) as ledger:
    ledger.set_budget('glyphs', guarantee.Budget(4.0, 0.5))
  with pytest.raises(stages.StageError, match='a delta below 1 / 40 users'):
    with stages.open_ledger(run):
      pass
