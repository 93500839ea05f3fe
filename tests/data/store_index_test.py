import numpy as np
import pytest

from tff_dpemb.data import store_index

# Ann comes twice, with Bob between: [e, (user, shard, start, count)].
_EXTENTS = np.array([[0, 0, 0, 2], [1, 0, 2, 3], [0, 1, 0, 4]])


class TestUsers:
  def test_by_hand(self):
    batch = store_index.users_batch(['ann', 'bob'], _EXTENTS)
    rows = batch.select(
      ['id', 'first_extent', 'num_extents', 'num_examples']
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
      ('ann', 0, 2, 6),
      ('bob', 2, 1, 3),
    ]

  def test_ids_are_found_by_their_hashes(self):
    ids = [f'user-{i}' for i in range(50)]
    extents = np.array([[i, 0, i, 1] for i in range(50)])
    batch = store_index.users_batch(ids, extents)
    hashes = batch.column('sorted_hash').to_numpy()
    assert np.all(np.diff(hashes) > 0)
    for place, index in enumerate(batch.column('sorted_index').to_pylist()):
      assert int(hashes[place]) == store_index.hash_of(ids[index])


def test_extents_of_a_user_are_adjacent_as_written():
  batch = store_index.extents_batch(_EXTENTS)
  assert [tuple(row.values()) for row in batch.to_pylist()] == [
    (0, 0, 0, 2),
    (0, 1, 0, 4),
    (1, 0, 2, 3),
  ]


class TestClassNames:
  _NAMES = {'identity': ['a', 'b', 'c'], 'category': ['x', 'y']}

  @pytest.fixture
  def names(self):
    batch = store_index.classes_batch(self._NAMES)
    # Counts come from a manifest, whose keys may stand in any order.
    return store_index.class_names(batch, {'identity': 3, 'category': 2})

  def test_what_was_written_is_read(self, names):
    assert {column: list(part) for column, part in names.items()} == self._NAMES

  def test_as_a_sequence(self, names):
    identity = names['identity']
    assert len(identity) == 3
    assert identity[-1] == 'c'
    assert identity[:2] == ['a', 'b']
    with pytest.raises(IndexError, match=r'\[0, 3\), got 3'):
      identity[3]


def test_hash_is_kept():
  # `printf ann | b2sum -l 64` is 8d3adf6abf23f3a5, the lowest byte first.
  assert store_index.hash_of('ann') == 0xA5F323BF6ADF3A8D
