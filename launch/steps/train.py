"""DP-FedEmb rounds: each is charged before it runs; a run resumes."""

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import click

from launch.run import opened
from launch.run import progress
from launch.run import revision
from launch.run import stamps
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import figures
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.ledger import budget
from tff_dpemb.privacy.ledger import leases as leases_lib
from tff_dpemb.training import history
from tff_dpemb.training import program
from tff_dpemb.training.execution import executors


def train(run: opened.OpenRun) -> None:
  """Runs the private rounds, or resumes at the last finished one.

  Raises:
    StageError: The run was started on other data or from other weights, or
      the ledger holds draws of this run under another plan.
  """
  _ = run.validation  # Refused now, where it is missing, not after a round.
  start = run.paths.pretrained / 'weights.npz'
  stamp = stamps.stamp_of(
    run.paths.training,
    run.paths.config_digest('model', 'privacy', 'training'),
    run.private.digest,
    storage.sha256_of(start),
  )
  if stamp.read() is not None:
    return
  pure = lifted_backbone(run, run.private.image_shape)
  initial = embedding_model.load_weights(start)
  with contextlib.ExitStack() as stack:
    stack.enter_context(progress.stage('DP-FedEmb rounds on private users'))
    # Here, at its first use, the whole chain of the ledger is verified.
    lease = run.ledger.acquire_lease(run.config.name, 'train')
    stack.callback(run.ledger.release_lease, lease)
    refuse_another_start(run, stamp.inputs)
    charge = round_charge(run, lease)
    curve = _Curve(run)
    if not _checkpoints_exist(run):
      curve.add(0, initial)
    on_round = stack.enter_context(_shown_rounds(run, curve))
    restricted = run.paths.make_restricted()
    stack.enter_context(
      executors.open(run.config.runtime, log_path=restricted / 'worker.log')
    )
    result = program.train(
      run.config,
      plan=run.plan,
      store=run.private,
      pure=pure,
      initial_weights=initial,
      paths=program.Paths(run.paths.training / 'checkpoints', restricted),
      charge=charge,
      on_round=on_round,
      on_evaluate=curve.add,
    )
    draws = run.draws_of(run.model_release)
  embedding_model.save_weights(
    run.paths.training / 'weights.npz', result.weights
  )
  stamp.write(
    {
      'rounds': result.rounds,
      'replayed_rounds': draws - result.rounds,
      'seconds': result.seconds,
      'final_clip_norm': result.final_clip_norm,
      'participation': result.participation,
      'plan': run.plan.to_json(),
      'plan_digest': run.plan.digest(),
      'private_store': run.private.digest,
    }
  )


def refuse_another_start(run: opened.OpenRun, inputs: str) -> None:
  """Refuses to go on with a run on other inputs than it was started on.

  Raises:
    StageError: `inputs` is not that of the start, or the ledger holds draws of
      the run that its plan would not charge.
  """
  path = run.paths.training / 'inputs.json'
  if not path.exists():
    storage.atomic_write_json(path, {'inputs': inputs})
  if storage.read_json(path)['inputs'] != inputs:
    raise stamps.StageError(
      f'run {run.config.name!r} was started on other private images or from'
      ' other pretrained weights; set another name.'
    )
  entries = run.ledger.entries(
    run=run.config.name, release=run.model_release, kind='draw'
  )
  population = run.config.privacy.population
  if any(entry.population != population for entry in entries):
    raise stamps.StageError(
      f'the ledger holds draws of run {run.config.name!r} for another population'
      f' than {population!r}; set another name.'
    )
  # Each where this plan puts it, not only one of this plan's events: what one
  # plan charges for a whole run may be what another charges for a repeat.
  plan, plan_digest = run.plan, run.plan.digest()
  if any(
    entry.plan_digest != plan_digest
    or entry.round_number is None
    or entry.round_number >= plan.rounds
    or entry.event != plan.charge_event(entry.round_number, entry.attempt)
    for entry in entries
  ):
    raise stamps.StageError(
      f'the ledger holds draws of run {run.config.name!r} under another plan,'
      ' which this one would be mixed with; set another name.'
    )


