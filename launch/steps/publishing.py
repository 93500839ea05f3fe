"""Stages past training: export, a served look-up check, synthetic embeddings."""

import contextlib
import functools
import hmac
import json
import pathlib
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from launch.commands import audit
from launch.run import directory as run_directory
from launch.run import revision
from launch.steps import training
from serving import client as client_lib
from serving import index as index_lib
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import classification
from tff_dpemb.export import manifest
from tff_dpemb.export import registry
from tff_dpemb.models import embedding_model
from tff_dpemb.pipelines import assessment
from tff_dpemb.pipelines import publish
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import page
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.processes import children

Run = run_directory.RunDirectory
_LOOKUPS = 256
_PAGE = 'certificate.html'
_FLOAT32_COSINE = 1e-6
_START_SECONDS = 120.0
_RESTRICTED_METRICS = (
  'training loss and accuracy by round',
  'users and examples by round',
  'zeroed updates by round',
)


def export(run: Run) -> None:
  """Publishes the trained model, with the certificate of its training."""
  trained = training.read_done(run.training, 'train', run)
  digest = run_directory.inputs_digest(
    run.config.digest('model', 'export'),
    trained['inputs'],
    storage.sha256_of(run.training / 'weights.npz'),
  )
  stamp = run_directory.read_stamp(run.export, digest)
  if stamp is not None and (run.export / str(stamp['version'])).exists():
    return
  validation = user_store.UserStore.open(run.store('validation'))
  backbone = embedding_model.build_backbone(
    run.config.model, validation.image_shape
  )
  weights = embedding_model.load_weights(run.training / 'weights.npz')
  embedding_model.set_weights(backbone, weights)
  images = _first_images(validation, run.config.export.parity_images)
  with training.stage('export: SavedModel and TFLite'):
    with training.open_ledger(run) as ledger:
      certify = functools.partial(_training_certificate, run, ledger, trained)
      published = registry.publish(
        run.export,
        backbone,
        image_shape=validation.image_shape,
        parity_images=images,
        min_cosine=run.config.export.min_cosine,
        certificate=certify,
        extra=manifest.Extra(
          run=run.config.name, config_digest=run.config.digest()
        ),
        name=run.config.name,
      )
    _write_page(published.path)
    run_directory.write_stamp(
      run.export,
      digest,
      {
        'version': published.version,
        'model_digest': published.digest,
        'min_cosine': published.min_cosine,
        'parity': published.parity.to_json(),
        'saved_model': str(published.path / registry.SAVED_MODEL),
        'tflite': str(published.path / registry.TFLITE),
      },
    )


def serve_check(run: Run) -> None:
  """Indexes the test images, starts `dpemb serve`, and compares look-ups.

  Half of the look-ups are by image and half by embedding, over a real port.
  """
  exported = registry.open_export(run.export)
  digest = run_directory.inputs_digest(
    exported.digest, run.config.digest('serving')
  )
  if run_directory.read_stamp(run.serving, digest) is not None:
    return
  test = user_store.UserStore.open(run.store('test'))
  images, labels, users = test.read_all()
  with training.stage('serving: look-ups over gRPC'):
    gallery = exported.embed(images)
    ids = _item_ids(test, users)
    index_path = run.index / 'test'
    index_lib.build(
      index_path,
      gallery,
      ids,
      [
        test.class_name(user_store.IDENTITY, int(i))
        for i in labels[user_store.IDENTITY]
      ],
      model_digest=exported.digest,
      replace=True,
    )
    rng = np.random.default_rng(0)  # Which public look-ups are made.
    rows = rng.choice(len(images), min(_LOOKUPS, len(images)), replace=False)
    half = len(rows) // 2
    neighbours = run.config.serving.neighbours
    # No neighbour is known better than the embeddings themselves.
    with serving_process(run, index_path) as address:
      with client_lib.Client(address) as client:
        start = time.monotonic()
        found = client.search(images=images[rows[:half]], k=neighbours)
        found += client.search(embeddings=gallery[rows[half:]], k=neighbours)
        seconds = time.monotonic() - start
        embedded = client.embed(images[rows[:half]])
    queries = np.concatenate([embedded, gallery[rows[half:]]])
    position = {name: index for index, name in enumerate(ids)}
    agree = [
      agrees_with_exact(query, gallery, [position[item.id] for item in items])
      for query, items in zip(queries, found, strict=True)
    ]
    run_directory.write_stamp(
      run.serving,
      digest,
      {
        'lookups': len(rows),
        'agreement_with_exact': float(np.mean(agree)),
        'seconds': seconds,
        'gallery': len(gallery),
      },
    )


