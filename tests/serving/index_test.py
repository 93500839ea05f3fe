"""Tests of serving.index; TensorFlow is not imported."""

import json

import numpy as np
import pytest

from serving import index as index_lib
from serving import status

_MODEL = 'ab' * 32


def _unit(rng, count, dim):
  rows = rng.normal(size=[count, dim])
  return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _build(path, vectors, **changes):
  arguments = {'ids': [str(i) for i in range(len(vectors))]} | changes
  return index_lib.build(path, vectors, model_digest=_MODEL, **arguments)


@pytest.fixture(scope='module')
def built(tmp_path_factory):
  vectors = _unit(np.random.default_rng(0), 3000, 24)
  path = tmp_path_factory.mktemp('index') / 'index'
  _build(path, vectors, labels=[str(i % 5) for i in range(3000)])
  return path, vectors


@pytest.mark.parametrize('num_queries', [1, 7, 64])
@pytest.mark.parametrize('k', [1, 10, 200])
def test_agrees_with_numpy_on_all_pairs(built, num_queries, k):
  """faiss sums in another order for each number of queries."""
  path, vectors = built
  queries = _unit(np.random.default_rng(num_queries), num_queries, 24)
  scores, positions = index_lib.load(path).search(queries, k)
  expected_scores, expected = index_lib.exact_search(vectors, queries, k)
  np.testing.assert_array_equal(positions, expected)
  np.testing.assert_array_equal(scores, expected_scores)


def test_ties_come_in_order_of_position(tmp_path):
  """More equal items than the first fetch holds, with others between."""
  rng = np.random.default_rng(3)
  vectors = _unit(rng, 400, 8)
  tied = rng.permutation(400)[:300]
  vectors[tied] = vectors[tied[0]]
  found = _build(tmp_path / 'index', vectors)
  _, positions = found.search(vectors[tied[:1]], 5)
  np.testing.assert_array_equal(positions[0], np.sort(tied)[:5])
  _, positions = found.search(vectors[tied[:1]], 300)
  np.testing.assert_array_equal(positions[0], np.sort(tied))


def test_near_ties_are_ordered_by_their_exact_cosine(tmp_path):
  """Items closer to each other than float32 sums can tell."""
  rng = np.random.default_rng(4)
  base = _unit(rng, 1, 512)
  vectors = base + rng.normal(0, 1e-7, [500, 512]).astype(np.float32)
  found = _build(tmp_path / 'index', vectors)
  queries = base + rng.normal(0, 0.01, [25, 512]).astype(np.float32)
  _, positions = found.search(queries, 20)
  _, expected = index_lib.exact_search(vectors, queries, 20)
  np.testing.assert_array_equal(positions, expected)


def test_neighbours(built):
  path, vectors = built
  found = index_lib.load(path)
  assert len(found) == 3000
  assert found.dimension == 24
  assert found.model_digest == _MODEL
  first = found.neighbours(5 * vectors[[17]], 2)[0][0]
  assert (first.id, first.label, first.position) == ('17', '2', 17)
  assert first.score == pytest.approx(1, abs=1e-6)


def test_k_beyond_the_items(tmp_path):
  found = _build(tmp_path / 'index', np.eye(3, dtype=np.float32))
  scores, positions = found.search(np.array([[1.0, 0.5, 0.1]]), 10)
  np.testing.assert_array_equal(positions, [[0, 1, 2]])
  assert scores.shape == (1, 3)
  assert found.labels == ('', '', '')


@pytest.mark.parametrize(
  ('queries', 'k', 'message'),
  [
    (np.ones([1, 24]), 0, 'k must be >= 1, got 0'),
    (np.ones([1, 23]), 1, r'queries must be \[Q, 24\]'),
    (np.ones([24]), 1, r'queries must be \[N, D\]'),
    (np.zeros([2, 24]), 1, 'queries must be finite and not zero, got 2 bad'),
    (np.full([1, 24], np.nan), 1, 'finite and not zero'),
    (np.full([1, 24], np.inf), 1, 'finite and not zero'),
  ],
)
def test_bad_query(built, queries, k, message):
  with pytest.raises(ValueError, match=message):
    index_lib.load(built[0]).search(queries, k)


