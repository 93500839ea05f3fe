"""The command `audit`: does what was released contradict what is claimed?

An audited run is a run of its own. It publishes nothing, its model is thrown
away, and (membership apart) it reads no private image, so it costs no budget.
"""

import dataclasses
import json
import pathlib
from typing import Any

import click

from launch.run import directory
from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.audit import bounds

SCHEMA = 'dpemb.audit/1'
_GATE_FAILED = 5
_PUBLIC_USERS = 300  # the other users of a synthetic audit
_MOST_MEMBERS = 2000
_FEWEST_CANARIES = 64


class AuditCommandError(ValueError):
  """An audit that the page, or the run, does not allow."""


@click.command()
@click.argument('page', type=click.Path(), metavar='PAGE.toml')
@click.option(
  '--runs',
  default=directory.DEFAULT_RUNS,
  show_default=True,
  help='Directory of runs.',
)
@click.option(
  '--set',
  'overrides',
  multiple=True,
  metavar='SECTION.KEY=VALUE',
  help='Override a key of the page; may be given often.',
)
@click.option(
  '--what',
  type=click.Choice(['training', 'synthetic', 'membership']),
  default='training',
  show_default=True,
  help='What is attacked.',
)
@click.option(
  '--canaries',
  type=int,
  default=400,
  show_default=True,
  help='Canary users of the training audit.',
)
@click.option(
  '--kind',
  type=click.Choice(['tight', 'add']),
  default='tight',
  show_default=True,
  help='Canaries as bad as the plan accounts for, or that only come or go.',
)
@click.option(
  '--rounds',
  type=click.IntRange(1),
  help='Audit so many rounds, against what they claim. Default: the page.',
)
@click.option(
  '--clients',
  type=click.IntRange(0),
  default=2,
  show_default=True,
  help='Virtual clients of public users that train in each round.',
)
@click.option(
  '--repeats',
  type=int,
  default=400,
  show_default=True,
  help='Releases of the synthetic audit.',
)
@click.option(
  '--confidence',
  type=float,
  default=0.95,
  show_default=True,
  help='Of the lower bound.',
)
def audit(
  page: str,
  runs: str,
  overrides: tuple[str, ...],
  what: str,
  canaries: int,
  kind: str,
  rounds: int | None,
  clients: int,
  repeats: int,
  confidence: float,
) -> None:
  """Attacks what a page would release; a lower bound on epsilon, and a verdict.

  training: canary users through the real rounds; other clients are public
  users. synthetic: a canary in or out of many small releases. Both cost no
  budget and write audit/audit.json, which a certificate can carry. membership:
  can one tell the trained users from held-out ones? Its figures are private
  and stay in restricted/.

  'consistent' means that the attack found nothing, not that the claim holds.
  Exit code 5 on VIOLATION.

  \b
  Example:
    dpemb audit launch/configs/quickstart.toml --what training
  """
  if not 0 < confidence < 1:
    raise AuditCommandError(f'confidence must be in (0, 1), got {confidence}.')
  for name, value in (('canaries', canaries), ('repeats', repeats)):
    if value < _FEWEST_CANARIES:
      raise AuditCommandError(
        f'{name} must be >= {_FEWEST_CANARIES}: fewer can show nothing, got'
        f' {value}.'
      )
  run = directory.RunDirectory(
    config.load(page, overrides=overrides), runs=runs
  )
  with run.lock():
    run.record_config()
    match what:
      case 'training':
        block = _training(
          run,
          count=canaries,
          kind=kind,
          rounds=rounds,
          clients=clients,
          confidence=confidence,
        )
      case 'synthetic':
        block = _synthetic(run, repeats=repeats, confidence=confidence)
      case _:
        block = _membership(run, confidence=confidence)
    if what == 'membership':
      path = run.make_restricted() / 'audit.json'
    else:
      path = audit_path(run)
    _write(path, run, what, block)
  click.echo(f'written to {path}')
  if block['verdict'] != 'consistent':
    raise click.exceptions.Exit(_GATE_FAILED)


def audit_path(run: directory.RunDirectory) -> pathlib.Path:
  """Returns where a run's audits are kept."""
  return run.root / 'audit' / 'audit.json'


