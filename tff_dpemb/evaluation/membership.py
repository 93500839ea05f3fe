"""Membership inference on embeddings: can one tell whom a model was trained on?

Members are users of the training population, non-members held-out ones of the
same source. The attacker sees embeddings alone. The attacks are the two plain
ones of tensorflow_privacy's library: a threshold on one feature, and logistic
regression on all of them.

It says how much this attack finds on this model, nothing more: users of one
model are no independent trials, and members may differ from non-members by
more than membership. A low AUC proves nothing.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from tff_dpemb.evaluation import interval

FEATURES = (
  'mean cosine of two images of the user',
  'least cosine of two images of the user',
  'deviation of the cosines',
  'cosine with the nearest other user',
)
_FOLDS = 5
_RIDGE = 1e-2  # of the logistic regression, on standardised features
_STEPS = 30


@dataclasses.dataclass(frozen=True)
class Attack:
  """How well one score tells members from non-members.

  Attributes:
    name: The feature, or 'logistic regression'.
    auc: Chance that a member's score is the higher of a random pair, with its
      interval.
    advantage: True-positive minus false-positive rate, at a threshold and a
      sign chosen on other users; in [-1, 1].
  """

  name: str
  auc: interval.Interval
  advantage: float

  def to_json(self) -> dict[str, Any]:
    """Returns the attack as JSON values."""
    return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """All attacks on one model.

  Attributes:
    attacks: One a feature, then the logistic regression.
    members: Users [M] that were scored.
    non_members: Users that were scored.
    member_scores: Of the logistic regression, each fitted on other users [M].
    non_member_scores: The same [N].
    confidence: Of each interval.
  """

  attacks: tuple[Attack, ...]
  members: int
  non_members: int
  member_scores: np.ndarray
  non_member_scores: np.ndarray
  confidence: float

  @property
  def strongest(self) -> Attack:
    """The attack whose AUC is farthest from 1/2."""
    return max(self.attacks, key=lambda attack: abs(attack.auc.value - 0.5))

  def to_json(self) -> dict[str, Any]:
    """Returns the report as JSON values, without any user's score."""
    return {
      'members': self.members,
      'non_members': self.non_members,
      'confidence': self.confidence,
      'attacks': [attack.to_json() for attack in self.attacks],
    }


def user_features(embeddings: np.ndarray, users: np.ndarray) -> np.ndarray:
  """Returns the `FEATURES` [U, 4] of users with two images or more.

  Args:
    embeddings: [n, D], unit norm, of members and non-members together.
    users: [n] user of each row; users with one image are left out. The rows
      of the result are in the order of the users' numbers.

  Raises:
    EvaluationError: Fewer than two users have two images, or a row is not
      of unit norm.
  """
  embeddings = interval.check_embeddings('embeddings', embeddings)
  order = np.argsort(users, kind='stable')
  _, starts = np.unique(np.asarray(users)[order], return_index=True)
  means, own = [], []
  for rows in np.split(embeddings[order].astype(np.float64), starts[1:]):
    if len(rows) < 2:
      continue
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), 1)]
    means.append(rows.mean(axis=0))
    own.append([cosines.mean(), cosines.min(), cosines.std()])
  if len(means) < 2:
    raise interval.EvaluationError(
      f'at least 2 users must have 2 images or more, got {len(means)}.'
    )
  centres = np.asarray(means)
  centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
  nearest = np.empty(len(centres))
  for start in range(0, len(centres), 1024):
    block = centres[start : start + 1024] @ centres.T
    index = np.arange(len(block))
    block[index, start + index] = -np.inf
    nearest[start : start + len(block)] = block.max(axis=1)
  return np.column_stack([np.asarray(own), nearest])


