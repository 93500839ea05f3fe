"""Canary users through the real rounds: clip, sum, noise, denominator, server.

A canary is one more virtual client. What it sends is made inside TFF's client
work, so that everything past it is what a production run has: only the local
training is replaced, for canaries alone. They send more than the clip allows
(`OVERSHOOT` times C), so that a clip that is missing, or in the wrong place,
shows as a signal that is too strong.

An audited run is no training run. It takes its other clients from public
users, reads no private one, so it costs no budget; and its model, full of
canaries, is thrown away.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.models import embedding_model
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.audit import bounds
from tff_dpemb.privacy.audit import canaries as audit_canaries
from tff_dpemb.privacy.audit import gaussians
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.training import aggregators
from tff_dpemb.training import client_work
from tff_dpemb.training import process

OVERSHOOT = 10.0  # norm of what a canary sends / clip norm
_MARK = 2  # labels of a canary: its row, its signal; and no image


@dataclasses.dataclass(frozen=True, eq=False)
class Observed:
  """What an attacker sees of a run, along canaries' and unseen directions.

  Attributes:
    products: Of each round's noisy sum with canaries' directions [T, K].
    unseen: The same with directions that nobody sent [T, U].
    norms: L2 norm of each round's noisy sum [T].
    final: Of the model's whole change with canaries' directions [K].
    final_unseen: The same with unseen directions [U].
    final_norm: L2 norm of the whole change.
  """

  products: np.ndarray
  unseen: np.ndarray
  norms: np.ndarray
  final: np.ndarray
  final_unseen: np.ndarray
  final_norm: float


def audited_mechanism(mechanism: mechanisms.Mechanism) -> mechanisms.Mechanism:
  """Returns the mechanism with a clip norm that stays where it starts.

  All canaries are clipped, so an adaptive clip would follow them away. The
  event does not depend on how the clip moves.
  """
  if getattr(mechanism, 'learning_rate', 0) == 0:
    return mechanism
  return dataclasses.replace(mechanism, learning_rate=0.0)  # type: ignore


def denominator_of(plan: plan_lib.PrivacyPlan) -> float:
  """Returns the public constant that the program divides sums by."""
  return float(
    plan.virtual_clients if plan.shares_virtual_client else plan.users_per_round
  )


def build_process(
  plan: plan_lib.PrivacyPlan,
  *,
  pure: embedding_model.PureBackbone,
  tuning: client_work.LocalTuning,
  initial_weights: Sequence[np.ndarray],
  directions: audit_canaries.Directions,
  server_learning_rate: float,
  server_momentum: float,
  aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  local_update: process.LocalUpdate = client_work.client_update,
) -> tff.templates.IterativeProcess:
  """Returns the production process, whose clients may be canaries.

  Args:
    plan: What is audited; yields the aggregator.
    pure: The backbone.
    tuning: What other clients do.
    initial_weights: Of the backbone, then of the global head if any.
    directions: Of the canaries.
    server_learning_rate: Of the server's step, which protects nothing.
    server_momentum: Its momentum.
    aggregator: Instead of the plan's own, to see that the audit finds a broken
      one.
    local_update: What clients that are no canaries run.
  """
  if aggregator is None:
    aggregator = aggregators.build_aggregator(
      audited_mechanism(plan.mechanism),
      denominator=denominator_of(plan),
      rounds=plan.rounds,
    )
  norm = OVERSHOOT * plan.mechanism.clip_norm
  return process.build_process(
    pure,
    tuning,
    aggregator,
    initial_weights=initial_weights,
    server_learning_rate=server_learning_rate,
    server_momentum=server_momentum,
    local_update=_with_canaries(local_update, directions, norm),
  )


def canary_data(
  row: int, signal: int, image_shape: Sequence[int]
) -> client_work.ClientData:
  """Returns the data that mark a client as a canary; no user's look so."""
  return client_work.ClientData(
    np.zeros([0, *image_shape], np.uint8),
    np.array([row, signal], np.int32),
    np.zeros([2], np.int32),
  )


