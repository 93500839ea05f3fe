"""Train on synthetic, test on real: accuracies with intervals over users.

`accuracy_on_real` and `share_of_real` are statistics of private data without
noise: for engineers only, covered by no guarantee.
"""

import dataclasses
from typing import Any

import numpy as np

from tff_dpemb.evaluation import interval

EvaluationError = interval.EvaluationError

# Figures computed on private data without noise: not to be published.
RESTRICTED = ('accuracy_on_real', 'share_of_real')


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A net trained on synthetic data beside the same net trained on real data.

  Attributes:
    accuracy: Of the net trained on the synthetic set.
    accuracy_on_real: Of the net trained on real private embeddings without
      noise. RESTRICTED: no guarantee covers it.
    chance: Share of the commonest class among the test labels: the accuracy
      of the best constant answer.
    uniform_chance: 1 / declared classes.
    examples: Test images.
    identities: Users that own them.
  """

  accuracy: interval.Interval
  accuracy_on_real: interval.Interval
  chance: float
  uniform_chance: float
  examples: int
  identities: int

  @property
  def share_of_real(self) -> float:
    """Returns how far from chance (0) to the real data's accuracy (1).

    RESTRICTED: it gives `accuracy_on_real` away, which has no noise.
    """
    room = self.accuracy_on_real.value - self.chance
    if room <= 0:  # Real data is no better than chance: nothing to reach.
      return 1.0 if self.accuracy.value >= self.chance else 0.0
    return (self.accuracy.value - self.chance) / room

  def to_json(self) -> dict[str, Any]:
    """Returns the figures as JSON values; those in 'restricted' stay inside."""
    return {
      'accuracy': self.accuracy.to_json(),
      'accuracy_on_real': {**self.accuracy_on_real.to_json(), 'restricted': 1},
      'chance': self.chance,
      'uniform_chance': self.uniform_chance,
      'share_of_real': self.share_of_real,
      'examples': self.examples,
      'identities': self.identities,
      'restricted': list(RESTRICTED),
    }


def compare(
  predicted: np.ndarray,
  predicted_on_real: np.ndarray,
  labels: np.ndarray,
  identities: np.ndarray,
  *,
  declared_classes: int,
  confidence: float = 0.95,
) -> Comparison:
  """Returns both accuracies, with jackknife intervals over identities.

  Args:
    predicted: Labels predicted by the net trained on synthetic data [n].
    predicted_on_real: ... by the one trained on real private data [n]:
      what is computed of them is RESTRICTED.
    labels: True labels [n].
    identities: User of each test image [n].
    declared_classes: How many classes were declared, >= 1.
    confidence: Level of the intervals, in (0, 1).

  Raises:
    EvaluationError: No row, shapes disagree, or a value breaks its rule.
  """
  if declared_classes < 1:
    raise EvaluationError(
      f'declared_classes must be >= 1, got {declared_classes}.'
    )
  labels = np.asarray(labels)
  _, counts = np.unique(labels, return_counts=True)
  both = [
    accuracy(guess, labels, identities, confidence=confidence)
    for guess in (predicted, predicted_on_real)
  ]
  return Comparison(
    accuracy=both[0],
    accuracy_on_real=both[1],
    chance=float(counts.max() / counts.sum()),
    uniform_chance=1 / declared_classes,
    examples=len(labels),
    identities=len(np.unique(identities)),
  )


def accuracy(
  predicted: np.ndarray,
  labels: np.ndarray,
  identities: np.ndarray,
  *,
  confidence: float = 0.95,
) -> interval.Interval:
  """Returns the share of right answers with its interval over identities.

  Images of one user are not independent, so one user at a time is left out.

  Raises:
    EvaluationError: No row, shapes disagree, or confidence is out of range.
  """
  interval.check_confidence(confidence)
  predicted, labels = np.asarray(predicted), np.asarray(labels)
  identities = np.asarray(identities)
  if not labels.size or labels.ndim != 1:
    raise EvaluationError(f'labels must be [n >= 1], got {list(labels.shape)}.')
  if predicted.shape != labels.shape or identities.shape != labels.shape:
    raise EvaluationError(
      f'predictions and identities must be [{labels.size}] as the labels, got'
      f' {list(predicted.shape)} and {list(identities.shape)}.'
    )
  right = predicted == labels
  _, user, rows = np.unique(identities, return_inverse=True, return_counts=True)
  total, n = right.sum(), labels.size
  value = float(total / n)
  if len(rows) < 2:
    return interval.Interval(value, 0.0, 1.0)
  left_out = (total - np.bincount(user, weights=right)) / (n - rows)
  return interval.jackknife_interval(value, left_out, confidence=confidence)
