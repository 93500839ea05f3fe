import itertools

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


class TestDrawFixedSize:
  @pytest.mark.parametrize('size', [0, 1, 7, 300, 1000])
  def test_exactly_so_many_distinct_users(self, size):
    cohort = cohorts.draw_fixed_size(1000, size, rng=_rng())
    assert cohort.dtype == np.int64
    assert len(np.unique(cohort)) == size
    assert np.all((cohort >= 0) & (cohort < 1000))

  def test_every_pair_is_as_likely(self):
    # 6 000 draws of 4 users of 8: each of the 28 pairs comes with probability
    # 4 * 3 / (8 * 7). Within 5.5 standard errors: false alarms below 2e-6.
    draws, rng = 6000, _rng(3)
    taken = np.zeros((draws, 8))
    for row in taken:
      row[cohorts.draw_fixed_size(8, 4, rng=rng)] = 1
    pairs = (taken.T @ taken / draws)[np.triu_indices(8, 1)]
    p = 12 / 56
    assert np.abs(pairs - p).max() < 5.5 * np.sqrt(p * (1 - p) / draws)

  @pytest.mark.parametrize('size', [-1, 6])
  def test_illegal_size(self, size):
    with pytest.raises(
      ValueError, match=r'size must be in \[0, population = 5'
    ):
      cohorts.draw_fixed_size(5, size, rng=_rng())


def _schedule(population=1000, separation=7, most=3, *, key=bytes(range(16))):
  return cohorts.Schedule(
    population, separation, max_participations=most, key=key
  )


class TestSchedule:
  @pytest.mark.parametrize(
    ('rounds', 'separation', 'most'),
    [(30, 7, 3), (30, 7, 100), (10, 1, 4), (5, 9, 1), (40, 10, 2)],
  )
  def test_nobody_comes_too_often_or_too_early(self, rounds, separation, most):
    schedule = _schedule(200, separation, most)
    rounds_of = {user: [] for user in range(200)}
    for number in range(rounds):
      for user in schedule.users(number).tolist():
        rounds_of[user].append(number)
    for taken in rounds_of.values():
      assert len(taken) <= most
      assert all(
        later - earlier == separation
        for earlier, later in itertools.pairwise(taken)
      )
      if separation <= rounds:  # All do come, as often as fits.
        fits = len(range(taken[0], rounds, separation))
        assert taken[0] < separation and len(taken) == min(most, fits)

  def test_users_of_a_period_are_a_partition(self):
    schedule = _schedule()
    period = [schedule.users(number) for number in range(7)]
    assert sorted(np.concatenate(period).tolist()) == list(range(1000))
    for number in range(7):
      again = schedule.users(number + 14)
      np.testing.assert_array_equal(period[number], again)
      assert not len(schedule.users(number + 21))  # Three times is enough.

  def test_a_phase_depends_on_the_key_and_the_own_index_alone(self):
    small, large = _schedule(400), _schedule(1000)
    other = _schedule(1000, key=bytes(16))
    for number in range(7):
      users = large.users(number)
      np.testing.assert_array_equal(small.users(number), users[users < 400])
    assert any(
      not np.array_equal(large.users(number), other.users(number))
      for number in range(7)
    )

  def test_phases_are_uniform_and_pairs_independent(self):
    # 4 000 keys, 6 users, 4 phases. Counts of each user in each phase, and of
    # each pair in one phase, have deviation sqrt(4000 * 3/16); 5.5 of them over
    # 24 + 15 statistics: a false alarm in 2e-6 of seeds.
    keys, rng = 4000, _rng(5)
    counts, together = np.zeros((6, 4)), np.zeros((6, 6))
    for _ in range(keys):
      schedule = _schedule(6, 4, key=rng.bytes(16))
      for phase in range(4):
        users = schedule.users(phase)
        counts[users, phase] += 1
        together[np.ix_(users, users)] += 1
    bound = 5.5 * np.sqrt(keys * 3 / 16)
    assert np.abs(counts - keys / 4).max() < bound
    pairs = together[np.triu_indices(6, 1)]
    assert np.abs(pairs - keys / 4).max() < bound

  def test_a_cohort_may_be_changed_by_its_reader(self):
    schedule = _schedule()
    before = schedule.users(0)
    schedule.users(0)[:] = -1
    np.testing.assert_array_equal(schedule.users(0), before)

  @pytest.mark.parametrize(
    ('arguments', 'message'),
    [
      ((-1, 2, 2), 'population must be >= 0, got -1'),
      ((5, 0, 2), 'min_separation must be >= 1, got 0'),
      ((5, 2, 0), 'max_participations must be >= 1, got 0'),
    ],
  )
  def test_illegal_values(self, arguments, message):
    with pytest.raises(ValueError, match=message):
      _schedule(*arguments)

  def test_a_key_must_be_given(self):
    with pytest.raises(ValueError, match='must be 16 bytes, got 0'):
      _schedule(key=b'')
    with pytest.raises(ValueError, match='round_number must be >= 0, got -1'):
      _schedule().users(-1)

  def test_keys_are_new_each_time(self):
    # 128 bits each: equal ones would be an error, not chance.
    assert len({cohorts.new_schedule_key() for _ in range(8)}) == 8


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
