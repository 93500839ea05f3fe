"""Retrieval among held-out images: recall@k, mean average precision, search.

Each image queries all the others (leave-one-out). Exact, a block of rows of
the score matrix at a time.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_dpemb.evaluation import interval

_BLOCK_ROWS = 512
_FLOAT32_COSINE = 1e-6  # cosines that float32 embeddings cannot tell apart


@dataclasses.dataclass(frozen=True)
class RetrievalResult:
  """Retrieval figures.

  Attributes:
    queries: Images that have at least one other image of their identity.
    identities: Identities that own a query.
    recall_at: By k, the share of queries with an image of their identity
      among the k nearest of all other images.
    mean_average_precision: Mean over queries of the average precision over
      all other images.
  """

  queries: int
  identities: int
  recall_at: dict[int, interval.Interval]
  mean_average_precision: interval.Interval


def retrieval_report(
  embeddings: np.ndarray,
  identities: np.ndarray,
  *,
  ranks: Sequence[int] = (1, 5),
  confidence: float = 0.95,
) -> RetrievalResult:
  """Returns leave-one-out retrieval figures, averaged over queries.

  Ties count against the query: an image of another identity with the same
  cosine ranks first. The interval is a delete-one-identity jackknife over the
  queries; the gallery stays whole (dropping one of many identities from it
  changes the other queries only to second order).

  Args:
    embeddings: float [n, embedding_dim], unit L2 norm.
    identities: [n], which identity each image shows.
    ranks: The k of recall@k, each in [1, n).
    confidence: Level of the intervals, in (0, 1).

  Raises:
    EvaluationError: As `verification.verification_report`, or an illegal k.
  """
  embeddings = interval.check_embeddings('embeddings', embeddings)
  codes, num_identities = interval.check_identities(
    identities, count=len(embeddings)
  )
  interval.check_confidence(confidence)
  for rank in ranks:
    if not 1 <= rank < len(embeddings):
      raise interval.EvaluationError(
        f'ranks must be in [1, {len(embeddings)}), got {rank}.'
      )
  sizes = np.bincount(codes, minlength=num_identities)
  members = np.split(np.argsort(codes, kind='stable'), np.cumsum(sizes)[:-1])

  queries = np.flatnonzero(sizes[codes] > 1)
  first_rank = np.empty(len(queries), np.int64)
  precision = np.empty(len(queries), np.float64)
  for start in range(0, len(queries), _BLOCK_ROWS):
    block = queries[start : start + _BLOCK_ROWS]
    scores = embeddings[block] @ embeddings.T
    for offset, query in enumerate(block):
      row = scores[offset]
      own = members[codes[query]]
      relevant = np.sort(row[own[own != query]])[::-1]
      row[own] = -np.inf
      # Rank of the j-th relevant image: itself, those before it, and every
      # image of another identity that scores as high.
      others = _counts_at_least(row, relevant)
      places = np.arange(1, len(relevant) + 1)
      first_rank[start + offset] = 1 + others[0]
      precision[start + offset] = np.mean(places / (places + others))

  def averaged(values: np.ndarray) -> interval.Interval:
    return _mean_over_queries(
      values.astype(np.float64), codes[queries], confidence=confidence
    )

  return RetrievalResult(
    queries=len(queries),
    identities=int(np.count_nonzero(sizes > 1)),
    recall_at={int(rank): averaged(first_rank <= rank) for rank in ranks},
    mean_average_precision=averaged(precision),
  )


def nearest(
  queries: np.ndarray, gallery: np.ndarray, *, neighbours: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the nearest gallery rows of each query, by exact search.

  Args:
    queries: float [q, embedding_dim], unit L2 norm.
    gallery: float [n, embedding_dim], unit L2 norm.
    neighbours: How many, at most n of them are returned.

  Returns:
    indices int64 [q, k] and cosines float32 [q, k], the nearest first; of
    equal cosines the lower index comes first.

  Raises:
    EvaluationError: Shapes that do not fit, NaN or Inf, not unit-norm.
  """
  queries = interval.check_embeddings('queries', queries)
  gallery = interval.check_embeddings('gallery', gallery)
  if queries.shape[1] != gallery.shape[1]:
    raise interval.EvaluationError(
      'queries and gallery must have one embedding_dim, got'
      f' {queries.shape[1]} and {gallery.shape[1]}.'
    )
  if neighbours < 1:
    raise interval.EvaluationError(
      f'neighbours must be >= 1, got {neighbours}.'
    )
  count = min(neighbours, len(gallery))
  indices = np.empty((len(queries), count), np.int64)
  cosines = np.empty((len(queries), count), np.float32)
  for start in range(0, len(queries), _BLOCK_ROWS):
    block = slice(start, start + _BLOCK_ROWS)
    scores = queries[block] @ gallery.T
    order = np.argsort(-scores, axis=1, kind='stable')[:, :count]
    indices[block] = order
    cosines[block] = np.take_along_axis(scores, order, axis=1)
  return indices, cosines


def agrees_with_exact(
  query: np.ndarray, gallery: np.ndarray, found: Sequence[int]
) -> bool:
  """Returns whether `found` is what brute force in float64 finds.

  Cosines that differ by 1e-6 or less, which float32 embeddings cannot tell
  apart, may change places.

  Args:
    query: [embedding_dim].
    gallery: [n, embedding_dim].
    found: Positions in the gallery, best first.
  """
  cosines = gallery.astype(np.float64) @ query.astype(np.float64)
  best = np.sort(cosines)[::-1][: len(found)]
  close = np.abs(cosines[list(found)] - best) <= _FLOAT32_COSINE
  return len(set(found)) == len(found) and bool(close.all())


def _counts_at_least(row: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Returns, for each of the descending `values`, how many of row reach it."""
  reaching = np.sort(row[row >= values[-1]])
  return len(reaching) - np.searchsorted(reaching, values, side='left')


def _mean_over_queries(
  values: np.ndarray, codes: np.ndarray, *, confidence: float
) -> interval.Interval:
  """Returns the mean of values [queries] with its interval over identities."""
  sums = np.bincount(codes, weights=values)
  counts = np.bincount(codes)
  sums, counts = sums[counts > 0], counts[counts > 0]
  value = min(1.0, float(sums.sum() / counts.sum()))
  with np.errstate(invalid='ignore', divide='ignore'):
    left = (sums.sum() - sums) / (counts.sum() - counts)
  return interval.jackknife_interval(value, left, confidence=confidence)
