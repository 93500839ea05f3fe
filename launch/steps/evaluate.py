"""Exact figures on the test identities, which nothing was chosen on."""

import functools

from launch.run import opened
from launch.run import progress
from launch.run import stamps
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import figures
from tff_dpemb.models import embedding_model


def evaluate(run: opened.OpenRun) -> None:
  """Measures the trained model, public pretraining alone, and raw pixels."""
  run.read_done(run.paths.training, 'train')
  weights = {
    'trained': run.paths.training / 'weights.npz',
    'pretraining_only': run.paths.pretrained / 'weights.npz',
  }
  stamp = stamps.stamp_of(
    run.paths.evaluation,
    run.config.digest('model', 'evaluation'),
    run.test.digest,
    *map(storage.sha256_of, weights.values()),
  )
  if stamp.read() is not None:
    return
  images, labels, _ = run.test.read_all()
  measure = functools.partial(
    figures.measure,
    identities=labels[user_store.IDENTITY],
    false_accept_rates=run.config.evaluation.false_accept_rates,
    confidence=run.config.evaluation.confidence,
  )
  with progress.stage(
    f'evaluation on {run.test.num_users} held-out identities'
  ):
    content = {}
    for name, path in weights.items():
      backbone = embedding_model.load_backbone(
        run.config.model, run.test.image_shape, path
      )
      content[name] = measure(embedding_model.embed(backbone, images))
    content['pixels'] = measure(figures.pixel_embeddings(images))
    stamp.write(content)
