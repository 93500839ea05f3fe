import numpy as np
import pytest

from tff_dpemb.data import cohorts


def _rng(seed=0):
  return np.random.default_rng(seed)


class TestDrawCohort:
  @pytest.mark.parametrize(
    ('population', 'probability'), [(1000, 0.1), (50_000, 0.001), (40, 0.5)]
  )
  def test_size_is_binomial(self, population, probability):
    # 2 000 draws. Mean within 5 standard errors sqrt(qN(1-q)/2000), variance
    # within 5 standard errors qN(1-q) sqrt(2/2000): false alarms below 1e-5
    # for both, and the seed is fixed.
    draws, rng = 2000, _rng(1)
    sizes = [
      len(cohorts.draw_cohort(population, probability, rng=rng))
      for _ in range(draws)
    ]
    variance = population * probability * (1 - probability)
    assert abs(np.mean(sizes) - population * probability) < 5 * np.sqrt(
      variance / draws
    )
    assert abs(np.var(sizes) - variance) < 5 * variance * np.sqrt(2 / draws)

  def test_users_enter_independently(self):
    # 4 000 draws of 30 users with q = 0.3. Every user's rate and every pair's
    # joint rate within 5.5 standard errors; by the union bound over 30 + 435
    # statistics a false alarm in 465 * 4e-8 = 2e-5 of seeds.
    draws, users, q = 4000, 30, 0.3
    rng = _rng(2)
    taken = np.zeros((draws, users))
    for row in taken:
      row[cohorts.draw_cohort(users, q, rng=rng)] = 1
    joint = taken.T @ taken / draws
    rates = np.diag(joint)
    assert np.abs(rates - q).max() < 5.5 * np.sqrt(q * (1 - q) / draws)
    pairs = joint[np.triu_indices(users, 1)]
    bound = 5.5 * np.sqrt(q**2 * (1 - q**2) / draws)
    assert np.abs(pairs - q**2).max() < bound

  def test_distinct_and_sorted(self):
    cohort = cohorts.draw_cohort(100_000, 0.4, rng=_rng())
    assert cohort.dtype == np.int64
    assert np.all(np.diff(cohort) > 0)
    assert cohort[0] >= 0 and cohort[-1] < 100_000

  def test_costs_the_cohort_not_the_population(self):
    # A population of 10**15 would need petabytes if it were walked.
    cohort = cohorts.draw_cohort(10**15, 1e-13, rng=_rng(3))
    assert 40 < len(cohort) < 180  # Poisson(100), 6 standard deviations

  def test_edges(self):
    assert cohorts.draw_cohort(0, 0.5, rng=_rng()).tolist() == []
    assert cohorts.draw_cohort(5, 0.0, rng=_rng()).tolist() == []
    assert cohorts.draw_cohort(5, 1.0, rng=_rng()).tolist() == [0, 1, 2, 3, 4]

  @pytest.mark.parametrize('probability', [-0.1, 1.1, float('nan')])
  def test_illegal_probability(self, probability):
    with pytest.raises(ValueError, match=r'probability must be in \[0, 1\]'):
      cohorts.draw_cohort(5, probability, rng=_rng())

  def test_illegal_population(self):
    with pytest.raises(ValueError, match='population must be >= 0, got -1'):
      cohorts.draw_cohort(-1, 0.5, rng=_rng())


class TestAssignVirtualClients:
  def test_partition(self):
    indices = np.array([9, 3, 77, 12, 5, 1000])
    clients = cohorts.assign_virtual_clients(indices, 4, rng=_rng())
    assert len(clients) == 4
    assert all(client.dtype == np.int64 for client in clients)
    assert sorted(np.concatenate(clients)) == sorted(indices)

  def test_empty_cohort(self):
    clients = cohorts.assign_virtual_clients(
      np.empty(0, np.int64), 3, rng=_rng()
    )
    assert [client.tolist() for client in clients] == [[], [], []]

  def test_one_virtual_client_holds_all(self):
    (client,) = cohorts.assign_virtual_clients(np.arange(20), 1, rng=_rng())
    assert sorted(client) == list(range(20))

  def test_removing_a_user_changes_one_virtual_client_only(self):
    indices = _rng(4).choice(10_000, 120, replace=False)
    full = cohorts.assign_virtual_clients(indices, 8, rng=_rng(7))
    for user in indices[:40]:
      rest = cohorts.assign_virtual_clients(
        indices[indices != user], 8, rng=_rng(7)
      )
      changed = [
        slot for slot in range(8) if not np.array_equal(full[slot], rest[slot])
      ]
      assert len(changed) == 1
      before = full[changed[0]]
      # There, the others keep their order.
      np.testing.assert_array_equal(rest[changed[0]], before[before != user])

  def test_order_of_the_cohort_does_not_matter(self):
    indices = np.arange(50)
    one = cohorts.assign_virtual_clients(indices, 5, rng=_rng(1))
    two = cohorts.assign_virtual_clients(indices[::-1], 5, rng=_rng(1))
    for left, right in zip(one, two, strict=True):
      np.testing.assert_array_equal(left, right)

  def test_slots_are_uniform_and_pairs_independent(self):
    # 3 000 keys, 10 users, 4 slots. Each user's count in each slot: standard
    # deviation sqrt(3000 * 3/16) = 23.7; each pair shares a slot a quarter of
    # the time with the same deviation. 5.5 of them over 40 + 45 statistics:
    # a false alarm in 85 * 4e-8 = 3e-6 of seeds.
    keys, rng = 3000, _rng(6)
    counts = np.zeros((10, 4))
    together = np.zeros((10, 10))
    first = np.zeros(10)
    for _ in range(keys):
      clients = cohorts.assign_virtual_clients(np.arange(10), 4, rng=rng)
      for slot, client in enumerate(clients):
        counts[client, slot] += 1
        together[np.ix_(client, client)] += 1
        if len(client):
          first[client[0]] += 1
    bound = 5.5 * np.sqrt(keys * 3 / 16)
    assert np.abs(counts - keys / 4).max() < bound
    pairs = together[np.triu_indices(10, 1)]
    assert np.abs(pairs - keys / 4).max() < bound
    # Nobody is preferred by a cap: who comes first in a slot is uniform. The
    # mean is keys * E[non-empty slots] / 10; variance below the mean.
    mean = keys * 4 * (1 - 0.75**10) / 10
    assert np.abs(first - mean).max() < 5.5 * np.sqrt(mean)

  def test_a_fresh_key_each_round(self):
    rng = _rng(8)
    one, two = (
      cohorts.assign_virtual_clients(np.arange(64), 8, rng=rng)
      for _ in range(2)
    )
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))

  def test_errors(self):
    with pytest.raises(ValueError, match='num must be > 0, got 0'):
      cohorts.assign_virtual_clients(np.arange(3), 0, rng=_rng())
    with pytest.raises(ValueError, match='distinct'):
      cohorts.assign_virtual_clients(np.array([1, 1]), 2, rng=_rng())


def test_system_generators_differ():
  # 128-bit seeds: equal ones would be an error of the seeding, not chance.
  draws = {cohorts.system_rng().bytes(16) for _ in range(8)}
  assert len(draws) == 8
