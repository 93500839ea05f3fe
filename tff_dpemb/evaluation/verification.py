"""Verification over all pairs of held-out images: ROC and recall@FAR.

Two images are accepted as one identity when their cosine reaches a threshold.
FAR is the share of different-identity pairs accepted; recall@FAR is the share
of same-identity pairs accepted at the smallest threshold whose FAR is not
above the asked one (the metric of DP-FedEmb, arXiv 2211.10844, section 5).

The figures are exact over all n (n - 1) / 2 pairs and use bounded memory. A
score is the float32 cosine on a grid of 2**-24 (float32's own step below 1),
an integer code of 25 bits. One pass over tiles of the score matrix counts the
high bits (bins); a second pass counts the low bits inside the bin in which
each threshold lies. This is a radix selection: nothing is sampled or sorted.
"""

import dataclasses
import fractions
from collections.abc import Iterator, Sequence

import numpy as np

from tff_dpemb.evaluation import interval

_SCORE_BITS = 24  # a score of 1.0 is the code 2 * 2**24
_LOW_BITS = 14
_BINS = (2 << _SCORE_BITS >> _LOW_BITS) + 1  # the last one holds cosine 1.0
_TILE_ROWS = 1024
_TILE_COLUMNS = 4096
_ROC_POINTS = 200
_JACKKNIFE_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class RocPoint:
  """One exact point of the ROC: accept when cosine >= threshold."""

  threshold: float
  false_accept_rate: float
  recall: float


@dataclasses.dataclass(frozen=True)
class VerificationResult:
  """Verification figures over all pairs.

  Attributes:
    identities: Number of identities.
    pairs_same: Number of pairs of two images of one identity.
    pairs_different: Number of pairs of images of different identities.
    recall_at_far: Recall with its interval, by the asked false accept rate.
    thresholds: The cosine from which a pair is accepted, by the same key.
    roc: Exact points by increasing false accept rate, at most 200 or so.
  """

  identities: int
  pairs_same: int
  pairs_different: int
  recall_at_far: dict[float, interval.Interval]
  thresholds: dict[float, float]
  roc: tuple[RocPoint, ...]

  @property
  def pairs(self) -> int:
    """All pairs."""
    return self.pairs_same + self.pairs_different


@dataclasses.dataclass(frozen=True)
class _Tile:
  """Scores of a rectangle of the upper triangle, as codes.

  Rows are sorted by identity. A tile on the diagonal holds same-identity
  pairs and pairs of the lower triangle too; elsewhere it may hold same pairs
  only when one identity spans it.
  """

  rows: slice
  columns: slice
  codes: np.ndarray  # int32 [rows, columns]


def verification_report(
  embeddings: np.ndarray,
  identities: np.ndarray,
  *,
  false_accept_rates: Sequence[float] = (1e-3, 1e-2, 1e-1),
  confidence: float = 0.95,
) -> VerificationResult:
  """Returns exact verification figures over all pairs.

  Of d different-identity pairs, at most floor(FAR * d) are accepted. When
  FAR * d < 1 none is, and the threshold is just above the closest of them.

  The interval deletes one identity at a time, all pairs that it touches with
  it, and finds the threshold again. Approximation: the delete-one figures
  come from histograms of 2**-10 wide bins of cosine, with pairs taken as
  evenly spread inside the bin of the threshold. The figure itself does not.

  Args:
    embeddings: float [n, embedding_dim], unit L2 norm.
    identities: [n], which identity each image shows.
    false_accept_rates: Rates in (0, 1).
    confidence: Level of the intervals, in (0, 1).

  Raises:
    EvaluationError: Fewer than two identities, no identity with two images,
      NaN or Inf or rows that are not unit-norm, an illegal rate.
  """
  embeddings = interval.check_embeddings('embeddings', embeddings)
  codes, num_identities = interval.check_identities(
    identities, count=len(embeddings)
  )
  interval.check_confidence(confidence)
  for rate in false_accept_rates:
    if not 0 < rate < 1:
      raise interval.EvaluationError(
        f'false_accept_rates must be in (0, 1), got {rate}.'
      )
  order = np.argsort(codes, kind='stable')
  embeddings, codes = embeddings[order], codes[order]

  same, different = _histograms(embeddings, codes, num_identities)
  same_total = same.sum(axis=0, dtype=np.int64)
  # A different-identity pair is in the histograms of both its identities.
  different_total = different.sum(axis=0, dtype=np.int64) // 2
  pairs_same = int(same_total.sum())
  pairs_different = int(different_total.sum())

  # floor(rate * pairs) in exact arithmetic: 0.29 * 100 must be 29.
  rates = [fractions.Fraction(repr(float(rate))) for rate in false_accept_rates]
  allowed = [int(rate * pairs_different) for rate in rates]
  thresholds, accepted = _select(
    embeddings, codes, same_total, different_total, allowed
  )
  recall_at_far, threshold_at_far = {}, {}
  for rate, threshold, count in zip(
    false_accept_rates, thresholds, accepted, strict=True
  ):
    left = _delete_one_recalls(same, different, float(rate))
    recall_at_far[float(rate)] = interval.jackknife_interval(
      count / pairs_same, left, confidence=confidence
    )
    threshold_at_far[float(rate)] = _score_of_code(threshold)
  return VerificationResult(
    identities=num_identities,
    pairs_same=pairs_same,
    pairs_different=pairs_different,
    recall_at_far=recall_at_far,
    thresholds=threshold_at_far,
    roc=_roc(same_total, different_total),
  )