def for_certificate(
  run: directory.RunDirectory, what: str
) -> dict[str, Any] | None:
  """Returns the block that a certificate carries, or None if none was made.

  Args:
    run: The run.
    what: 'training' or 'synthetic'.
  """
  path = audit_path(run)
  if not path.exists():
    return None
  return storage.read_json(path).get(what)


def _training(
  run: directory.RunDirectory,
  *,
  count: int,
  kind: str,
  rounds: int | None,
  clients: int,
  confidence: float,
) -> dict[str, Any]:
  """Canaries through the rounds of the page, with public users beside them."""
  import numpy as np

  from launch.steps import training
  from tff_dpemb.data import user_store
  from tff_dpemb.models import embedding_model
  from tff_dpemb.privacy.audit import canaries as audit_canaries
  from tff_dpemb.training import audit as training_audit
  from tff_dpemb.training import process
  from tff_dpemb.training import virtual_clients
  from tff_dpemb.training.execution import executors

  training.data(run)
  plan = training.private_plan(run)
  claim, claimed_by = bounds.claim_of_plan(plan), 'plan'
  if rounds is not None:
    plan = dataclasses.replace(plan, rounds=rounds)
    claim = bounds.claim_of_plan(plan)
  else:
    claim, claimed_by = _certified(claim, _newest_certificate(run.export))
  public = training.open_public(run)
  backbone = embedding_model.build_backbone(
    run.config.model, public.image_shape
  )
  start = run.pretrained / 'weights.npz'
  if start.exists():
    embedding_model.set_weights(backbone, embedding_model.load_weights(start))
  pure = training.lifted_backbone(run, public.image_shape)
  tuning = process.local_tuning_from_config(
    run.config, num_classes=public.num_classes(user_store.IDENTITY)
  )
  initial = list(embedding_model.get_weights(backbone).values())
  rng = np.random.default_rng()  # Of canaries: public, it protects nobody.
  if tuning.aggregate_head:
    head = rng.standard_normal([pure.embedding_dim, tuning.num_classes])
    initial.append((0.1 * head).astype(np.float32))
  directions = audit_canaries.draw_directions(
    sum(weight.size for weight in initial), count, unseen=count, rng=rng
  )
  canaries = audit_canaries.draw_canaries(
    plan,
    count,
    kind=audit_canaries.tight_kind(plan) if kind == 'tight' else 'add',
    rng=rng,
  )
  # The server's step protects nothing, and so many canaries would throw the
  # model far: a smaller one keeps local training sane.
  denominator = training_audit.denominator_of(plan)
  learning_rate = run.config.training.server_learning_rate
  learning_rate *= min(1.0, denominator / count**0.5)
  momentum = run.config.training.server_momentum
  iterative = training_audit.build_process(
    plan,
    pure=pure,
    tuning=tuning,
    initial_weights=initial,
    directions=directions,
    server_learning_rate=learning_rate,
    server_momentum=momentum,
  )
  per_client = min(
    max(1, round(plan.users_per_round / plan.virtual_clients)),
    run.config.training.max_users_per_virtual_client,
    public.num_users,
  )

  def others(number: int):
    del number
    return [
      virtual_clients.client_data(
        public,
        rng.choice(public.num_users, per_client, replace=False),
        run.config.training,
        rng,
      )
      for _ in range(clients)
    ]

  log = run.root / 'audit' / 'worker.log'
  log.parent.mkdir(parents=True, exist_ok=True)
  with (
    training.stage(f'audit: {count} canaries, {plan.rounds} rounds'),
    executors.local(log_path=log),
    click.progressbar(length=plan.rounds, label='audit') as bar,
  ):
    observed = training_audit.observe(
      iterative,
      directions=directions,
      canaries=canaries,
      image_shape=pure.image_shape,
      denominator=denominator,
      others=others,
      on_round=lambda number: bar.update(1),
      server_learning_rate=learning_rate,
      server_momentum=momentum,
    )
  scores = audit_canaries.scores(plan, canaries, observed.products)
  found = bounds.audit(
    scores[canaries.inside],
    scores[~canaries.inside],
    claim=claim,
    confidence=confidence,
    coins=True,
  )
  click.echo(found.describe())
  _echo_simulation(run, found)
  return {
    'method': 'canary users through the real rounds (arXiv 2302.03098)',
    'mode': 'all iterates, likelihood ratio',
    'kind': canaries.kind,
    'rounds': plan.rounds,
    'claimed_by': claimed_by,
    'estimates': _paper_estimates(canaries, observed, plan.delta),
    **found.to_json(),
    'model': 'thrown away; nothing was published and no private user was read',
  }


