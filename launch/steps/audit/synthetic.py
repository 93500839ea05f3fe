"""A canary in or out of many releases of public embeddings."""

from typing import Any

import click
import numpy as np

from launch.run import opened
from launch.run import progress
from launch.steps import data
from launch.steps.audit import claims
from tff_dpemb.clustering import audit as clustering_audit
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as clustering_plan
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.models import embedding_model
from tff_dpemb.pipelines import publish
from tff_dpemb.privacy.audit import bounds

_PUBLIC_USERS = 300  # the other users of a release


def audit(
  run: opened.OpenRun, *, repeats: int, confidence: float
) -> dict[str, Any]:
  """Returns the block of the audit, of `repeats` releases thrown away."""
  data.data(run)
  plan = _plan(run)
  claim, claimed_by = claims.certified(
    clustering_audit.claim_of_plan(plan),
    run.paths.synthetic / publish.CERTIFICATE,
  )
  embeddings, users = _embed_public(run)
  labels = users % len(plan.classes)
  projection = projection_lib.fit(
    embeddings, plan.projection_dim, public_labels=labels
  )
  few = users < _PUBLIC_USERS
  with (
    progress.stage(f'audit: {repeats} releases of public embeddings'),
    click.progressbar(length=repeats, label='audit') as bar,
  ):
    trials = clustering_audit.run_trials(
      plan,
      projection,
      embeddings[few],
      labels[few],
      users[few],
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


def _plan(run: opened.OpenRun):
  """Returns the clustering plan that the page's synthetic set has."""
  settings = run.config.synthesis
  delta = settings.delta
  return clustering_plan.build(
    tuple(range(len(settings.class_names) or settings.classes)),
    epsilon=settings.epsilon,
    delta=run.plan.delta if delta is None else delta,
    projection_dim=min(settings.projection_dim, run.config.model.embedding_dim),
    components_per_class=settings.components_per_class,
    clustering_rounds=settings.clustering_rounds,
  )


def _embed_public(run: opened.OpenRun) -> tuple[np.ndarray, np.ndarray]:
  """Returns public embeddings and their users, by the best model there is."""
  backbone = embedding_model.build_backbone(
    run.config.model, run.public.image_shape
  )
  for path in (run.paths.training, run.paths.pretrained):
    if (path / 'weights.npz').exists():
      weights = embedding_model.load_weights(path / 'weights.npz')
      embedding_model.set_weights(backbone, weights)
      break
  images, _, users = run.public.read_all()
  return embedding_model.embed(backbone, images), np.asarray(users)