def attack(
  features: np.ndarray,
  is_member: np.ndarray,
  *,
  rng: np.random.Generator,
  confidence: float = 0.95,
) -> Report:
  """Returns what threshold attacks and logistic regression find.

  Args:
    features: [U, F] of all users, finite.
    is_member: [U] bool.
    rng: Draws the folds: each user is scored by what other users taught.
    confidence: Of the intervals, in (0, 1).

  Raises:
    EvaluationError: Fewer users of a kind than folds.
  """
  is_member = np.asarray(is_member, bool)
  fewest = min(int(is_member.sum()), int((~is_member).sum()))
  if fewest < _FOLDS:
    raise interval.EvaluationError(
      f'members and non-members must be at least {_FOLDS} users each, got'
      f' {int(is_member.sum())} and {int((~is_member).sum())}.'
    )
  folds = np.empty(len(features), int)
  for kind in (is_member, ~is_member):
    folds[kind] = rng.permutation(np.arange(kind.sum()) % _FOLDS)
  interval.check_confidence(confidence)
  combined = np.empty(len(features))
  for fold in range(_FOLDS):
    taught = folds != fold
    model = _fit(features[taught], is_member[taught])
    combined[~taught] = model(features[~taught])
  names = (*FEATURES, *(f'feature {i}' for i in range(4, features.shape[1])))
  attacks = [
    _attack(names[i], features[:, i], is_member, folds, confidence)
    for i in range(features.shape[1])
  ]
  attacks.append(
    _attack('logistic regression', combined, is_member, folds, confidence)
  )
  return Report(
    attacks=tuple(attacks),
    members=int(is_member.sum()),
    non_members=int((~is_member).sum()),
    member_scores=combined[is_member],
    non_member_scores=combined[~is_member],
    confidence=confidence,
  )


def auc_interval(
  positive: np.ndarray, negative: np.ndarray, *, confidence: float
) -> interval.Interval:
  """Returns the AUC and its interval: DeLong, DeLong, Clarke-Pearson (1988).

  Ties count one half. The interval is normal, cut to [0, 1].
  """
  by_positive = _share_below(positive, negative)
  by_negative = 1 - _share_below(negative, positive)
  auc = float(by_positive.mean())
  variance = by_positive.var(ddof=1) / len(positive)
  variance += by_negative.var(ddof=1) / len(negative)
  width = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
  width *= math.sqrt(variance)
  return interval.Interval(auc, max(0.0, auc - width), min(1.0, auc + width))


def _attack(name, scores, is_member, folds, confidence) -> Attack:
  auc = auc_interval(
    scores[is_member], scores[~is_member], confidence=confidence
  )
  hits, wrong = 0, 0
  for fold in range(_FOLDS):
    taught = folds != fold
    threshold, sign = _best_threshold(scores[taught], is_member[taught])
    said = sign * scores[~taught] > sign * threshold
    hits += int((said & is_member[~taught]).sum())
    wrong += int((said & ~is_member[~taught]).sum())
  advantage = hits / is_member.sum() - wrong / (~is_member).sum()
  return Attack(name, auc, float(advantage))


def _best_threshold(scores, is_member) -> tuple[float, int]:
  values = np.unique(scores)
  true = _share_above(scores[is_member], values)
  false = _share_above(scores[~is_member], values)
  gain = true - false
  best = int(np.argmax(np.abs(gain)))
  if gain[best] >= 0:
    return float(values[best]), 1
  # The other way round, what is at most the value counts.
  return float(np.nextafter(values[best], np.inf)), -1


def _share_above(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
  below = np.searchsorted(np.sort(scores), values, side='right')
  return 1 - below / len(scores)


def _share_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Returns for each score the share of others below it, ties one half."""
  ordered = np.sort(others)
  left = np.searchsorted(ordered, scores, side='left')
  right = np.searchsorted(ordered, scores, side='right')
  return (left + right) / (2 * len(others))


def _fit(
  features: np.ndarray, is_member: np.ndarray
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns the score function of a balanced, ridged logistic regression."""
  mean = features.mean(axis=0)
  scale = np.maximum(features.std(axis=0), 1e-12)

  def prepared(x: np.ndarray) -> np.ndarray:
    return np.column_stack([(x - mean) / scale, np.ones(len(x))])

  x = prepared(features)
  target = is_member.astype(np.float64)
  share = np.where(is_member, is_member.mean(), 1 - is_member.mean())
  weight = 0.5 / (share * len(x))
  ridge = _RIDGE * np.diag([*np.ones(x.shape[1] - 1), 0.0])
  beta = np.zeros(x.shape[1])
  for _ in range(_STEPS):  # Newton's method.
    guess = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
    gradient = x.T @ (weight * (guess - target)) + ridge @ beta
    curvature = weight * np.maximum(guess * (1 - guess), 1e-9)
    hessian = (x * curvature[:, None]).T @ x + ridge
    step = np.linalg.solve(hessian, gradient)
    beta = beta - step
    if np.abs(step).max() < 1e-10:
      break
  return lambda new: prepared(new) @ beta