def agrees_with_exact(
  query: np.ndarray, gallery: np.ndarray, found: Sequence[int]
) -> bool:
  """Returns whether `found` is what brute force in float64 finds.

  Cosines that differ by 1e-6 or less, which float32 embeddings cannot tell
  apart, may change places.

  Args:
    query: [D].
    gallery: [n, D].
    found: Positions in the gallery, best first.
  """
  cosines = gallery.astype(np.float64) @ query.astype(np.float64)
  best = np.sort(cosines)[::-1][: len(found)]
  distinct = len(set(found)) == len(found)
  close = np.abs(cosines[list(found)] - best) <= _FLOAT32_COSINE
  return distinct and bool(close.all())


@contextlib.contextmanager
def serving_process(run: Run, index_path: pathlib.Path) -> Iterator[str]:
  """Runs `dpemb serve` on the run's export; yields its address."""
  run.serving.mkdir(parents=True, exist_ok=True)
  port_file = run.serving / 'port'
  port_file.unlink(missing_ok=True)
  log = run.serving / 'serve.log'
  command = [
    sys.executable,
    '-m',
    'launch.cli',
    'serve',
    str(run.export),
    '--index',
    str(index_path),
    '--host',
    run.config.serving.host,
    '--port',
    str(run.config.serving.port),
    '--port-file',
    str(port_file),
  ]
  if run.config.privacy.simulation:
    command.append('--allow-unprotected')  # The run's own check, on loopback.
  log.unlink(missing_ok=True)
  process = children.start(command, log_path=log)
  try:
    deadline = time.monotonic() + _START_SECONDS
    while not port_file.exists():
      if process.poll() is not None or time.monotonic() > deadline:
        last = log.read_text(errors='replace').strip().splitlines()[-1:]
        raise training.StageError(
          f'`dpemb serve` must start, got exit code {process.poll()}:'
          f' {" ".join(last)} (see {str(log)!r}).'
        )
      time.sleep(0.05)
    yield f'{run.config.serving.host}:{port_file.read_text().strip()}'
  finally:
    children.stop(process, grace_seconds=20)
    port_file.unlink(missing_ok=True)


