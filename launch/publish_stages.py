"""Stages past training: export, a served look-up check, synthetic embeddings."""

import contextlib
import functools
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from launch import revision
from launch import run_directory
from launch import stages
from serving import client as client_lib
from serving import index as index_lib
from tff_dpemb import artifacts
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import retrieval
from tff_dpemb.export import registry
from tff_dpemb.models import embedding_model
from tff_dpemb.pipelines import assessment
from tff_dpemb.pipelines import publish
from tff_dpemb.privacy import certificate
from tff_dpemb.privacy import certificate_page

Run = run_directory.RunDirectory
_LABEL = 'identity'
_LOOKUPS = 256
_START_SECONDS = 120.0
_RESTRICTED_METRICS = (
  'training loss and accuracy by round',
  'users and examples by round',
  'zeroed updates by round',
)


def export(run: Run) -> None:
  """Publishes the trained model, with the certificate of its training."""
  digest = run.config.digest(
    'data', 'model', 'pretraining', 'privacy', 'training', 'export'
  )
  stamp = run_directory.read_stamp(run.export, digest)
  if stamp is not None and (run.export / str(stamp['version'])).exists():
    return
  trained = stages.read_done(run.training, 'train', run)
  validation = user_store.UserStore.open(run.store('validation'))
  private = user_store.UserStore.open(run.store('private'))
  backbone = embedding_model.build_backbone(
    run.config.model, validation.image_shape
  )
  weights = embedding_model.load_weights(run.training / 'weights.npz')
  embedding_model.set_weights(backbone, weights)
  images = _first_images(validation, run.config.export.parity_images)
  with stages.stage('export: SavedModel and TFLite'):
    with stages.open_ledger(run) as ledger:
      certify = functools.partial(
        _training_certificate, run, ledger, trained, private
      )
      published = registry.publish(
        run.export,
        backbone,
        image_shape=validation.image_shape,
        parity_images=images,
        min_cosine=run.config.export.min_cosine,
        certificate=certify,
        extra={'run': run.config.name, 'config_digest': run.config.digest()},
        name=run.config.name,
      )
      ledger.record_release(
        population=run.config.privacy.population,
        release=stages.model_release(run),
        run=run.config.name,
        digest=published.digest,
        config_digest=run.config.digest(),
        code_revision=revision.code_revision(),
      )
    _write_page(published.path)
    run_directory.write_stamp(
      run.export,
      digest,
      {
        'version': published.version,
        'model_digest': published.digest,
        'min_cosine': published.min_cosine,
        'parity': dict(published.parity),
        'saved_model': str(published.path / registry.SAVED_MODEL),
        'tflite': str(published.path / registry.TFLITE),
      },
    )


