"""The stages of a run, each from artefacts on disk to artefacts on disk.

A stage that is done, from the same inputs, is not done again. Each takes the
run's directory and returns nothing; what it found is in its `stage.json`.
"""

import collections
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import numpy as np
import tqdm

from launch.run import directory as run_directory
from launch.run import revision
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.data.sources.glyphs import source as glyphs
from tff_dpemb.evaluation import retrieval
from tff_dpemb.evaluation import verification
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.ledger import leases as leases_lib
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.training import history
from tff_dpemb.training import pretraining
from tff_dpemb.training import program
from tff_dpemb.training.execution import executors

Run = run_directory.RunDirectory
MODEL_RELEASE = 'model'
SYNTHETIC_RELEASE = 'synthetic'


class StageError(RuntimeError):
  """A stage whose inputs are missing: names the command that makes them."""


class NothingToDoError(StageError):
  """There is no data to work on."""

  exit_code = 3


def data(run: Run) -> None:
  """Makes the bundled glyph data set unless the page names another one."""
  if run.config.data.directory:
    if run.config.pretraining.enabled:
      open_public(run)
    for name in ('private', 'validation', 'test'):
      user_store.UserStore.open(run.store(name))
    return
  digest = run.config.digest('data')
  directory = run.root / 'stages' / 'data'
  stamp = run_directory.read_stamp(directory, digest)
  if stamp is not None and run.data.exists():
    return
  with stage('data: glyphs from the bundle'):
    glyphs.build_glyphs(run.data, config=run.config.data, replace=True)
    run_directory.write_stamp(directory, digest, {})


def open_public(run: Run) -> user_store.UserStore:
  """Returns the public store.

  Raises:
    StageError: The data set has none; names the command that makes one.
  """
  path = run.store('public')
  if run.data.is_dir() and not path.exists():
    raise StageError(
      f'the data set {str(run.data)!r} must have a public store, for'
      ' pretraining, synthetic sets and audits; make the data set again with'
      ' `dpemb data folder --public DIR`, or train without one with'
      ' pretraining.enabled = false.'
    )
  return user_store.UserStore.open(path)


def check_population(run: Run) -> None:
  """Refuses data that another population of the ledger pays for.

  A charge refuses them too, but only after what comes before it.

  Raises:
    LedgerError: The population is named in the ledger.
  """
  private = user_store.UserStore.open(run.store('private'))
  run.runs.mkdir(parents=True, exist_ok=True)
  with ledger_lib.Ledger.open(run.ledger_url) as ledger:
    ledger.check_data_set(run.config.privacy.population, private.digest)


def check_plan(run: Run) -> None:
  """Refuses a page whose privacy breaks a rule, before hours of other work.

  Raises:
    PlanError: As of `plan_from_config`.
  """
  private_plan(run)


def pretrain(run: Run) -> None:
  """Public pretraining; the backbone's first weights if it is disabled."""
  settings = run.config.pretraining
  if settings.enabled or run.store('public').exists():
    store = open_public(run)
    source = store.digest
  else:  # Of the private store, the shape of its images alone.
    store = user_store.UserStore.open(run.store('private'))
    source = ''
  digest = run_directory.inputs_digest(
    run.config.digest('model', 'pretraining'), source
  )
  if run_directory.read_stamp(run.pretrained, digest) is not None:
    return
  backbone = embedding_model.build_backbone(run.config.model, store.image_shape)
  content: dict[str, Any] = {'enabled': settings.enabled, 'steps': 0}
  if settings.enabled:
    images, labels, _ = store.read_all()
    with (
      stage('pretraining on public images'),
      _bar(settings.steps, 'pretrain', 'step') as bar,
    ):

      def on_progress(done: int, loss: float) -> None:
        run.stop_if_requested()
        bar.update(done - bar.n)
        bar.set_postfix(loss=f'{loss:.3f}')

      start = time.monotonic()
      result = pretraining.pretrain(
        backbone,
        settings,
        images=images,
        labels=labels[user_store.IDENTITY],
        head_scale=run.config.model.head_scale,
        on_progress=on_progress,
      )
      content.update(dataclasses.asdict(result))
      content['seconds'] = time.monotonic() - start
  content['public_store'] = source
  embedding_model.save_weights(
    run.pretrained / 'weights.npz', embedding_model.get_weights(backbone)
  )
  run_directory.write_stamp(run.pretrained, digest, content)


def private_plan(run: Run) -> plan_lib.PrivacyPlan:
  """Returns the one plan of the run, for the users of its private store."""
  private = user_store.UserStore.open(run.store('private'))
  return plan_lib.plan_from_config(
    run.config.privacy,
    population=private.num_users,
    rounds=run.config.training.rounds,
    shares_virtual_client=run.config.privacy.share_virtual_clients,
  )