def synthesize(run: Run) -> None:
  """Publishes private synthetic embeddings, and says how good they are.

  What can be known before the charge is refused before it.
  """
  exported = registry.open_export(run.export)
  private = user_store.UserStore.open(run.store('private'))
  digest = run_directory.inputs_digest(
    exported.digest,
    private.digest,
    training.config_digest(run, 'privacy', 'synthesis'),
  )
  if run_directory.read_stamp(run.synthetic_stage, digest) is not None:
    return
  training.check_population(run)
  training.open_public(run)
  audits = _audits(run, 'synthetic')
  settings = run.config.synthesis
  plan = training.private_plan(run)
  delta = settings.delta if settings.delta is not None else plan.delta
  if not 0 < delta < 1 / private.num_users:
    raise training.StageError(
      f'synthesis.delta must be in (0, 1 / {private.num_users} users), got'
      f' {delta}; nothing was charged.'
    )
  if plan.adjacency is not guarantee.Adjacency.ADD_OR_REMOVE_ONE:
    raise training.StageError(
      'privacy.adjacency must be add-or-remove-one for a synthetic set, whose'
      f' noise is made for that relation, got {plan.adjacency.value} (of sampler'
      f' {run.config.privacy.sampler!r}); nothing was charged.'
    )
  restricted = run.make_restricted() / settings.release
  release = f'{run.config.name}/{settings.release}'
  with contextlib.ExitStack() as stack:
    stack.enter_context(training.stage('synthesis: private mixture, sampled'))
    ledger = stack.enter_context(training.open_ledger(run))
    lease = ledger.acquire_lease(run.config.name, settings.release)
    stack.callback(ledger.release_lease, lease)

    def charge(event: Any, release_id: str) -> None:
      run.stop_if_requested()  # Not after it is paid for.
      ledger.charge(
        population=run.config.privacy.population,
        release=release,
        run=run.config.name,
        event=event,
        adjacency=plan.adjacency,
        config_digest=run.config.digest(),
        code_revision=revision.code_revision(),
        details={
          'part': release_id,
          'data_digest': private.digest,
          against_ledger.SIMULATION: run.config.privacy.simulation,
          against_ledger.DELTA: delta,
          against_ledger.POPULATION_SIZE: private.num_users,
        },
        lease=lease,
      )

    def assess(result: publish.SyntheticRelease) -> classification.Comparison:
      return assessment.assess(
        result,
        request,
        held_out_store=run.store('test'),
        confidence=run.config.evaluation.confidence,
      )

    def certify(
      result: publish.SyntheticRelease, hashes: dict[str, str]
    ) -> dict[str, bytes]:
      """Certificate and record of the release, before the set is visible."""
      document = build.build_for_synthesis(
        charged=build.Charged(
          ledger, run.config.privacy.population, run.config.name, release
        ),
        context=build.Context(
          simulation=run.config.privacy.simulation,
          seen_without_protection=assessment.SEEN_WITHOUT_PROTECTION,
          data_accesses=result.data_accesses(),
          utility={'accuracy': assess(result).to_json()['accuracy']},
          audits=audits,
        ),
        provenance=build.Provenance(
          artifacts=hashes,
          plan_digest=result.manifest.plan_digest,
          config_digest=run.config.digest(),
          code_revision=revision.code_revision(),
          data_digest=_blinded(run, private.digest),
          lock_digest=revision.lock_digest(),
        ),
        population_size=private.num_users,
        delta=delta,
        encoder=f'export {exported.digest}, trained on the same users',
        **result.certificate_arguments(),
      )
      _record_release(run, ledger, document, hashes[publish.EMBEDDINGS])
      return {
        publish.CERTIFICATE: json.dumps(document, indent=2).encode(),
        _PAGE: page.to_html(document).encode(),
      }

    request = publish.Request(
      private_store=run.store('private'),
      public_store=run.store('public'),
      export=exported.path,
      output=run.synthetic,
      restricted=restricted,
      config=settings,
      delta=delta,
      charge=charge,
      charged=lambda: training.draws_of(ledger, run, release),
      release=release,
      certify=certify,
    )
    assessment.check_held_out(request, run.store('test'))
    result = publish.run(request)
    comparison = assess(result)
    # Un-noised figures of private data: for the operator's eyes.
    storage.atomic_write_json(
      restricted / 'comparison.json', comparison.to_json()
    )
    document = storage.read_json(run.synthetic / publish.CERTIFICATE)
    run_directory.write_stamp(
      run.synthetic_stage,
      digest,
      {
        'examples': result.examples,
        'epsilon': document['accounting']['epsilon'],
        'delta': result.delta,
        'classes': len(result.classes),
      },
    )