def observe(
  iterative: Any,
  *,
  directions: audit_canaries.Directions,
  canaries: audit_canaries.Canaries,
  image_shape: Sequence[int],
  denominator: float,
  server_learning_rate: float,
  server_momentum: float,
  others: Callable[[int], list[client_work.ClientData]] = lambda number: [],
  on_round: Callable[[int], None] = lambda number: None,
) -> Observed:
  """Runs all rounds and returns what can be seen; in an executor's context.

  Each round's noisy sum is computed back from two models that follow one
  another: whoever sees all checkpoints can do it.

  Args:
    iterative: Of `build_process`.
    directions: The same.
    canaries: Who sends what, when.
    image_shape: Of the backbone.
    denominator: Of the aggregator.
    server_learning_rate: As of the process, > 0.
    server_momentum: As of the process.
    others: The clients of a round that are no canaries.
    on_round: Called after each round with its number.

  Raises:
    AuditError: The model is no longer finite.
  """
  state = iterative.initialize()
  first = weights = _flat(state.weights)
  velocity = np.zeros_like(weights)
  rounds = len(canaries.signals)
  products, unseen, norms = [], [], []
  for number in range(rounds):
    signals = canaries.signals[number]
    data = [
      canary_data(int(directions.rows[i]), int(signals[i]), image_shape)
      for i in np.flatnonzero(signals)
    ]
    state, _ = iterative.next(
      process.with_fresh_noise(state), data + others(number)
    )
    stepped = _flat(state.weights)
    if not np.isfinite(stepped).all():
      raise bounds.AuditError(
        f'the audited model must stay finite, it did not in round {number};'
        ' lower training.server_learning_rate.'
      )
    moved = (weights - stepped) / server_learning_rate
    total = (moved - server_momentum * velocity) * denominator
    weights, velocity = stepped, moved
    seen, never = directions.project(total[None])
    products.append(seen[0])
    unseen.append(never[0])
    norms.append(float(np.linalg.norm(total)))
    on_round(number)
  final, final_unseen = directions.project((first - weights)[None])
  return Observed(
    products=np.stack(products),
    unseen=np.stack(unseen),
    norms=np.asarray(norms),
    final=final[0],
    final_unseen=final_unseen[0],
    final_norm=float(np.linalg.norm(first - weights)),
  )


def estimates(
  canaries: audit_canaries.Canaries, observed: Observed, delta: float
) -> dict[str, Any]:
  """Returns the estimates of arXiv 2302.03098 as JSON values: no bounds.

  Each is the epsilon that tells two Gaussians apart, fitted to the cosines of
  canaries that were in and of those that were not.
  """

  def final(products: np.ndarray) -> np.ndarray:
    return audit_canaries.cosine_of_final(products, observed.final_norm)

  def largest(products: np.ndarray) -> np.ndarray:
    return audit_canaries.largest_cosine(products, observed.norms)

  def fitted(scores: np.ndarray) -> tuple[float, float]:
    return float(scores.mean()), float(scores.std(ddof=1))

  result: dict[str, Any] = {}
  for name, seen, never in (
    (
      'final model, cosine',
      final(observed.final),
      final(observed.final_unseen),
    ),
    (
      'all iterates, largest cosine',
      largest(observed.products),
      largest(observed.unseen),
    ),
  ):
    inside, outside = seen[canaries.inside], seen[~canaries.inside]
    null = never if canaries.kind == 'add' else outside
    epsilon = gaussians.epsilon_of_gaussians(
      fitted(inside), fitted(null), delta=delta
    )
    result[name] = {
      'epsilon': guarantee.epsilon_to_json(epsilon),
      'in': fitted(inside),
      'out': fitted(outside),
      'unseen': fitted(never),
    }
  return result


def _with_canaries(
  local_update: process.LocalUpdate,
  directions: audit_canaries.Directions,
  norm: float,
) -> process.LocalUpdate:
  """Returns client work that sends a direction where the data say so."""
  size = directions.block
  # Which column of the block each weight is; `size` (a zero) if none.
  column = np.full(directions.dimension, size, np.int32)
  column[directions.coordinates] = np.arange(size, dtype=np.int32)
  signs = (directions.signs / np.sqrt(size)).astype(np.float32)

  def canary(weights, data):
    row, signal = data.labels[0], data.labels[1]
    parity = tf.bitwise.bitwise_and(tf.range(size, dtype=tf.int32), row)
    for shift in (16, 8, 4, 2, 1):
      parity = tf.bitwise.bitwise_xor(
        parity, tf.bitwise.right_shift(parity, shift)
      )
    odd = tf.cast(tf.bitwise.bitwise_and(parity, 1), tf.float32)
    block = (1 - 2 * odd) * signs * (norm * tf.cast(signal, tf.float32))
    flat = tf.gather(tf.concat([block, [0.0]], 0), column)
    parts = tf.split(flat, [weight.shape.num_elements() for weight in weights])
    update = [
      tf.reshape(part, weight.shape)
      for part, weight in zip(parts, weights, strict=True)
    ]
    return update, {
      'loss_sum': tf.constant(0.0),
      'correct': tf.constant(0.0),
      'examples': tf.constant(0.0),
    }

  def update(pure, tuning, weights, data):
    marked = tf.logical_and(
      tf.equal(tf.shape(data.images)[0], 0),
      tf.equal(tf.shape(data.labels)[0], _MARK),
    )
    return tf.cond(
      marked,
      lambda: canary(weights, data),
      lambda: local_update(pure, tuning, weights, data),
    )

  return update


def _flat(weights: Sequence[Any]) -> np.ndarray:
  return np.concatenate(
    [np.asarray(weight, np.float64).ravel() for weight in weights]
  )
