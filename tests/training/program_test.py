"""The round loop: order of charge and noise, resume, refusals."""

import dataclasses
import json

import numpy as np
import pytest
from dp_accounting import dp_event

from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import settings as settings_lib
from tff_dpemb.training import aggregators
from tff_dpemb.training import program
from tff_dpemb.training import virtual_clients

_USERS = 40  # Of the store.


def _page(*, rounds=3, **privacy):
  return config.from_mapping(
    {
      'name': 'test',
      'model': {'embedding_dim': 8},
      'privacy': {
        'users_per_round': 12,
        'virtual_clients': 3,
        'clip_norm': 0.2,
        'noise_multiplier': 0.2,
        **privacy,
      },
      'training': {
        'rounds': rounds,
        'head_steps': 3,
        'max_examples_per_user': 4,
        'evaluate_every': 2,
      },
    }
  )


def _plan(page, *, population=_USERS):
  return settings_lib.plan_from_config(
    page.privacy,
    population=population,
    rounds=page.training.rounds,
    shares_virtual_client=page.privacy.share_virtual_clients,
  )


class _Run:
  """A run against a real ledger file."""

  def __init__(self, folder, store, pure, backbone, page):
    self.page, self.plan = page, _plan(page)
    self._store, self._pure = store, pure
    self._weights = {
      name: variable.numpy()
      for name, variable in zip(
        pure.names, backbone.trainable_variables, strict=True
      )
    }
    self._paths = program.Paths(folder / 'checkpoints', folder / 'restricted')
    self.url = folder / 'ledger.sqlite'
    self.reports, self.evaluated = [], []

  def draws(self):
    with ledger_lib.Ledger.open(self.url) as ledger:
      return [entry.round_number for entry in ledger.entries(kind='draw')]

  def events(self):
    with ledger_lib.Ledger.open(self.url) as ledger:
      return [entry.event for entry in ledger.entries(kind='draw')]

  def checkpoint(self):
    """The newest checkpoint: its path and its arrays."""
    path = max(self._paths.checkpoints.iterdir())
    return path, storage.read_npz(path)

  def train(self, *, fail_in_round=None):
    with ledger_lib.Ledger.open(self.url) as ledger:

      def charge(number):
        entry = ledger.charge(
          population='users',
          release='model',
          run='test',
          event=self.plan.charge_event(number, 1 + self.draws().count(number)),
          adjacency=self.plan.adjacency,
          round_number=number,
        )
        if number == fail_in_round:  # After the entry, before the result.
          raise KeyboardInterrupt
        return entry.attempt

      return program.train(
        self.page,
        plan=self.plan,
        store=self._store,
        pure=self._pure,
        initial_weights=self._weights,
        paths=self._paths,
        charge=charge,
        on_round=self.reports.append,
        on_evaluate=lambda number, weights: self.evaluated.append(number),
      )


@pytest.fixture
def run(tmp_path, tff_worker, store, pure, backbone):
  return _Run(tmp_path, store, pure, backbone, _page())


def test_each_round_is_charged_once_and_moves_the_weights(run):
  result = run.train()
  assert result.rounds == 3
  assert result.participation == 'within'
  path, _ = run.checkpoint()  # Its owner's alone.
  assert path.parent.stat().st_mode & 0o777 == 0o700
  assert path.stat().st_mode & 0o777 == 0o600
  assert run.draws() == [0, 1, 2]
  assert [report.round for report in run.reports] == [1, 2, 3]
  assert run.evaluated == [2, 3]
  for report in run.reports:
    times = report.times
    assert times.read > 0
    assert 0 <= times.wait <= report.seconds
    assert 0 < times.executor.train < report.seconds
    assert 0 < times.executor.server < report.seconds
    (placed,) = times.executor.placement
    assert placed.clients == len(
      virtual_clients.draw_slots(
        run.plan, run.page.training, np.random.default_rng(0)
      )
    )
  kept = run._paths.restricted / 'training_metrics.jsonl'
  last = json.loads(kept.read_text().splitlines()[-1])
  kept_train = last['times']['executor']['train']
  assert kept_train == run.reports[-1].times.executor.train
  assert any(
    np.abs(value - run._weights[name]).max() > 0
    for name, value in result.weights.items()
  )


def test_an_interrupted_round_is_repeated_and_paid_twice(run):
  with pytest.raises(KeyboardInterrupt):
    run.train(fail_in_round=1)
  assert run.draws() == [0, 1]
  result = run.train()
  assert result.rounds == 3
  assert run.draws() == [0, 1, 1, 2]
  assert [report.attempt for report in run.reports] == [1, 2, 1]


def test_a_finished_run_draws_nothing_again(run):
  first = run.train()
  again = run.train()
  assert run.draws() == [0, 1, 2]
  for name, value in first.weights.items():
    np.testing.assert_array_equal(value, again.weights[name])


def test_a_budget_stops_the_run_before_the_round(run):
  spent = run.plan.guarantee(2).epsilon
  with ledger_lib.Ledger.open(run.url) as ledger:
    ledger.set_budget('users', guarantee.Budget(spent * 1.001, run.plan.delta))
  with pytest.raises(errors.BudgetExceededError):
    run.train()
  assert run.draws() == [0, 1]
  assert len(run.reports) == 2


def test_an_empty_cohort_is_a_legal_charged_round(
  tmp_path, tff_worker, store, pure, backbone
):
  page = _page(rounds=2, users_per_round=1)
  run = _Run(tmp_path, store, pure, backbone, page)
  run.plan = dataclasses.replace(
    run.plan, sampler=samplers.PoissonSampler(_USERS, 1e-9)
  )
  result = run.train()
  assert [report.users for report in run.reports] == [0, 0]
  assert run.draws() == [0, 1]
  noise = result.weights['conv1/kernel'] - run._weights['conv1/kernel']
  assert 0 < np.abs(noise).max() < 1  # Noise was added all the same.