def serve_check(run: Run) -> None:
  """Indexes the test images, starts `dpemb serve`, and compares look-ups.

  Half of the look-ups are by image and half by embedding, over a real port;
  each must give the ids that exact search over the same export gives.
  """
  exported = registry.open_export(run.export)
  digest = artifacts_digest(exported.digest, run.config.digest('serving'))
  if run_directory.read_stamp(run.serving, digest) is not None:
    return
  test = user_store.UserStore.open(run.store('test'))
  images, labels, users = test.read_all()
  with stages.stage('serving: look-ups over gRPC'):
    gallery = exported.embed(images)
    ids = _item_ids(test, users)
    index_path = run.index / 'test'
    index_lib.build(
      index_path,
      gallery,
      ids,
      [test.class_name(_LABEL, int(i)) for i in labels[_LABEL]],
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
    # The look-ups by image must agree with exact search for what the server
    # embeds (the TFLite export), those by embedding with what was sent.
    queries = np.concatenate([embedded, gallery[rows[half:]]])
    expected, _ = retrieval.nearest(queries, gallery, neighbours=neighbours)
    agree = [
      [item.id for item in items] == [ids[i] for i in exact]
      for items, exact in zip(found, expected, strict=True)
    ]
    run_directory.write_stamp(
      run.serving,
      digest,
      {
        'lookups': len(rows),
        'agreement_with_exact': float(np.mean(agree)),
        'seconds': seconds,
        'gallery': len(gallery),
        'gallery_rows': rows[:half].tolist(),
      },
    )


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
  with log.open('wb') as output:
    process = subprocess.Popen(command, stdout=output, stderr=output)
  try:
    deadline = time.monotonic() + _START_SECONDS
    while not port_file.exists():
      if process.poll() is not None or time.monotonic() > deadline:
        last = log.read_text(errors='replace').strip().splitlines()[-1:]
        raise stages.StageError(
          f'`dpemb serve` must start, got exit code {process.poll()}:'
          f' {" ".join(last)} (see {str(log)!r}).'
        )
      time.sleep(0.05)
    yield f'{run.config.serving.host}:{port_file.read_text().strip()}'
  finally:
    process.terminate()
    try:
      process.wait(timeout=20)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()
    port_file.unlink(missing_ok=True)


def synthesize(run: Run) -> None:
  """Publishes private synthetic embeddings, and says how good they are."""
  exported = registry.open_export(run.export)
  digest = artifacts_digest(
    exported.digest, run.config.digest('data', 'privacy', 'synthesis')
  )
  if run_directory.read_stamp(run.root / 'synthetic_stage', digest) is not None:
    return
  private = user_store.UserStore.open(run.store('private'))
  settings = run.config.synthesis
  plan = stages.private_plan(run)
  delta = settings.delta if settings.delta is not None else plan.delta
  restricted = run.restricted / 'synthesis'
  release = f'{run.config.name}/{stages.SYNTHETIC_RELEASE}'
  with contextlib.ExitStack() as stack:
    stack.enter_context(stages.stage('synthesis: private mixture, sampled'))
    ledger = stack.enter_context(stages.open_ledger(run))
    lease = ledger.acquire_lease(run.config.name, stages.SYNTHETIC_RELEASE)
    stack.callback(ledger.release_lease, lease)

    def charge(event: Any, release_id: str) -> None:
      ledger.charge(
        population=run.config.privacy.population,
        release=release,
        run=run.config.name,
        event=event,
        adjacency=plan.adjacency,
        config_digest=run.config.digest(),
        code_revision=revision.code_revision(),
        details={'part': release_id},
        lease=lease,
      )

    result = publish.run(
      private_store=run.store('private'),
      public_store=run.store('public'),
      export=exported.path,
      output=run.synthetic,
      restricted=restricted,
      config=settings,
      classes=None,
      delta=delta,
      charge=charge,
      release=release,
    )
    comparison = assessment.assess(
      synthetic=run.synthetic,
      private_store=run.store('private'),
      held_out_store=run.store('test'),
      export=exported.path,
      restricted=restricted,
      config=settings,
      classes=tuple(result.plan.classes),
      confidence=run.config.evaluation.confidence,
    )
    files = {
      name: artifacts.sha256_of(run.synthetic / name)
      for name in (publish.EMBEDDINGS, publish.MANIFEST)
    }
    document = certificate.build_for_synthesis(
      ledger=ledger,
      population=run.config.privacy.population,
      run=run.config.name,
      release=release,
      population_size=private.num_users,
      delta=delta,
      simulation=run.config.privacy.simulation,
      encoder=f'export {exported.digest}, trained on the same users',
      utility={'accuracy': comparison.to_json()['accuracy']},
      artifacts=files,
      config_digest=run.config.digest(),
      code_revision=revision.code_revision(),
      data_digest=private.digest,
      lock_digest=revision.lock_digest(),
      **result.certificate_arguments(),
    )
    artifacts.atomic_write_json(run.synthetic / 'certificate.json', document)
    _write_page(run.synthetic)
    ledger.record_release(
      population=run.config.privacy.population,
      release=release,
      run=run.config.name,
      digest=files[publish.EMBEDDINGS],
      config_digest=run.config.digest(),
      code_revision=revision.code_revision(),
    )
    run_directory.write_stamp(
      run.root / 'synthetic_stage',
      digest,
      {
        'examples': result.examples,
        'epsilon': result.epsilon,
        'delta': result.delta,
        'classes': len(result.classes),
        **comparison.to_json(),
      },
    )


def artifacts_digest(*parts: str) -> str:
  """Returns one digest of several."""
  return '-'.join(part[:32] for part in parts)


def _training_certificate(run, ledger, trained, private, artifact_digest):
  pretrained = stages.read_done(run.pretrained, 'pretrain', run)
  source = (
    f'public store {pretrained["public_store"][:12]},'
    f' {pretrained["steps"]} steps'
    if pretrained['enabled']
    else 'none'
  )
  return certificate.build_for_training(
    plan=stages.private_plan(run),
    ledger=ledger,
    population=run.config.privacy.population,
    run=run.config.name,
    release=stages.model_release(run),
    rounds_completed=trained['rounds'],
    simulation=run.config.privacy.simulation,
    final_clip_norm=trained['final_clip_norm'],
    max_examples_per_user=run.config.training.max_examples_per_user,
    seen_without_protection=_RESTRICTED_METRICS,
    data_accesses={
      'figures on held-out validation and test users (not in the population)': (
        'not covered'
      )
    },
    pretraining=source,
    utility=_utility(run),
    artifact_digest=artifact_digest,
    config_digest=run.config.digest(),
    code_revision=revision.code_revision(),
    data_digest=private.digest,
    lock_digest=revision.lock_digest(),
  )


def _utility(run: Run) -> dict[str, Any] | None:
  path = run.evaluation / 'stage.json'
  if not path.exists():
    return None
  figures = artifacts.read_json(path)['trained']
  return {
    'recall_at_far': {
      far: value['value'] for far, value in figures['recall_at_far'].items()
    },
    'recall_at_1': figures['recall_at_1']['value'],
    'held_out_identities': figures['identities'],
  }


def _write_page(directory: pathlib.Path) -> None:
  document = artifacts.read_json(directory / 'certificate.json')
  artifacts.atomic_write_bytes(
    directory / 'certificate.html',
    certificate_page.to_html(document).encode(),
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
