"""The trained model as SavedModel and TFLite, with its certificate."""

from typing import Any

from launch.pages import certificate_page
from launch.run import opened
from launch.run import progress
from launch.run import release
from launch.run import stamps
from tff_dpemb.artifacts import storage
from tff_dpemb.export import manifest
from tff_dpemb.export import registry
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.planning import plan as plan_lib

_RESTRICTED_METRICS = (
  'training loss and accuracy by round',
  'users and examples by round',
  'zeroed updates by round',
)


def export(run: opened.OpenRun) -> None:
  """Publishes the trained model, with the certificate of its training."""
  trained = run.read_done(run.paths.training, 'train')
  weights = run.paths.training / 'weights.npz'
  stamp = stamps.stamp_of(
    run.paths.export,
    run.config.digest('model', 'export'),
    trained['inputs'],
    storage.sha256_of(weights),
  )
  done = stamp.read()
  if done is not None and (run.paths.export / str(done['version'])).exists():
    return
  image_shape = run.validation.image_shape
  backbone = embedding_model.load_backbone(
    run.config.model, image_shape, weights
  )
  images = run.validation.read_first(run.config.export.parity_images)
  with progress.stage('export: SavedModel and TFLite'):
    _ = run.ledger  # A damaged one is refused before the work.
    published = registry.publish(
      run.paths.export,
      backbone,
      image_shape=image_shape,
      parity_images=images,
      min_cosine=run.config.export.min_cosine,
      certificate=lambda digest: _certificate(run, trained, digest).to_json(),
      extra=manifest.Extra(
        run=run.config.name, config_digest=run.config.digest()
      ),
      name=run.config.name,
    )
    certified = document.read(published.path / registry.CERTIFICATE)
    storage.atomic_write_bytes(
      published.path / release.PAGE,
      certificate_page.to_html(certified).encode(),
    )
    stamp.write(
      {
        'version': published.version,
        'model_digest': published.digest,
        'min_cosine': published.min_cosine,
        'parity': published.parity.to_json(),
        'saved_model': str(published.path / registry.SAVED_MODEL),
        'tflite': str(published.path / registry.TFLITE),
      }
    )


def _certificate(
  run: opened.OpenRun, trained: dict[str, Any], artifact_digest: str
) -> document.Certificate:
  """Returns the certificate and records the release, before it is visible."""
  certified = build.for_training(
    plan_lib.PrivacyPlan.from_json(trained['plan']),
    charged=release.charged(run, run.model_release),
    context=facts.Context(
      simulation=run.config.privacy.simulation,
      max_examples_per_user=run.config.training.max_examples_per_user,
      seen_without_protection=_RESTRICTED_METRICS,
      data_accesses={
        'figures on held-out validation and test users (not in the'
        ' population)': 'not covered'
      },
      utility=_utility(run),
      audits=release.audits(run, 'training'),
    ),
    provenance=release.provenance(
      run,
      private_digest=trained['private_store'],
      artifact_digest=artifact_digest,
    ),
    rounds_completed=trained['rounds'],
    final_clip_norm=trained['final_clip_norm'],
    pretraining=_pretraining(run),
    participation=trained.get('participation', 'not measured'),
  )
  release.record(run, certified, artifact_digest)
  return certified


def _pretraining(run: opened.OpenRun) -> str:
  """Returns the source of public pretraining in words."""
  pretrained = run.read_done(run.paths.pretrained, 'pretrain')
  if not pretrained['enabled']:
    return 'none'
  return (
    f'public store {pretrained["public_store"][:12]},'
    f' {pretrained["steps"]} steps'
  )


def _utility(run: opened.OpenRun) -> dict[str, Any] | None:
  """Returns the figures of `evaluate`, if it has run."""
  found = stamps.read_any(run.paths.evaluation)
  if found is None:
    return None
  figures = found['trained']
  return {
    'recall_at_far': {
      far: value['value'] for far, value in figures['recall_at_far'].items()
    },
    'recall_at_1': figures['recall_at_1']['value'],
    'held_out_identities': figures['identities'],
  }