def test_the_neighbouring_sum_moves_by_at_most_two_clips(
  tmp_path, tff_worker, store, pure, backbone
):
  """Pre-noise sums of real local training with and without one user."""
  from tff_dpemb.privacy.mechanisms import independent
  from tff_dpemb.training import process

  page = _page()
  clip = 0.05
  iterative = process.build_process(
    pure,
    process.local_tuning_from_config(page, num_classes=0),
    aggregators.build_aggregator(
      independent.FixedClipGaussian(clip, 1e-9), denominator=1.0
    ),
    initial_weights=[v.numpy() for v in backbone.trainable_variables],
    server_learning_rate=1.0,
    server_momentum=0.0,
  )
  state = iterative.initialize()
  slots = [np.arange(0, 6), np.arange(6, 12), np.arange(12, 18)]

  def total(slots):
    data = [
      virtual_clients.client_data(
        store, users, page.training, np.random.default_rng(i)
      )
      for i, users in enumerate(slots)
    ]
    after, _ = iterative.next(process.with_fresh_noise(state), data)
    return [b - a for b, a in zip(state.weights, after.weights, strict=True)]

  whole = total(slots)
  for removed in (0, 7, 17):
    fewer = [slot[slot != removed] for slot in slots]
    moved = np.sqrt(
      sum(
        np.sum((x - y) ** 2) for x, y in zip(whole, total(fewer), strict=True)
      )
    )
    assert 0 < moved <= 2 * clip * (1 + 1e-4)


_SCHEDULED = {'sampler': 'min-separation', 'min_separation': 3}


def _correlated_page(kind, *, adaptive):
  """4 rounds of correlated noise; each user takes part at most twice."""
  return _page(
    rounds=4,
    **_SCHEDULED,
    noise=kind,
    clipping='adaptive' if adaptive else 'fixed',
    restart_every=2 if adaptive else 0,
  )


def _buffers(state):
  query_state = state.aggregator.query_state.numerator_state
  return getattr(query_state, 'sum_state', query_state).buffers


@pytest.mark.parametrize(
  ('kind', 'adaptive'), [('blt', False), ('tree', True)], ids=str
)
def test_a_killed_run_of_correlated_noise_pays_for_the_repeated_row(
  tmp_path, tff_worker, store, pure, backbone, monkeypatch, kind, adaptive
):
  """The first round pays for all; what is left at the end holds no noise."""
  page = _correlated_page(kind, adaptive=adaptive)
  run = _Run(tmp_path, store, pure, backbone, page)
  saved = {}

  def save(directory, number, state, *, keep):
    saved[number] = state
    real_save(directory, number, state, keep=keep)

  real_save = program.checkpoints.save
  monkeypatch.setattr(program.checkpoints, 'save', save)
  with pytest.raises(KeyboardInterrupt):
    run.train(fail_in_round=3)
  result = run.train()
  nothing = dp_event.NoOpDpEvent()
  assert run.draws() == [0, 1, 2, 3, 3]
  assert run.events() == [
    run.plan.event(4),
    nothing,
    nothing,
    nothing,
    run.plan.replay_event(),
  ]
  assert result.participation == 'within'
  record = run._paths.restricted / 'participation.json'
  assert json.loads(record.read_text()) == {
    'rounds': 4,
    'draws': 4,  # The first try of round 3 died before it drew.
    'most_participations': 2,
    'least_separation': 3,
    'verdict': 'within',
  }
  assert all(np.any(buffer) for buffer in _buffers(saved[3]))
  assert not any(np.any(buffer) for buffer in _buffers(saved[4]))
  path, _ = run.checkpoint()
  assert [p.name for p in path.parent.iterdir()] == ['round-000004.npz']
  # As if it had been killed before earlier states went: noise lies in them.
  real_save(path.parent, 3, saved[3], keep=2)
  again = run.train()
  assert [p.name for p in path.parent.iterdir()] == ['round-000004.npz']
  assert run.draws() == [0, 1, 2, 3, 3]
  for name, value in result.weights.items():
    np.testing.assert_array_equal(value, again.weights[name])


def test_a_run_without_its_schedule_is_not_resumed(
  tmp_path, tff_worker, store, pure, backbone
):
  page = _correlated_page('blt', adaptive=False)
  run = _Run(tmp_path, store, pure, backbone, page)
  with pytest.raises(KeyboardInterrupt):
    run.train(fail_in_round=1)
  key = run._paths.restricted / 'schedule.key'
  assert key.stat().st_mode & 0o777 == 0o600
  assert len(key.read_bytes()) == 16
  key.unlink()
  with pytest.raises(program.TrainingError, match='it says which users come'):
    run.train()
  assert run.draws() == [0, 1]  # Nothing more was charged.


def test_a_plan_of_other_rounds_is_refused(run):
  run.plan = dataclasses.replace(run.plan, rounds=4)
  with pytest.raises(program.TrainingError, match='must be the 4 rounds of'):
    run.train()


def test_a_plan_for_another_population_is_refused(run):
  run.plan = _plan(run.page, population=_USERS + 1)
  with pytest.raises(program.TrainingError, match='the plan is for 41 users'):
    run.train()


def test_restricted_metrics_survive_a_torn_line(run):
  run.train()
  path = run._paths.restricted / 'training_metrics.jsonl'
  whole = path.read_text()
  assert path.parent.stat().st_mode & 0o077 == 0
  path.write_text(whole[:-5])  # A crash in the middle of the last line.
  again = run.train()
  assert again.rounds == 3
  assert again.seconds > 0