def round_charge(
  run: opened.OpenRun, lease: leases_lib.Lease
) -> Callable[[int], int]:
  """Returns what makes a round's entry durable and returns its attempt.

  What a draw costs depends on which attempt of its round it is, so the draws
  that the ledger holds are counted first: nobody else adds any while the lease
  is held. A round whose forerunners are not in the ledger is refused with a
  StageError: where the first round pays for all, it would cost nothing.
  """
  ledger, plan = run.ledger, run.plan
  facts: dict[str, Any] = {
    'population': run.config.privacy.population,
    'release': run.model_release,
    'run': run.config.name,
    'adjacency': plan.adjacency,
    'plan_digest': plan.digest(),
    'config_digest': run.config.digest(),
    'code_revision': revision.code_revision(),
    'details': {
      budget.DATA_DIGEST: run.private.digest,
      against_ledger.SIMULATION: run.config.privacy.simulation,
    },
    'lease': lease,
  }
  drawn = collections.Counter(
    entry.round_number
    for entry in ledger.entries(
      run=run.config.name, release=run.model_release, kind='draw'
    )
  )

  def charge(number: int) -> int:
    run.paths.stop_if_requested()  # Not after it is paid for.
    missing = [earlier for earlier in range(number) if not drawn[earlier]]
    if missing:
      raise stamps.StageError(
        f'the ledger must hold every round of run {run.config.name!r} that was'
        f' made, it lacks {len(missing)} of the first {number}; use the ledger'
        ' that the run was started with.'
      )
    attempt = 1 + drawn[number]
    event = plan.charge_event(number, attempt)
    entry = ledger.charge(event=event, round_number=number, **facts)
    drawn[number] += 1
    if entry.attempt != attempt:
      raise stamps.StageError(
        f'round {number} must be charged as attempt {attempt}, the ledger says'
        f' {entry.attempt}: something else draws for run {run.config.name!r};'
        ' stop it, then give the command again.'
      )
    if entry.warning:
      click.echo(f'warning: {entry.warning}', err=True)
    return attempt

  return charge


def lifted_backbone(
  run: opened.OpenRun, image_shape: tuple[int, int, int]
) -> embedding_model.PureBackbone:
  """Returns the backbone as virtual clients of the run train it."""
  return embedding_model.lift(
    embedding_model.build_backbone(
      run.config.model, image_shape, precision=run.config.training.precision
    )
  )


@contextlib.contextmanager
def _shown_rounds(run: opened.OpenRun, curve: '_Curve'):
  """Yields what shows a round's report: clip norm, epsilon so far, recall."""

  def show(report: history.RoundReport) -> None:
    run.paths.stop_if_requested()
    replays = run.draws_of(run.model_release) - report.round
    charged_at_start = run.plan.is_charged_at_start
    rounds = run.plan.rounds if charged_at_start else report.round
    spent = run.plan.guarantee(rounds, replays=replays).epsilon
    bar.set_postfix(
      clip=f'{report.clip_norm:.3f}',
      update=f'{report.update_norm:.3f}',
      epsilon=guarantee.epsilon_text(spent),
      recall=curve.last_text(),
    )
    bar.update(report.round - bar.n)

  with progress.bar(run.config.training.rounds, 'train', 'round') as bar:
    yield show


def _checkpoints_exist(run: opened.OpenRun) -> bool:
  """Returns whether training has a state to resume from."""
  directory = run.paths.training / 'checkpoints'
  return directory.is_dir() and any(directory.iterdir())


class _Curve:
  """Validation figures by round: on held-out users outside the population."""

  def __init__(self, run: opened.OpenRun):
    self._settings = run.config.evaluation
    self._path = run.paths.training / 'curve.json'
    self._backbone = embedding_model.build_backbone(
      run.config.model, run.private.image_shape
    )
    images, labels, _ = run.validation.read_all()
    self._images, self._identities = images, labels[user_store.IDENTITY]
    self._points: list[dict[str, float]] = []
    if self._path.exists() and _checkpoints_exist(run):
      self._points = storage.read_json(self._path)

  def add(self, number: int, weights) -> None:
    """Measures the weights after a round and keeps their point."""
    embedding_model.set_weights(self._backbone, weights)
    found = figures.measure(
      embedding_model.embed(self._backbone, self._images),
      self._identities,
      false_accept_rates=self._settings.false_accept_rates,
      confidence=self._settings.confidence,
    )
    point: dict[str, float] = {'round': number}
    for far, figure in found['recall_at_far'].items():
      point[f'recall_at_far_{far}'] = figure['value']
    point['recall_at_1'] = found['recall_at_1']['value']
    self._points = [p for p in self._points if p['round'] < number]
    self._points.append(point)
    storage.atomic_write_json(self._path, self._points)

  def last_text(self) -> str:
    """Returns the last recall@1 for people."""
    if not self._points:
      return '-'
    return f'{self._points[-1]["recall_at_1"]:.3f}'