def _training_certificate(run, ledger, trained, artifact_digest):
  """Returns the certificate and records the release, before it is visible."""
  pretrained = training.read_done(run.pretrained, 'pretrain', run)
  source = (
    f'public store {pretrained["public_store"][:12]},'
    f' {pretrained["steps"]} steps'
    if pretrained['enabled']
    else 'none'
  )
  document = build.build_for_training(
    plan_lib.PrivacyPlan.from_json(trained['plan']),
    charged=build.Charged(
      ledger,
      run.config.privacy.population,
      run.config.name,
      training.model_release(run),
    ),
    context=build.Context(
      simulation=run.config.privacy.simulation,
      max_examples_per_user=run.config.training.max_examples_per_user,
      seen_without_protection=_RESTRICTED_METRICS,
      data_accesses={
        'figures on held-out validation and test users (not in the'
        ' population)': 'not covered'
      },
      utility=_utility(run),
      audits=_audits(run, 'training'),
    ),
    provenance=build.Provenance(
      artifact_digest=artifact_digest,
      config_digest=run.config.digest(),
      code_revision=revision.code_revision(),
      data_digest=_blinded(run, trained['private_store']),
      lock_digest=revision.lock_digest(),
    ),
    rounds_completed=trained['rounds'],
    final_clip_norm=trained['final_clip_norm'],
    pretraining=source,
    participation=trained.get('participation', 'not measured'),
  )
  _record_release(run, ledger, document, artifact_digest)
  return document


def _record_release(run: Run, ledger, document, digest: str) -> None:
  """Records that an artefact leaves, with the certificate that it leaves with."""
  ledger.record_release(
    population=run.config.privacy.population,
    release=document['release'],
    run=run.config.name,
    digest=digest,
    config_digest=run.config.digest(),
    code_revision=revision.code_revision(),
    details={against_ledger.CERTIFICATE: document['digest']},
  )


def _blinded(run: Run, digest: str) -> str:
  """Returns a digest of private data that only its owner can check.

  The plain one would tell who knows all users but one whether a guess of that
  one's images is right. The key stays in the restricted folder.
  """
  path = run.make_restricted() / 'provenance.key'
  if not path.exists():
    storage.atomic_write_bytes(path, secrets.token_bytes(32), is_private=True)
  return hmac.digest(path.read_bytes(), digest.encode(), 'sha256').hex()


def _audits(run: Run, what: str) -> list[dict[str, Any]]:
  """Returns the audit that was made before this release, if one was.

  Raises:
    StageError: The audit contradicts the claim; nothing may be published.
  """
  found = audit.for_certificate(run, what)
  if found is None:
    return []
  if found['verdict'] != 'consistent':
    raise training.StageError(
      f'the {what} audit of run {run.config.name!r} must be consistent with the'
      f' claim, got {found["verdict"]!r}; nothing was published. See'
      f' {str(audit.audit_path(run))!r}.'
    )
  return [found]


def _utility(run: Run) -> dict[str, Any] | None:
  path = run.evaluation / 'stage.json'
  if not path.exists():
    return None
  figures = storage.read_json(path)['trained']
  return {
    'recall_at_far': {
      far: value['value'] for far, value in figures['recall_at_far'].items()
    },
    'recall_at_1': figures['recall_at_1']['value'],
    'held_out_identities': figures['identities'],
  }


def _write_page(directory: pathlib.Path) -> None:
  document = storage.read_json(directory / 'certificate.json')
  storage.atomic_write_bytes(
    directory / _PAGE,
    page.to_html(document).encode(),
  )


def _item_ids(store: user_store.UserStore, users: np.ndarray) -> list[str]:
  """Returns `user/position` of each image of `store.read_all()`."""
  seen: dict[int, int] = {}
  ids = []
  for user in users.tolist():
    position = seen.get(user, 0)
    seen[user] = position + 1
    ids.append(f'{store.user_id(user)}/{position}')
  return ids


def _first_images(store: user_store.UserStore, count: int) -> np.ndarray:
  """Returns up to `count` images, one user after the other."""
  parts: list[np.ndarray] = []
  for user in range(store.num_users):
    if sum(map(len, parts)) >= count:
      break
    parts.append(store.read_user(user).images)
  return np.concatenate(parts)[:count]
