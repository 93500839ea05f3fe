"""Members against held-out identities, by the trained model's embeddings."""

from typing import Any

import click
import numpy as np

from launch.run import opened
from launch.run import progress
from launch.steps.audit import claims
from tff_dpemb.evaluation import membership
from tff_dpemb.export import registry
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.audit import bounds

_MOST_MEMBERS = 2000


def audit(run: opened.OpenRun, *, confidence: float) -> dict[str, Any]:
  """Returns the block of the audit; its figures are private.

  Raises:
    StageError: Nothing was trained.
  """
  run.read_done(run.paths.training, 'train')
  claim, claimed_by = claims.certified(
    bounds.claim_of_plan(run.plan),
    registry.newest_certificate(run.paths.export),
  )
  rng = np.random.default_rng()
  with progress.stage('audit: membership inference on embeddings'):
    embeddings, users, is_member = _embed_users(run, rng)
    report = membership.attack(
      membership.user_features(embeddings, users),
      is_member,
      rng=rng,
      confidence=confidence,
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
  claims.echo_simulation(run, found)
  return {
    'method': 'membership inference on embeddings',
    'mode': 'threshold on one feature; logistic regression on all',
    'claimed_by': claimed_by,
    'membership': report.to_json(),
    **found.to_json(),
  }


def _embed_users(
  run: opened.OpenRun, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Embeds users with two images at least, so many of each store.

  Returns:
    float32 [n, embedding_dim]; the user of each image, int [n]; whether each
    user was trained on, bool [users].
  """
  backbone = embedding_model.load_backbone(
    run.config.model,
    run.private.image_shape,
    run.paths.training / 'weights.npz',
  )
  parts: list[np.ndarray] = []
  users: list[int] = []
  is_member: list[bool] = []
  for store in (run.private, run.validation, run.test):
    for user in rng.permutation(store.num_users)[:_MOST_MEMBERS]:
      images = store.read_user(int(user)).images
      if len(images) > 1:
        parts.append(images)
        users += [len(is_member)] * len(images)
        is_member.append(store is run.private)
  embeddings = embedding_model.embed(backbone, np.concatenate(parts))
  return embeddings, np.asarray(users), np.asarray(is_member)
