"""Canary users: what they send, when, and how strongly a release shows it.

A canary is a user whose update an attacker chose: a direction of its own, as
long as the clip allows. Directions are orthogonal, so that under Gaussian
noise no canary's score says anything about another's, and one run is as many
independent trials as it has canaries.

Which two worlds a canary is in depends on what the plan protects:

| kind      | in, taking part | in, idle | out, taking part | out, idle |
|-----------|-----------------|----------|------------------|-----------|
| 'flip'    | +C              | -C       | -C               | -C        |
| 'replace' | +C              | none     | -C               | none      |
| 'add'     | +C              | none     | none             | none      |

'flip' is the worst case of a shared virtual client under add-or-remove-one:
the one user turns the slot's clipped update from -C v to +C v, so the sum moves
by 2 C. 'add' moves it by C: the worst case where no virtual client is shared,
and half of what is accounted where they are. A kind that moves the sum by more
than the plan accounts for is refused: it would find a violation of a claim that
was never made.

NumPy only; the update itself is made in TensorFlow from the same values.
"""

import dataclasses
from typing import Literal

import numpy as np

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.audit import bounds
from tff_dpemb.privacy.planning import plan as plan_lib

Kind = Literal['flip', 'replace', 'add']
# Signals (in, taking part), (in, idle), (out, taking part), (out, idle).
_SIGNALS: dict[str, tuple[int, int, int, int]] = {
  'flip': (1, -1, -1, -1),
  'replace': (1, 0, -1, 0),
  'add': (1, 0, 0, 0),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
  """Orthonormal directions in a model's d weights, as rows of one matrix.

  Rows of a Hadamard matrix with random signs of its columns, on `block` random
  coordinates (the largest power of two in d): each weight of the block is in
  every direction, and all products with an update take d log d steps.

  Attributes:
    dimension: d, weights of the model.
    coordinates: Where the block lies [block], distinct, in [0, d).
    signs: +1 or -1 of each column [block].
    rows: Row of each canary [K], distinct.
    unseen: Rows that no canary has [U]: what a direction looks like that was
      never sent.
  """

  dimension: int
  coordinates: np.ndarray
  signs: np.ndarray
  rows: np.ndarray
  unseen: np.ndarray

  @property
  def block(self) -> int:
    """Number of coordinates, a power of two."""
    return len(self.coordinates)

  def project(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns products with canaries' [n, K] and unseen [n, U] directions.

    Args:
      vectors: [n, d].
    """
    block = np.asarray(vectors, np.float64)[:, self.coordinates] * self.signs
    products = _hadamard(block) / np.sqrt(self.block)
    return products[:, self.rows], products[:, self.unseen]


def draw_directions(
  dimension: int, count: int, *, unseen: int, rng: np.random.Generator
) -> Directions:
  """Returns `count` random directions and `unseen` further ones.

  Raises:
    AuditError: The model has too few weights for that many.
  """
  block = 1 << (max(dimension, 1).bit_length() - 1)
  if count < 1 or count + unseen > block:
    raise bounds.AuditError(
      f'canaries must be in [1, {block - unseen}] for a model of {dimension}'
      f' weights, got {count}.'
    )
  rows = rng.permutation(block)
  return Directions(
    dimension=dimension,
    coordinates=rng.permutation(dimension)[:block],
    signs=rng.choice([-1.0, 1.0], block),
    rows=rows[:count],
    unseen=rows[count : count + unseen],
  )


@dataclasses.dataclass(frozen=True, eq=False)
class Canaries:
  """Who is in, and what each sends in each round.

  Attributes:
    kind: See the module.
    inside: Whether each canary is in [K]: its own fair coin.
    takes_part: Rounds of each canary [T, K], by the plan's sampler, in or out.
    signals: -1, 0 (sends nothing) or +1 [T, K], in units of C.
  """

  kind: Kind
  inside: np.ndarray
  takes_part: np.ndarray
  signals: np.ndarray


def tight_kind(plan: plan_lib.PrivacyPlan) -> Kind:
  """Returns the kind that moves the sum by as much as the plan accounts."""
  if plan.sensitivity < 2:
    return 'add'
  if plan.adjacency is guarantee.Adjacency.REPLACE_ONE:
    return 'replace'
  return 'flip'


def draw_canaries(
  plan: plan_lib.PrivacyPlan,
  count: int,
  *,
  kind: Kind,
  rng: np.random.Generator,
) -> Canaries:
  """Returns canaries that take part as the plan says that users do.

  Args:
    plan: What is audited.
    count: Number of canaries K.
    kind: 'add' or `tight_kind(plan)`.
    rng: Source of coins and schedules: public, it protects nobody.

  Raises:
    AuditError: The kind is not legal for the plan.
  """
  tight = tight_kind(plan)
  if kind not in ('add', tight):
    raise bounds.AuditError(
      f"kind of canary must be 'add' or {tight!r} for a plan that moves the sum"
      f' by {plan.sensitivity:g} x clip under {plan.adjacency.value}, got'
      f' {kind!r}.'
    )
  inside = rng.random(count) < 0.5
  takes_part = _takes_part(plan, count, rng)
  active_in, idle_in, active_out, idle_out = _SIGNALS[kind]
  signals = np.where(
    inside,
    np.where(takes_part, active_in, idle_in),
    np.where(takes_part, active_out, idle_out),
  )
  return Canaries(kind, inside, takes_part, signals.astype(np.int8))


def scores(
  plan: plan_lib.PrivacyPlan, canaries: Canaries, products: np.ndarray
) -> np.ndarray:
  """Returns the score [K] of each canary, higher for 'in': all iterates.

  The likelihood ratio of the two worlds given every round's noisy sum, for an
  attacker who knows the plan and nothing of a secret sample. Correlated noise
  is made independent first.

  Args:
    plan: What is audited: its noise, its strategy, its sampling probability.
    canaries: Only their kind and, of a public schedule, their rounds are used.
    products: Of each round's noisy sum with each direction [T, K].
  """
  clip = plan.mechanism.clip_norm
  values = products / clip
  active_in, idle_in, active_out, idle_out = _SIGNALS[canaries.kind]
  deviation = plan.mechanism.value_noise_multiplier
  secret = plan.sampler.kind in ('poisson', 'fixed-size')
  if not secret or plan.sampling_probability == 1 or deviation == 0:
    gaps = np.where(
      canaries.takes_part, active_in - active_out, idle_in - idle_out
    ).astype(np.float64)
    if secret and plan.sampling_probability < 1:  # No noise: any sum tells.
      gaps[:] = 1.0
    whitening = _whitening(plan, len(values))
    return ((whitening @ gaps) * (whitening @ values)).sum(axis=0)
  q = plan.sampling_probability
  in_world = _log_mixture(values, q, active_in, idle_in, deviation)
  out_world = _log_mixture(values, q, active_out, idle_out, deviation)
  return (in_world - out_world).sum(axis=0)


def cosine_of_final(products: np.ndarray, norm: float) -> np.ndarray:
  """Returns cosines [K] of directions with the model's whole change.

  The final-model score of arXiv 2302.03098. `products` [K] and `norm` are of
  (first weights - last weights).
  """
  return products / max(norm, np.finfo(float).tiny)


def largest_cosine(products: np.ndarray, norms: np.ndarray) -> np.ndarray:
  """Returns each direction's largest cosine [K] with a round's noisy sum.

  The all-iterates score of arXiv 2302.03098. `products` [T, K], `norms` [T].
  """
  safe = np.maximum(norms, np.finfo(float).tiny)
  return (products / safe[:, None]).max(axis=0)


def _takes_part(plan, count: int, rng: np.random.Generator) -> np.ndarray:
  rounds = plan.rounds
  if plan.sampler.kind != 'min-separation':
    return rng.random((rounds, count)) < plan.sampling_probability
  separation = plan.sampler.min_separation
  phases = rng.integers(0, separation, count)
  numbers = np.arange(rounds)[:, None]
  due = numbers % separation == phases
  return due & (numbers // separation < plan.sampler.max_participations)


def _whitening(plan, rounds: int) -> np.ndarray:
  """Returns C [T, T]: it turns the noise of the sums into independent noise."""
  stream = getattr(plan.mechanism, 'stream', None)
  if stream is None:
    return np.eye(rounds)
  return np.linalg.inv(stream(plan.rounds).noise(np.eye(plan.rounds)))


def _log_mixture(
  values: np.ndarray, q: float, active: int, idle: int, deviation: float
) -> np.ndarray:
  """Returns log (q N(active, s^2) + (1 - q) N(idle, s^2)) up to a constant."""
  return np.logaddexp(
    np.log(q) - 0.5 * np.square((values - active) / deviation),
    np.log1p(-q) - 0.5 * np.square((values - idle) / deviation),
  )


def _hadamard(rows: np.ndarray) -> np.ndarray:
  """Returns rows [n, D] times the Hadamard matrix (-1)^popcount(i & j)."""
  count, size = rows.shape
  step = 1
  while step < size:
    pairs = rows.reshape(count, size // (2 * step), 2, step)
    left, right = pairs[:, :, 0], pairs[:, :, 1]
    rows = np.stack([left + right, left - right], axis=2)
    rows = rows.reshape(count, size)
    step *= 2
  return rows