@pytest.mark.parametrize(
  ('vectors', 'changes', 'message'),
  [
    (np.eye(3), {'ids': ['a', 'b']}, 'ids must be one for each embedding, 3'),
    (np.eye(3), {'labels': ['a']}, 'labels must be one for each'),
    (np.eye(3), {'ids': ['a', 'b', 'a']}, 'ids must be distinct, got 1'),
    (np.zeros([0, 3]), {}, 'at least 1 row'),
    (np.zeros([1, 3]), {}, 'embeddings must be finite and not zero'),
    (np.eye(3), {'model_digest': ''}, 'model_digest must be'),
    (np.eye(3), {'model_digest': 'm'}, r"\(64 hex digits\), got 'm'"),
  ],
)
def test_bad_items(tmp_path, vectors, changes, message):
  arguments = {
    'ids': [str(i) for i in range(len(vectors))],
    'model_digest': _MODEL,
  } | changes
  with pytest.raises(ValueError, match=message):
    index_lib.build(tmp_path / 'index', vectors, **arguments)
  assert not (tmp_path / 'index').exists()


def test_existing_index_is_replaced_only_on_request(tmp_path):
  _build(tmp_path / 'index', np.eye(3))
  with pytest.raises(status.IndexDamaged, match='must not exist'):
    _build(tmp_path / 'index', np.eye(2))
  _build(tmp_path / 'index', np.eye(2), replace=True)
  assert len(index_lib.load(tmp_path / 'index')) == 2


def _flip(path):
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  path.write_bytes(bytes(data))


def _edit(path, **changes):
  manifest = json.loads((path / 'manifest.json').read_text())
  (path / 'manifest.json').write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda p: _flip(p / 'vectors.faiss'), "'vectors.faiss' has another SHA"),
    (lambda p: _flip(p / 'items.json'), "'items.json' has another SHA"),
    (lambda p: (p / 'items.json').unlink(), "'items.json' is missing"),
    (lambda p: (p / 'manifest.json').unlink(), 'must be a readable file'),
    (
      lambda p: _edit(p, schema='dpemb.index/1'),
      "must have schema 'dpemb.index/2', got 'dpemb.index/1'; build it again",
    ),
    (lambda p: _edit(p, count=4), 'differ in size'),
    (lambda p: _edit(p, index_digest='0' * 64), 'another digest'),
    (lambda p: _edit(p, index_digest='0'), 'index_digest must match'),
    (lambda p: _edit(p, files=None), 'files must be an object, got None'),
    (lambda p: _edit(p, files={}), 'lists other files than an index has'),
    (lambda p: _edit(p, normalised=False), 'normalised must be one of True'),
    (lambda p: _edit(p, more=1), 'more is not part of this form'),
  ],
)
def test_damaged_index_is_refused(tmp_path, damage, message):
  path = tmp_path / 'index'
  _build(path, np.eye(3))
  damage(path)
  with pytest.raises(status.IndexDamaged, match=message) as caught:
    index_lib.load(path)
  assert '\n' not in str(caught.value)


# As written on the day of this form: it must go on to be read.
_KEPT = """{
  "schema": "dpemb.index/2",
  "files": {
    "vectors.faiss": "a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0",
    "items.json": "b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0"
  },
  "kind": "flat_inner_product",
  "model_digest": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
  "dimension": 24,
  "count": 3000,
  "normalised": true,
  "index_digest": "3e03723e48599a94d06606f298207859736982f384089c9dc23c6798e29e8454"
}"""


def test_kept_manifest_is_read():
  kept = index_lib.Manifest.from_json(json.loads(_KEPT))
  assert kept.files_digest == kept.index_digest
  assert (
    kept.digest
    == 'b0c193406f059934878581fef3a60f1df71af65659e5b1d414be306cd10ed43a'
  )
  assert kept.to_json() == json.loads(_KEPT)