def _paper_estimates(canaries, observed, delta: float) -> dict[str, Any]:
  """Returns the estimates of arXiv 2302.03098: no bounds."""
  import numpy as np

  from tff_dpemb.privacy import guarantee
  from tff_dpemb.privacy.audit import canaries as audit_canaries

  final = audit_canaries.cosine_of_final(observed.final, observed.final_norm)
  final_unseen = audit_canaries.cosine_of_final(
    observed.final_unseen, observed.final_norm
  )
  largest = audit_canaries.largest_cosine(observed.products, observed.norms)
  largest_unseen = audit_canaries.largest_cosine(
    observed.unseen, observed.norms
  )

  def fitted(scores: np.ndarray) -> tuple[float, float]:
    return float(scores.mean()), float(scores.std(ddof=1))

  result: dict[str, Any] = {}
  for name, seen, never in (
    ('final model, cosine', final, final_unseen),
    ('all iterates, largest cosine', largest, largest_unseen),
  ):
    inside, outside = seen[canaries.inside], seen[~canaries.inside]
    null = never if canaries.kind == 'add' else outside
    epsilon = bounds.epsilon_of_gaussians(
      fitted(inside), fitted(null), delta=delta
    )
    result[name] = {
      'epsilon': guarantee.epsilon_to_json(epsilon),
      'in': fitted(inside),
      'out': fitted(outside),
      'unseen': fitted(never),
    }
  return result


def _synthetic(
  run: directory.RunDirectory, *, repeats: int, confidence: float
) -> dict[str, Any]:
  """A canary in or out of many releases of public embeddings."""
  import numpy as np

  from launch.steps import training
  from tff_dpemb.clustering import audit as clustering_audit
  from tff_dpemb.clustering import noise
  from tff_dpemb.clustering import plan as clustering_plan
  from tff_dpemb.clustering import projection as projection_lib
  from tff_dpemb.models import embedding_model
  from tff_dpemb.pipelines import publish

  training.data(run)
  settings = run.config.synthesis
  classes = len(settings.class_names) or settings.classes
  delta = settings.delta
  if delta is None:
    delta = training.private_plan(run).delta
  plan = clustering_plan.build(
    tuple(range(classes)),
    epsilon=settings.epsilon,
    delta=delta,
    projection_dim=min(settings.projection_dim, run.config.model.embedding_dim),
    components_per_class=settings.components_per_class,
    clustering_rounds=settings.clustering_rounds,
  )
  claim, claimed_by = _certified(
    clustering_audit.claim_of_plan(plan), run.synthetic / publish.CERTIFICATE
  )
  public = training.open_public(run)
  backbone = embedding_model.build_backbone(
    run.config.model, public.image_shape
  )
  for path in (run.training, run.pretrained):
    if (path / 'weights.npz').exists():
      weights = embedding_model.load_weights(path / 'weights.npz')
      embedding_model.set_weights(backbone, weights)
      break
  images, _, users = public.read_all()
  embeddings = embedding_model.embed(backbone, images)
  labels = np.asarray(users) % classes
  projection = projection_lib.fit(
    embeddings, plan.projection_dim, public_labels=labels
  )
  few = np.asarray(users) < _PUBLIC_USERS
  with (
    training.stage(f'audit: {repeats} releases of public embeddings'),
    click.progressbar(length=repeats, label='audit') as bar,
  ):
    trials = clustering_audit.run_trials(
      plan,
      projection,
      embeddings[few],
      labels[few],
      np.asarray(users)[few],
      trials=repeats,
      source=noise.DiscreteGaussian(),
      rng=np.random.default_rng(),
      on_trial=lambda done: bar.update(1),
    )

  def judged(scores: np.ndarray) -> bounds.Audit:
    return bounds.audit(
      scores[trials.inside],
      scores[~trials.inside],
      claim=claim,
      confidence=confidence,
      coins=True,
    )

  found, by_similarity = judged(trials.likelihood), judged(trials.similarity)
  click.echo(found.describe())
  return {
    'method': 'a canary user in or out of whole clustering releases',
    'mode': 'all noisy sums, likelihood ratio',
    'kind': 'add',
    'repeats': repeats,
    'claimed_by': claimed_by,
    'similarity_lower_bound': by_similarity.lower_bound,
    **found.to_json(),
    'set': 'thrown away; nothing was published and no private user was read',
  }