def train(run: Run) -> None:
  """DP-FedEmb rounds: resumes at the last finished one.

  Raises:
    StageError: The run was started on other data or from other weights, or
      the ledger holds draws of this run under another plan.
  """
  private = user_store.UserStore.open(run.store('private'))
  validation = user_store.UserStore.open(run.store('validation'))
  start = run.pretrained / 'weights.npz'
  digest = run_directory.inputs_digest(
    config_digest(run, 'model', 'privacy', 'training'),
    private.digest,
    storage.sha256_of(start),
  )
  if run_directory.read_stamp(run.training, digest) is not None:
    return
  plan = private_plan(run)
  backbone = embedding_model.build_backbone(
    run.config.model, private.image_shape
  )
  pure = lifted_backbone(run, private.image_shape)
  initial = embedding_model.load_weights(start)
  with contextlib.ExitStack() as stack:
    stack.enter_context(stage('DP-FedEmb rounds on private users'))
    ledger = stack.enter_context(open_ledger(run))
    lease = ledger.acquire_lease(run.config.name, 'train')
    stack.callback(ledger.release_lease, lease)
    refuse_another_start(run, ledger, plan, digest)
    bar = stack.enter_context(
      _bar(run.config.training.rounds, 'train', 'round')
    )
    charge = round_charge(run, ledger, plan, lease, private.digest)
    curve = _Curve(run, backbone, validation)
    if not checkpoints_exist(run):
      curve.add(0, initial)

    def on_round(report: history.RoundReport) -> None:
      run.stop_if_requested()
      bar.update(report.round - bar.n)
      bar.set_postfix(
        clip=f'{report.clip_norm:.3f}',
        update=f'{report.update_norm:.3f}',
        epsilon=guarantee.epsilon_text(_spent(ledger, run, plan, report)),
        recall=curve.last_text(),
      )

    stack.enter_context(
      executors.open(
        run.config.runtime, log_path=run.make_restricted() / 'worker.log'
      )
    )
    result = program.train(
      run.config,
      plan=plan,
      store=private,
      pure=pure,
      initial_weights=initial,
      paths=program.Paths(run.training / 'checkpoints', run.make_restricted()),
      charge=charge,
      on_round=on_round,
      on_evaluate=curve.add,
    )
    draws = draws_of(ledger, run, model_release(run))
  embedding_model.save_weights(run.training / 'weights.npz', result.weights)
  run_directory.write_stamp(
    run.training,
    digest,
    {
      'rounds': result.rounds,
      'replayed_rounds': draws - result.rounds,
      'seconds': result.seconds,
      'final_clip_norm': result.final_clip_norm,
      'participation': result.participation,
      'plan': plan.to_json(),
      'plan_digest': plan.digest(),
      'private_store': private.digest,
    },
  )


def evaluate(run: Run) -> None:
  """Exact figures on the test identities, which nothing was chosen on."""
  read_done(run.training, 'train', run)
  test = user_store.UserStore.open(run.store('test'))
  digest = run_directory.inputs_digest(
    run.config.digest('model', 'evaluation'),
    test.digest,
    storage.sha256_of(run.training / 'weights.npz'),
    storage.sha256_of(run.pretrained / 'weights.npz'),
  )
  if run_directory.read_stamp(run.evaluation, digest) is not None:
    return
  images, labels, _ = test.read_all()
  backbone = embedding_model.build_backbone(run.config.model, test.image_shape)
  with stage(f'evaluation on {test.num_users} held-out identities'):
    content: dict[str, Any] = {}
    for name, path in (
      ('trained', run.training / 'weights.npz'),
      ('pretraining_only', run.pretrained / 'weights.npz'),
    ):
      embedding_model.set_weights(backbone, embedding_model.load_weights(path))
      embeddings = embedding_model.embed(backbone, images)
      content[name] = _figures(run, embeddings, labels[user_store.IDENTITY])
    content['pixels'] = _figures(
      run, pixel_embeddings(images), labels[user_store.IDENTITY]
    )
    run_directory.write_stamp(run.evaluation, digest, content)


def pixel_embeddings(images: np.ndarray) -> np.ndarray:
  """Returns unit-norm raw pixels [n, H*W*C], each image's mean removed.

  A blank image, which has no direction, becomes a fixed unit vector.
  """
  flat = images.reshape(len(images), -1).astype(np.float64)
  flat -= flat.mean(axis=1, keepdims=True)
  norms = np.linalg.norm(flat, axis=1, keepdims=True)
  blank = norms[:, 0] == 0
  flat[blank, 0], norms[blank] = 1.0, 1.0
  return (flat / norms).astype(np.float32)


def config_digest(run: Run, *sections: str) -> str:
  """Returns the digest of sections, without what changes no result."""
  privacy = run.config.privacy.model_copy(
    update={'budget_epsilon': None, 'extrapolate_to': ()}
  )
  page = run.config.model_copy(update={'privacy': privacy})
  return page.digest(*sections)


