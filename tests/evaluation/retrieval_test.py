import numpy as np
import pytest

from tff_dpemb.evaluation import interval
from tff_dpemb.evaluation import retrieval


def _unit(rows):
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _brute_force(embeddings, identities):
  """Returns the first relevant rank and average precision of each query."""
  ranks, precisions = [], []
  for query in range(len(embeddings)):
    others = [i for i in range(len(embeddings)) if i != query]
    relevant = [i for i in others if identities[i] == identities[query]]
    if not relevant:
      continue
    # Ties count against the query: False (other identity) sorts first.
    ordered = sorted(
      others,
      key=lambda i: (
        -float(embeddings[query] @ embeddings[i]),
        identities[i] == identities[query],
      ),
    )
    places = [ordered.index(i) + 1 for i in relevant]
    places.sort()
    ranks.append(places[0])
    precisions.append(
      np.mean([(n + 1) / place for n, place in enumerate(places)])
    )
  return np.array(ranks), np.array(precisions)


class TestRetrievalReport:
  @pytest.mark.parametrize('seed', range(3))
  def test_agrees_with_brute_force(self, seed, monkeypatch):
    monkeypatch.setattr(retrieval, '_BLOCK_ROWS', 7)
    rng = np.random.default_rng(seed)
    embeddings = _unit(rng.normal(size=(60, 5)))
    identities = rng.integers(0, 25, size=60)
    ranks, precisions = _brute_force(embeddings, identities)
    result = retrieval.retrieval_report(embeddings, identities, ranks=(1, 4))
    assert result.queries == len(ranks)
    assert result.recall_at[1].value == pytest.approx(np.mean(ranks <= 1))
    assert result.recall_at[4].value == pytest.approx(np.mean(ranks <= 4))
    assert result.mean_average_precision.value == pytest.approx(
      precisions.mean()
    )

  def test_agrees_with_brute_force_on_ties(self):
    rng = np.random.default_rng(3)
    embeddings = rng.choice([-0.5, 0.5], size=(50, 4))
    identities = rng.integers(0, 20, size=50)
    ranks, precisions = _brute_force(embeddings, identities)
    result = retrieval.retrieval_report(embeddings, identities)
    assert result.recall_at[1].value == pytest.approx(np.mean(ranks <= 1))
    assert result.mean_average_precision.value == pytest.approx(
      precisions.mean()
    )

  def test_equal_embeddings_find_nothing(self):
    embeddings = np.tile([[0.6, 0.8]], (6, 1))
    result = retrieval.retrieval_report(embeddings, [0, 0, 1, 1, 2, 2])
    assert result.recall_at[1].value == 0

  def test_orthogonal_identities_are_perfect(self):
    embeddings = np.repeat(np.eye(3), 2, axis=0)
    result = retrieval.retrieval_report(embeddings, [5, 5, 7, 7, 9, 9])
    assert result.recall_at[1].value == 1
    assert result.mean_average_precision.value == 1

  def test_single_images_are_distractors_not_queries(self):
    embeddings = np.array([[1, 0], [0.8, 0.6], [0.96, 0.28], [0, 1.0]])
    result = retrieval.retrieval_report(embeddings, [0, 0, 1, 2], ranks=(1, 2))
    assert (result.queries, result.identities) == (2, 1)
    assert result.recall_at[1].value == 0
    assert result.recall_at[2].value == 1
    assert result.mean_average_precision.value == 0.5

  def test_interval_is_the_jackknife_over_identities(self):
    # Four identities of two queries with 2, 1, 1 and 0 hits.
    hits = np.array([2, 1, 1, 0])
    left = (hits.sum() - hits) / 6
    expected = interval.jackknife_interval(0.5, left, confidence=0.95)
    figure = retrieval._mean_over_queries(
      np.array([1, 1, 0, 1, 1, 0, 0, 0.0]),
      np.array([0, 0, 1, 1, 2, 2, 3, 3]),
      confidence=0.95,
    )
    assert figure == expected
    assert expected.low < 0.5 < expected.high

  def test_illegal_rank(self):
    with pytest.raises(
      interval.EvaluationError, match=r'ranks must be in \[1, 4\), got 4'
    ):
      retrieval.retrieval_report(np.eye(4), [0, 0, 1, 1], ranks=(4,))

  def test_one_identity(self):
    with pytest.raises(interval.EvaluationError, match='at least 2 identities'):
      retrieval.retrieval_report(np.eye(4), [0, 0, 0, 0])


class TestNearest:
  def test_agrees_with_sorting_all_cosines(self, monkeypatch):
    monkeypatch.setattr(retrieval, '_BLOCK_ROWS', 3)
    rng = np.random.default_rng(4)
    queries = _unit(rng.normal(size=(10, 6)))
    gallery = _unit(rng.normal(size=(30, 6)))
    indices, cosines = retrieval.nearest(queries, gallery, neighbours=5)
    scores = queries @ gallery.T
    assert np.array_equal(indices, np.argsort(-scores, axis=1)[:, :5])
    assert cosines == pytest.approx(-np.sort(-scores, axis=1)[:, :5], abs=1e-6)

  def test_no_more_neighbours_than_the_gallery_has(self):
    indices, _ = retrieval.nearest(np.eye(3), np.eye(3)[:2], neighbours=9)
    assert indices.shape == (3, 2)
    assert indices[2].tolist() == [0, 1]  # equal cosines: lower index first

  @pytest.mark.parametrize(
    ('gallery', 'neighbours', 'match'),
    [
      (np.eye(4), 1, 'one embedding_dim, got 3 and 4'),
      (np.eye(3), 0, 'neighbours must be >= 1, got 0'),
      (np.full((2, 3), np.inf), 1, 'gallery must be finite'),
    ],
  )
  def test_illegal_input(self, gallery, neighbours, match):
    with pytest.raises(interval.EvaluationError, match=match):
      retrieval.nearest(np.eye(3), gallery, neighbours=neighbours)


class TestAgreesWithExact:
  _GALLERY = np.array([[1, 0], [0.8, 0.6], [0, 1], [-1, 0]], np.float32)
  _QUERY = np.array([1, 0], np.float32)

  @pytest.mark.parametrize(
    'found, expected',
    [
      ([0, 1, 2], True),
      ([0, 2, 1], False),  # Wrong order.
      ([0, 1, 3], False),  # A farther item.
      ([0, 0, 1], False),  # One item twice.
    ],
  )
  def test_neighbours_must_be_those_of_brute_force(self, found, expected):
    agrees = retrieval.agrees_with_exact(self._QUERY, self._GALLERY, found)
    assert agrees is expected

  def test_only_cosines_that_float32_cannot_tell_apart_may_change_places(self):
    near = np.array([[1, 0], [1 - 1e-7, 0], [1 - 1e-4, 0]], np.float64)
    assert retrieval.agrees_with_exact(self._QUERY, near, [1, 0, 2])
    assert not retrieval.agrees_with_exact(self._QUERY, near, [0, 2, 1])
