"""The figures of one embedding on held-out identities, as JSON values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_dpemb.evaluation import retrieval
from tff_dpemb.evaluation import verification


def measure(
  embeddings: np.ndarray,
  identities: np.ndarray,
  *,
  false_accept_rates: Sequence[float],
  confidence: float,
) -> dict[str, Any]:
  """Returns verification and retrieval figures with their intervals.

  Args:
    embeddings: float [n, embedding_dim], unit L2 norm.
    identities: [n], which identity each image shows.
    false_accept_rates: Of recall@FAR, each in (0, 1).
    confidence: Level of the intervals, in (0, 1).

  Raises:
    EvaluationError: As `verification.verification_report`.
  """
  pairs = verification.verification_report(
    embeddings,
    identities,
    false_accept_rates=false_accept_rates,
    confidence=confidence,
  )
  neighbours = retrieval.retrieval_report(
    embeddings, identities, confidence=confidence
  )
  return {
    'identities': pairs.identities,
    'pairs': pairs.pairs,
    'recall_at_far': {
      f'{far:g}': figure.to_json()
      for far, figure in pairs.recall_at_far.items()
    },
    'roc': [[p.false_accept_rate, p.recall] for p in pairs.roc],
    'recall_at_1': neighbours.recall_at[1].to_json(),
    'mean_average_precision': neighbours.mean_average_precision.to_json(),
  }


def pixel_embeddings(images: np.ndarray) -> np.ndarray:
  """Returns unit-norm raw pixels [n, H*W*C], each image's mean removed.

  A blank image, which has no direction, becomes a fixed unit vector.

  Args:
    images: uint8 [n, H, W, C].
  """
  flat = images.reshape(len(images), -1).astype(np.float64)
  flat -= flat.mean(axis=1, keepdims=True)
  norms = np.linalg.norm(flat, axis=1, keepdims=True)
  blank = norms[:, 0] == 0
  flat[blank, 0], norms[blank] = 1.0, 1.0
  return (flat / norms).astype(np.float32)