@contextlib.contextmanager
def open_ledger(run: Run) -> Iterator[ledger_lib.Ledger]:
  """Opens the ledger; a population without a budget gets the page's.

  A budget that is there already holds, whatever the page says: it is changed
  by `dpemb ledger budget --replace`, which records who allowed it.

  Raises:
    LedgerDamagedError: It is not as it was written: nothing may be charged.
    StageError: The budget's delta says nothing for so many users.
  """
  run.runs.mkdir(parents=True, exist_ok=True)
  with ledger_lib.Ledger.open(run.ledger_url) as ledger:
    against_ledger.refuse_damaged(ledger)
    _hold_budget(run, ledger)
    yield ledger


def _hold_budget(run: Run, ledger: ledger_lib.Ledger) -> None:
  settings = run.config.privacy
  asked, held = settings.budget_epsilon, ledger.budget(settings.population)
  if asked is None and held is None:
    return
  plan = private_plan(run)
  if held is None:
    if asked is not None:
      budget = guarantee.Budget(asked, plan.delta, plan.adjacency)
      ledger.set_budget(settings.population, budget)
    return
  if held.delta >= 1 / plan.population:
    raise StageError(
      f'the budget of population {settings.population!r} must have a delta'
      f' below 1 / {plan.population} users, at which it could give one user away,'
      f' got {held.delta:g}; set it with `dpemb ledger budget --replace`.'
    )
  if asked is not None and held.epsilon != asked:
    click.echo(
      f'note: the budget of population {settings.population!r} is epsilon'
      f" {held.epsilon:g}, not the page's {asked:g}; it is changed by"
      ' `dpemb ledger budget --replace`.',
      err=True,
    )


def model_release(run: Run) -> str:
  """Returns the name that the trained model's noise is charged under."""
  return f'{run.config.name}/{MODEL_RELEASE}'


def read_done(
  directory: pathlib.Path, command: str, run: Run
) -> dict[str, Any]:
  """Returns the `stage.json` of a finished stage.

  Raises:
    StageError: The stage is not done; names the command that does it.
  """
  path = directory / 'stage.json'
  if not path.exists():
    raise StageError(
      f'run {run.config.name!r} must have finished `dpemb {command}`; give'
      ' that command first.'
    )
  return storage.read_json(path)


def checkpoints_exist(run: Run) -> bool:
  """Returns whether training has a state to resume from."""
  directory = run.training / 'checkpoints'
  return directory.is_dir() and any(directory.iterdir())


def refuse_another_start(
  run: Run,
  ledger: ledger_lib.Ledger,
  plan: plan_lib.PrivacyPlan,
  digest: str,
) -> None:
  """Refuses to go on with a run on other inputs than it was started on.

  Raises:
    StageError: `digest` is not that of the start, or the ledger holds draws of
      the run that `plan` would not charge.
  """
  path = run.training / 'inputs.json'
  if path.exists():
    started = storage.read_json(path)['inputs']
  else:
    started = digest
    storage.atomic_write_json(path, {'inputs': digest})
  if started != digest:
    raise StageError(
      f'run {run.config.name!r} was started on other private images or from'
      ' other pretrained weights; set another name.'
    )
  entries = ledger.entries(
    run=run.config.name, release=model_release(run), kind='draw'
  )
  population = run.config.privacy.population
  if any(entry.population != population for entry in entries):
    raise StageError(
      f'the ledger holds draws of run {run.config.name!r} for another population'
      f' than {population!r}; set another name.'
    )
  # Each where this plan puts it, not only one of this plan's events: what one
  # plan charges for a whole run may be what another charges for a repeat.
  plan_digest = plan.digest()
  if any(
    entry.plan_digest != plan_digest
    or entry.round_number is None
    or entry.round_number >= plan.rounds
    or entry.event != plan.charge_event(entry.round_number, entry.attempt)
    for entry in entries
  ):
    raise StageError(
      f'the ledger holds draws of run {run.config.name!r} under another plan,'
      ' which this one would be mixed with; set another name.'
    )