def _score_of_code(code: int) -> float:
  return code / (1 << _SCORE_BITS) - 1.0


def _tiles(embeddings: np.ndarray) -> Iterator[_Tile]:
  """Yields every tile of the upper triangle; bit-equal on every call."""
  count = len(embeddings)
  scores = np.empty((_TILE_ROWS, _TILE_COLUMNS), np.float32)
  for top in range(0, count, _TILE_ROWS):
    rows = slice(top, min(top + _TILE_ROWS, count))
    for left in range(top, count, _TILE_COLUMNS):
      columns = slice(left, min(left + _TILE_COLUMNS, count))
      view = scores[: rows.stop - top, : columns.stop - left]
      np.matmul(embeddings[rows], embeddings[columns].T, out=view)
      np.clip(view, -1.0, 1.0, out=view)  # Rounding may pass 1 by an ulp.
      view *= np.float32(1 << _SCORE_BITS)
      codes = np.rint(view, out=view).astype(np.int32)
      codes += 1 << _SCORE_BITS
      yield _Tile(rows=rows, columns=columns, codes=codes)


def _mixed(tile: _Tile, identities: np.ndarray) -> bool:
  """Whether the tile may hold anything but different-identity pairs."""
  last = identities[tile.rows.stop - 1]
  return bool(identities[tile.columns.start] <= last)