def _membership(
  run: directory.RunDirectory, *, confidence: float
) -> dict[str, Any]:
  """Members against held-out identities, by the trained model's embeddings."""
  import numpy as np

  from launch.steps import training
  from tff_dpemb.data import user_store
  from tff_dpemb.evaluation import membership
  from tff_dpemb.models import embedding_model

  training.read_done(run.training, 'train', run)
  claim = bounds.claim_of_plan(training.private_plan(run))
  claim, claimed_by = _certified(claim, _newest_certificate(run.export))
  rng = np.random.default_rng()
  names = ('private', 'validation', 'test')
  stores = {name: user_store.UserStore.open(run.store(name)) for name in names}
  backbone = embedding_model.build_backbone(
    run.config.model, stores['private'].image_shape
  )
  embedding_model.set_weights(
    backbone, embedding_model.load_weights(run.training / 'weights.npz')
  )
  parts: list[np.ndarray] = []
  users: list[int] = []
  is_member: list[bool] = []
  with training.stage('audit: membership inference on embeddings'):
    for name, store in stores.items():
      chosen = rng.permutation(store.num_users)[:_MOST_MEMBERS]
      for user in chosen:
        images = store.read_user(int(user)).images
        if len(images) > 1:
          parts.append(images)
          users += [len(is_member)] * len(images)
          is_member.append(name == 'private')
    embeddings = embedding_model.embed(backbone, np.concatenate(parts))
    features = membership.user_features(embeddings, np.asarray(users))
    report = membership.attack(
      features, np.asarray(is_member), rng=rng, confidence=confidence
    )
  strongest = report.strongest
  click.echo(
    f'{report.members} members, {report.non_members} held-out users;'
    f' strongest: {strongest.name}: AUC {strongest.auc.value:.3f}'
    f' [{strongest.auc.low:.3f}, {strongest.auc.high:.3f}], advantage'
    f' {strongest.advantage:.3f}'
  )
  found = bounds.audit(
    rng.permutation(report.member_scores),
    rng.permutation(report.non_member_scores),
    claim=claim,
    confidence=confidence,
    coins=False,
  )
  click.echo(
    f'{found.describe()} Users of one model are no independent trials: take'
    ' the bound as an indication.'
  )
  _echo_simulation(run, found)
  return {
    'method': 'membership inference on embeddings',
    'mode': 'threshold on one feature; logistic regression on all',
    'claimed_by': claimed_by,
    'membership': report.to_json(),
    **found.to_json(),
  }


def _certified(
  claim: bounds.Claim, path: pathlib.Path | None
) -> tuple[bounds.Claim, str]:
  """Returns the claim with the certificate's epsilon, if there is one.

  The plan's further claims stay: the certificate rests on the same proof.
  """
  from tff_dpemb.privacy import guarantee

  if path is None or not path.exists():
    return claim, 'plan'
  accounting = storage.read_json(path)['accounting']
  if accounting['delta'] != claim.delta:
    return claim, 'plan'
  epsilon = guarantee.epsilon_from_json(accounting['epsilon'])
  return dataclasses.replace(claim, epsilon=epsilon), 'certificate'


def _newest_certificate(export: pathlib.Path) -> pathlib.Path | None:
  from tff_dpemb.export import registry

  if not export.is_dir() or not registry.versions(export):
    return None
  newest = max(registry.versions(export))
  return export / str(newest) / 'certificate.json'


def _echo_simulation(run: directory.RunDirectory, found: bounds.Audit) -> None:
  if run.config.privacy.simulation and found.is_trivial:
    click.echo(
      'The page is a simulation: its epsilon promises next to nothing, so'
      ' "consistent" is trivially true here.'
    )


def _write(
  path: pathlib.Path,
  run: directory.RunDirectory,
  what: str,
  block: dict[str, Any],
) -> None:
  """Writes the block beside those of other audits of the run."""
  content: dict[str, Any] = {}
  if path.exists():
    content = storage.read_json(path)
  content |= {
    'schema': SCHEMA,
    'run': run.config.name,
    'config_digest': run.config.digest(),
    what: json.loads(json.dumps(block)),
  }
  path.parent.mkdir(parents=True, exist_ok=True)
  storage.atomic_write_json(path, content)
