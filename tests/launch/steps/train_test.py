"""What a round is charged, and when a run may not go on."""

import contextlib

import numpy as np
import pytest
from dp_accounting import dp_event

from launch.run import directory
from launch.run import opened
from launch.run import stamps
from launch.steps import train as stages
from tff_dpemb import config
from tff_dpemb.data import user_store

_PAGE = {
  'users_per_round': 20,
  'virtual_clients': 4,
  'clipping': 'fixed',
  'noise_multiplier': 4.0,
}
_TREE = {**_PAGE, 'sampler': 'min-separation', 'noise': 'tree'}


class _Training:
  """A run of 3 rounds on 100 users."""

  def __init__(self, closing, folder, privacy, data):
    page = config.from_mapping(
      {
        'name': 'some',
        'data': {'directory': str(data)},
        'privacy': privacy,
        'training': {'rounds': 3},
      }
    )
    paths = directory.RunDirectory(page, runs=folder)
    self.run = closing.enter_context(opened.open_run(paths))
    self.plan = self.run.plan
    self.ledger = self.run.ledger
    self.lease = None

  def charge(self):
    """Returns the charge function of a new start of the run."""
    if self.lease is not None:
      self.ledger.release_lease(self.lease)
    self.lease = self.ledger.acquire_lease('some', 'train')
    return stages.round_charge(self.run, self.lease)

  def drawn(self):
    return [
      (entry.round_number, entry.attempt, entry.event)
      for entry in self.ledger.entries(kind='draw')
    ]


@pytest.fixture(scope='module', name='data')
def _data(tmp_path_factory):
  root = tmp_path_factory.mktemp('data')
  with user_store.StoreWriter(
    root / 'private',
    name='private',
    image_shape=(4, 4, 1),
    label_names={'identity': ['a']},
  ) as writer:
    for user in range(100):
      images = np.full([1, 4, 4, 1], user, np.uint8)
      writer.add_user(f'{user}', images, {'identity': 0})
  return root


@pytest.fixture
def build(tmp_path, data):
  """Builds trainings; closes their ledgers."""
  with contextlib.ExitStack() as closing:

    def one(privacy, folder='runs'):
      return _Training(closing, tmp_path / folder, privacy, data)

    yield one


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
  with pytest.raises(stamps.StageError, match='it lacks 1 of the first 1'):
    other.charge()(1)
  assert other.drawn() == []


def test_an_entry_of_somebody_else_stops_the_run(build):
  training = build(_TREE)
  charge = training.charge()
  charge(0)
  training.ledger.charge(
    population=training.run.config.privacy.population,
    release=training.run.model_release,
    run='some',
    event=dp_event.NoOpDpEvent(),
    round_number=1,
  )
  with pytest.raises(
    stamps.StageError, match='as attempt 1, the ledger says 2'
  ):
    charge(1)


def test_a_run_goes_on_under_its_own_plan_only(build):
  training = build(_TREE)
  training.run.paths.training.mkdir(parents=True)
  stages.refuse_another_start(training.run, 'digest')
  charge = training.charge()
  for number in (0, 1, 1, 2):
    charge(number)
  stages.refuse_another_start(training.run, 'digest')
  for privacy in (_PAGE, {**_TREE, 'noise_multiplier': 4.1}):
    other = build(privacy)
    with pytest.raises(stamps.StageError, match='under another plan'):
      stages.refuse_another_start(other.run, 'digest')
  with pytest.raises(stamps.StageError, match='on other private images'):
    stages.refuse_another_start(training.run, 'other')


def test_an_event_of_the_plan_at_another_place_is_another_plan(build):
  """A one-round plan's whole may be a longer plan's repeat: far cheaper."""
  training = build(_TREE)
  training.run.paths.training.mkdir(parents=True)
  training.ledger.charge(
    population=training.run.config.privacy.population,
    release=training.run.model_release,
    run='some',
    event=training.plan.replay_event(),
    round_number=0,
    plan_digest=training.plan.digest(),
  )
  with pytest.raises(stamps.StageError, match='under another plan'):
    stages.refuse_another_start(training.run, 'digest')


def test_draws_that_another_population_paid_for_are_refused(build):
  """Else its first round would pass for ours, and ours be a cheap repeat."""
  build(_TREE).charge()(0)
  other = build({**_TREE, 'population': 'other'})
  other.run.paths.training.mkdir(parents=True, exist_ok=True)
  with pytest.raises(stamps.StageError, match='for another population'):
    stages.refuse_another_start(other.run, 'digest')


def test_no_round_is_paid_for_after_a_request_to_stop(build):
  training = build(_PAGE)
  charge = training.charge()
  charge(0)
  training.run.paths.stop_requested.set()
  with pytest.raises(SystemExit) as stopped:
    charge(1)
  assert stopped.value.code == directory.EXIT_RETRY
  assert len(training.drawn()) == 1