def _masks(
  tile: _Tile, identities: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns bool masks of the tile's same and different pairs, each once."""
  row_identity = identities[tile.rows][:, None]
  column_identity = identities[tile.columns][None, :]
  row = np.arange(tile.rows.start, tile.rows.stop)[:, None]
  column = np.arange(tile.columns.start, tile.columns.stop)[None, :]
  return (
    (row_identity == column_identity) & (row < column),
    row_identity < column_identity,
  )


def _histograms(
  embeddings: np.ndarray, identities: np.ndarray, num_identities: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns same and different histograms, uint32 [identities, bins] each.

  Memory: 16 kB an identity, and a few hundred MB for the tiles at most.
  """
  same = np.zeros((num_identities, _BINS), np.uint32)
  different = np.zeros((num_identities, _BINS), np.uint32)
  for tile in _tiles(embeddings):
    bins = tile.codes >> _LOW_BITS
    row_identity = np.broadcast_to(identities[tile.rows][:, None], bins.shape)
    column_identity = np.broadcast_to(identities[tile.columns], bins.shape)
    if _mixed(tile, identities):
      same_mask, mask = _masks(tile, identities)
      _count(same, row_identity[same_mask], bins[same_mask])
      bins = bins[mask]
      row_identity, column_identity = row_identity[mask], column_identity[mask]
    if bins.size:
      _count(different, row_identity, bins)
      _count(different, column_identity, bins)
  return same, different


def _count(
  histograms: np.ndarray, identities: np.ndarray, bins: np.ndarray
) -> None:
  """Adds one to histograms[identity, bin] for each pair."""
  if not bins.size:
    return
  first, last = int(identities.min()), int(identities.max())
  index = (identities - first) * _BINS + bins
  counts = np.bincount(index.ravel(), minlength=(last - first + 1) * _BINS)
  histograms[first : last + 1] += counts.reshape(-1, _BINS).astype(np.uint32)


def _select(
  embeddings: np.ndarray,
  identities: np.ndarray,
  same_total: np.ndarray,
  different_total: np.ndarray,
  allowed: Sequence[int],
) -> tuple[list[int], list[int]]:
  """Returns, for each allowed count, threshold code and accepted same pairs.

  With k different pairs allowed, the pair of rank k + 1 must be refused, so
  the threshold is one code above its score.
  """
  descending = np.cumsum(different_total[::-1])
  bins = [
    _BINS - 1 - int(np.searchsorted(descending, count, side='right'))
    for count in allowed
  ]
  same_low = {b: np.zeros(1 << _LOW_BITS, np.int64) for b in bins}
  different_low = {b: np.zeros(1 << _LOW_BITS, np.int64) for b in bins}
  for tile in _tiles(embeddings):
    tile_bins = tile.codes >> _LOW_BITS
    masks = _masks(tile, identities) if _mixed(tile, identities) else None
    for b in same_low:
      inside = tile_bins == b
      if masks is None:
        _count_low(different_low[b], tile.codes[inside])
      else:
        _count_low(same_low[b], tile.codes[inside & masks[0]])
        _count_low(different_low[b], tile.codes[inside & masks[1]])

  thresholds, accepted = [], []
  for b, count in zip(bins, allowed, strict=True):
    left = count - int(different_total[b + 1 :].sum())
    ranks = np.cumsum(different_low[b][::-1])
    refused = (1 << _LOW_BITS) - 1
    refused -= int(np.searchsorted(ranks, left, side='right'))
    thresholds.append((b << _LOW_BITS) + refused + 1)
    inside = int(same_low[b][refused + 1 :].sum())
    accepted.append(int(same_total[b + 1 :].sum()) + inside)
  return thresholds, accepted


def _count_low(counts: np.ndarray, codes: np.ndarray) -> None:
  low = codes & ((1 << _LOW_BITS) - 1)
  counts += np.bincount(low, minlength=1 << _LOW_BITS)


def _delete_one_recalls(
  same: np.ndarray, different: np.ndarray, rate: float
) -> np.ndarray:
  """Returns float64 [identities], recall@FAR without each identity.

  NaN where no pair of either kind is left.
  """
  same_total = same.sum(axis=0, dtype=np.int64)
  different_total = different.sum(axis=0, dtype=np.int64) // 2
  recalls = []
  for start in range(0, len(same), _JACKKNIFE_CHUNK):
    chunk = slice(start, start + _JACKKNIFE_CHUNK)
    # Counts at or above each bin, from the highest bin down.
    left_different = np.cumsum((different_total - different[chunk])[:, ::-1], 1)
    left_same = np.cumsum((same_total - same[chunk])[:, ::-1], 1)
    allowed = rate * left_different[:, -1:]
    deciding = np.argmax(left_different > allowed, axis=1)[:, None]
    above = np.maximum(deciding - 1, 0)

    def at(counts, deciding=deciding, above=above):
      high = np.take_along_axis(counts, deciding, 1).astype(np.float64)
      low = np.take_along_axis(counts, above, 1).astype(np.float64)
      return high, np.where(deciding == 0, 0.0, low)

    different_high, different_low = at(left_different)
    same_high, same_low = at(left_same)
    with np.errstate(invalid='ignore', divide='ignore'):
      share = (allowed - different_low) / (different_high - different_low)
      recall = same_low + share * (same_high - same_low)
      recalls.append((recall / left_same[:, -1:]).ravel())
  return np.concatenate(recalls)


def _roc(
  same_total: np.ndarray, different_total: np.ndarray
) -> tuple[RocPoint, ...]:
  """Returns exact points at bin edges, evenly spaced in log FAR or recall."""
  rates = np.cumsum(different_total[::-1]) / different_total.sum()
  recalls = np.cumsum(same_total[::-1]) / same_total.sum()
  floor = 1.0 / float(different_total.sum())
  half = _ROC_POINTS // 2
  wanted_rates = np.geomspace(floor, 1.0, half)
  wanted_recalls = np.linspace(0.0, 1.0, half)
  keep = np.unique(
    np.concatenate(
      [
        np.searchsorted(rates, wanted_rates),
        np.searchsorted(recalls, wanted_recalls),
      ]
    ).clip(0, _BINS - 1)
  )
  return tuple(
    RocPoint(
      threshold=_score_of_code((_BINS - 1 - int(i)) << _LOW_BITS),
      false_accept_rate=float(rates[i]),
      recall=float(recalls[i]),
    )
    for i in keep
  )
