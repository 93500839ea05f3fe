"""Canaries through the rounds of the page, with public users beside them."""

import dataclasses
from typing import Any

import click
import numpy as np

from launch.run import opened
from launch.run import progress
from launch.steps import data
from launch.steps import train
from launch.steps.audit import claims
from tff_dpemb.data import user_store
from tff_dpemb.export import registry
from tff_dpemb.models import embedding_model
from tff_dpemb.privacy.audit import bounds
from tff_dpemb.privacy.audit import canaries as audit_canaries
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.training import audit as training_audit
from tff_dpemb.training import process
from tff_dpemb.training import virtual_clients
from tff_dpemb.training.execution import executors


def audit(
  run: opened.OpenRun,
  *,
  canaries: int,
  kind: str,
  rounds: int | None,
  clients: int,
  confidence: float,
) -> dict[str, Any]:
  """Returns the block of the audit.

  Args:
    run: The run.
    canaries: How many.
    kind: 'tight': as bad as the plan accounts for, or 'add': they only come or
      go.
    rounds: How many are audited, against what they claim; None: the page's.
    clients: Virtual clients of public users that train in each round.
    confidence: Of the lower bound.
  """
  data.data(run)
  plan, claimed_by = run.plan, 'plan'
  if rounds is not None:
    plan = dataclasses.replace(plan, rounds=rounds)
  claim = bounds.claim_of_plan(plan)
  if rounds is None:
    claim, claimed_by = claims.certified(
      claim, registry.newest_certificate(run.paths.export)
    )
  rng = np.random.default_rng()  # Of canaries: public, it protects nobody.
  planted, observed = _observe(
    run, plan, rng, count=canaries, kind=kind, clients=clients
  )
  scores = audit_canaries.scores(plan, planted, observed.products)
  found = bounds.audit(
    scores[planted.inside],
    scores[~planted.inside],
    claim=claim,
    confidence=confidence,
    coins=True,
  )
  click.echo(found.describe())
  claims.echo_simulation(run, found)
  return {
    'method': 'canary users through the real rounds (arXiv 2302.03098)',
    'mode': 'all iterates, likelihood ratio',
    'kind': planted.kind,
    'rounds': plan.rounds,
    'claimed_by': claimed_by,
    'estimates': training_audit.estimates(planted, observed, plan.delta),
    **found.to_json(),
    'model': 'thrown away; nothing was published and no private user was read',
  }


def _observe(
  run: opened.OpenRun,
  plan: plan_lib.PrivacyPlan,
  rng: np.random.Generator,
  *,
  count: int,
  kind: str,
  clients: int,
):
  """Runs the rounds; returns the canaries and what was seen of them."""
  pure, tuning, initial = _first_model(run, rng)
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
  step = {
    'server_learning_rate': run.config.training.server_learning_rate
    * min(1.0, denominator / count**0.5),
    'server_momentum': run.config.training.server_momentum,
  }
  iterative = training_audit.build_process(
    plan,
    pure=pure,
    tuning=tuning,
    initial_weights=initial,
    directions=directions,
    **step,
  )
  log = run.paths.root / 'audit' / 'worker.log'
  log.parent.mkdir(parents=True, exist_ok=True)
  with (
    progress.stage(f'audit: {count} canaries, {plan.rounds} rounds'),
    executors.local(log_path=log),
    click.progressbar(length=plan.rounds, label='audit') as bar,
  ):
    observed = training_audit.observe(
      iterative,
      directions=directions,
      canaries=canaries,
      image_shape=pure.image_shape,
      denominator=denominator,
      others=lambda number: _others(run, plan, rng, clients),
      on_round=lambda number: bar.update(1),
      **step,
    )
  return canaries, observed


def _first_model(run: opened.OpenRun, rng: np.random.Generator):
  """Returns the backbone, how clients tune it, and the first weights."""
  public = run.public
  backbone = embedding_model.build_backbone(
    run.config.model, public.image_shape
  )
  start = run.paths.pretrained / 'weights.npz'
  if start.exists():
    embedding_model.set_weights(backbone, embedding_model.load_weights(start))
  pure = train.lifted_backbone(run, public.image_shape)
  tuning = process.local_tuning_from_config(
    run.config, num_classes=public.num_classes(user_store.IDENTITY)
  )
  initial = list(embedding_model.get_weights(backbone).values())
  if tuning.aggregate_head:
    head = rng.standard_normal([pure.embedding_dim, tuning.num_classes])
    initial.append((0.1 * head).astype(np.float32))
  return pure, tuning, initial


def _others(
  run: opened.OpenRun,
  plan: plan_lib.PrivacyPlan,
  rng: np.random.Generator,
  clients: int,
):
  """Returns virtual clients of public users for one round."""
  users = min(
    max(1, round(plan.users_per_round / plan.virtual_clients)),
    run.config.training.max_users_per_virtual_client,
    run.public.num_users,
  )
  return [
    virtual_clients.client_data(
      run.public,
      rng.choice(run.public.num_users, users, replace=False),
      run.config.training,
      rng,
    )
    for _ in range(clients)
  ]