def round_charge(
  run: Run,
  ledger: ledger_lib.Ledger,
  plan: plan_lib.PrivacyPlan,
  lease: leases_lib.Lease,
  data_digest: str,
) -> Callable[[int], int]:
  """Returns what makes a round's entry durable and returns its attempt.

  What a draw costs depends on which attempt of its round it is, so the draws
  that the ledger holds are counted first: nobody else adds any while the lease
  is held. A round whose forerunners are not in the ledger is refused with a
  StageError: where the first round pays for all, it would cost nothing.
  """
  code = revision.code_revision()
  drawn = collections.Counter(
    entry.round_number
    for entry in ledger.entries(
      run=run.config.name, release=model_release(run), kind='draw'
    )
  )

  def charge(number: int) -> int:
    run.stop_if_requested()  # Not after it is paid for.
    missing = [earlier for earlier in range(number) if not drawn[earlier]]
    if missing:
      raise StageError(
        f'the ledger must hold every round of run {run.config.name!r} that was'
        f' made, it lacks {len(missing)} of the first {number}; use the ledger'
        ' that the run was started with.'
      )
    attempt = 1 + drawn[number]
    entry = ledger.charge(
      population=run.config.privacy.population,
      release=model_release(run),
      run=run.config.name,
      event=plan.charge_event(number, attempt),
      adjacency=plan.adjacency,
      round_number=number,
      plan_digest=plan.digest(),
      config_digest=run.config.digest(),
      code_revision=code,
      details={
        'data_digest': data_digest,
        against_ledger.SIMULATION: run.config.privacy.simulation,
      },
      lease=lease,
    )
    drawn[number] += 1
    if entry.attempt != attempt:
      raise StageError(
        f'round {number} must be charged as attempt {attempt}, the ledger says'
        f' {entry.attempt}: something else draws for run {run.config.name!r};'
        ' stop it, then give the command again.'
      )
    if entry.warning:
      click.echo(f'warning: {entry.warning}', err=True)
    return attempt

  return charge


def lifted_backbone(
  run: Run, image_shape: tuple[int, int, int]
) -> embedding_model.PureBackbone:
  """Returns the backbone as virtual clients of the run train it."""
  return embedding_model.lift(
    embedding_model.build_backbone(
      run.config.model, image_shape, precision=run.config.training.precision
    )
  )


def draws_of(ledger: ledger_lib.Ledger, run: Run, release: str) -> int:
  """Returns how often noise was drawn for a release, replays included."""
  counts = ledger.draw_counts(
    population=run.config.privacy.population,
    run=run.config.name,
    release=release,
  )
  return sum(count for _, count in counts)


def _spent(ledger, run: Run, plan, report: history.RoundReport) -> float:
  """Returns epsilon of what the run has been charged after a round."""
  draws = draws_of(ledger, run, model_release(run))
  replays = draws - report.round
  rounds = plan.rounds if plan.is_charged_at_start else report.round
  return plan.guarantee(rounds, replays=replays).epsilon


def _figures(run: Run, embeddings, identities) -> dict[str, Any]:
  settings = run.config.evaluation
  pairs = verification.verification_report(
    embeddings,
    identities,
    false_accept_rates=settings.false_accept_rates,
    confidence=settings.confidence,
  )
  neighbours = retrieval.retrieval_report(
    embeddings, identities, confidence=settings.confidence
  )
  return {
    'identities': pairs.identities,
    'pairs': pairs.pairs,
    'recall_at_far': {
      f'{far:g}': figure.to_json()
      for far, figure in pairs.recall_at_far.items()
    },
    'roc': [[p.false_accept_rate, p.recall] for p in pairs.roc],
    'recall_at_1': neighbours.recall_at[1].to_json(),
    'mean_average_precision': neighbours.mean_average_precision.to_json(),
  }


class _Curve:
  """Validation figures by round: on held-out users outside the population."""

  def __init__(self, run: Run, backbone, store: user_store.UserStore):
    self._run = run
    self._backbone = backbone
    self._path = run.training / 'curve.json'
    images, labels, _ = store.read_all()
    self._images, self._identities = images, labels[user_store.IDENTITY]
    self._points: list[dict[str, float]] = []
    if self._path.exists() and checkpoints_exist(run):
      self._points = storage.read_json(self._path)

  def add(self, number: int, weights) -> None:
    embedding_model.set_weights(self._backbone, weights)
    embeddings = embedding_model.embed(self._backbone, self._images)
    figures = _figures(self._run, embeddings, self._identities)
    point: dict[str, float] = {'round': number}
    for far, figure in figures['recall_at_far'].items():
      point[f'recall_at_far_{far}'] = figure['value']
    point['recall_at_1'] = figures['recall_at_1']['value']
    self._points = [p for p in self._points if p['round'] < number]
    self._points.append(point)
    storage.atomic_write_json(self._path, self._points)

  def last_text(self) -> str:
    if not self._points:
      return '-'
    return f'{self._points[-1]["recall_at_1"]:.3f}'


@contextlib.contextmanager
def stage(title: str) -> Iterator[None]:
  start = time.monotonic()
  click.echo(f'== {title}')
  yield
  click.echo(f'   done in {time.monotonic() - start:.1f} s')


def _bar(total: int, title: str, unit: str) -> tqdm.tqdm:
  return tqdm.tqdm(
    total=total, desc=title, unit=unit, dynamic_ncols=True, mininterval=0.5
  )
