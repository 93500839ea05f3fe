"""Directions, signals and scores of canaries."""

import numpy as np
import pytest

from tff_dpemb.privacy.audit import bounds
from tff_dpemb.privacy.audit import canaries as audit_canaries
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib


def _plan(users=100, *, shares=True, rounds=6, noise=2.0):
  return plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(100, users),
    mechanism=independent.FixedClipGaussian(0.5, noise),
    virtual_clients=10 if shares else users,
    rounds=rounds,
    delta=1e-3,
    shares_virtual_client=shares,
  )


class TestDirections:
  @pytest.mark.parametrize('dimension', [64, 100])
  def test_orthonormal_and_as_the_update_is_made(self, dimension):
    directions = audit_canaries.draw_directions(
      dimension, 20, unseen=5, rng=np.random.default_rng(0)
    )
    assert directions.block == 64
    bits = np.array(
      [
        [(-1.0) ** bin(int(row) & j).count('1') for j in range(64)]
        for row in (*directions.rows, *directions.unseen)
      ]
    )
    vectors = np.zeros([25, dimension])
    vectors[:, directions.coordinates] = bits * directions.signs / 8.0
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(25), atol=1e-12)
    x = np.random.default_rng(1).standard_normal([3, dimension])
    seen, never = directions.project(x)
    np.testing.assert_allclose(seen, x @ vectors[:20].T, atol=1e-12)
    np.testing.assert_allclose(never, x @ vectors[20:].T, atol=1e-12)

  def test_too_many(self):
    with pytest.raises(
      bounds.AuditError,
      match=r'canaries must be in \[1, 59\] for a model of 99',
    ):
      audit_canaries.draw_directions(
        99, 60, unseen=5, rng=np.random.default_rng(0)
      )


class TestCanaries:
  def test_kinds_move_the_sum_as_far_as_they_say(self):
    plan = _plan(50, rounds=200)
    rng = np.random.default_rng(0)
    flip = audit_canaries.draw_canaries(plan, 40, kind='flip', rng=rng)
    add = audit_canaries.draw_canaries(plan, 40, kind='add', rng=rng)
    for canaries, active, idle, out in ((flip, 1, -1, -1), (add, 1, 0, 0)):
      inside, part = canaries.inside, canaries.takes_part
      assert set(canaries.signals[:, ~inside].ravel()) == {out}
      assert (canaries.signals[:, inside][part[:, inside]] == active).all()
      assert (canaries.signals[:, inside][~part[:, inside]] == idle).all()
    # Half of 8000 take part: 5 sigma is 224.
    assert abs(flip.takes_part.sum() - 4000) < 224
    assert 0 < flip.inside.sum() < 40

  def test_a_kind_beyond_what_is_accounted_is_refused(self):
    plan = _plan(shares=False)
    assert audit_canaries.tight_kind(plan) == 'add'
    assert audit_canaries.tight_kind(_plan()) == 'flip'
    with pytest.raises(bounds.AuditError, match="'add' or 'add' for a plan"):
      audit_canaries.draw_canaries(
        plan, 10, kind='flip', rng=np.random.default_rng(0)
      )


class TestScores:
  def test_whole_participation_is_the_scaled_sum(self):
    """gap 2, values y / C: 2 x (sum of y) / .5."""
    plan = _plan(rounds=2)
    canaries = audit_canaries.draw_canaries(
      plan, 2, kind='flip', rng=np.random.default_rng(0)
    )
    products = np.array([[0.5, -1.0], [1.0, 0.25]])
    np.testing.assert_allclose(
      audit_canaries.scores(plan, canaries, products), [6.0, -3.0]
    )

  def test_secret_sample_is_the_likelihood_ratio(self):
    """One round, q = 1/2, 'add', noise 2: log((1 + e^((y - 1/2) / 4)) / 2)."""
    plan = _plan(50, rounds=1)
    canaries = audit_canaries.draw_canaries(
      plan, 2, kind='add', rng=np.random.default_rng(0)
    )
    y = np.array([3.0, -1.0])
    np.testing.assert_allclose(
      audit_canaries.scores(plan, canaries, 0.5 * y[None]),
      np.log((1 + np.exp((y - 0.5) / 4)) / 2),
    )

  @pytest.mark.parametrize('users', [100, 30])
  @pytest.mark.parametrize('kind', ['flip', 'add'])
  def test_the_noise_that_is_claimed_is_never_a_violation(self, users, kind):
    """20 audits of the exact mechanism: each false alarm has at most 5 %.

    5 or more of 20 has probability below 0.3 % then; the seed is fixed.
    """
    plan = _plan(users, noise=6.0)
    claim = bounds.claim_of_plan(plan)
    wrong = 0
    for seed in range(20):
      rng = np.random.default_rng(seed)
      canaries = audit_canaries.draw_canaries(plan, 400, kind=kind, rng=rng)
      noise = 6.0 * rng.standard_normal(canaries.signals.shape)
      products = 0.5 * (canaries.signals + noise)
      scores = audit_canaries.scores(plan, canaries, products)
      found = bounds.audit(
        scores[canaries.inside],
        scores[~canaries.inside],
        claim=claim,
        coins=True,
      )
      wrong += found.verdict == bounds.VIOLATION
    assert wrong < 5

  def test_a_missing_amplification_is_found(self):
    """Poisson is claimed, everyone is in each round: found in 5 of 5."""
    claimed = _plan(20, noise=4.0)
    real = _plan(100, noise=4.0)
    claim = bounds.claim_of_plan(claimed)
    found = 0
    for seed in range(5):
      rng = np.random.default_rng(seed)
      canaries = audit_canaries.draw_canaries(real, 2000, kind='flip', rng=rng)
      noise = 4.0 * rng.standard_normal(canaries.signals.shape)
      scores = audit_canaries.scores(
        claimed, canaries, 0.5 * (canaries.signals + noise)
      )
      result = bounds.audit(
        scores[canaries.inside],
        scores[~canaries.inside],
        claim=claim,
        coins=True,
      )
      found += result.verdict == bounds.VIOLATION
    assert found == 5

  def test_without_noise_the_worlds_are_apart(self):
    plan = _plan(50, noise=0.0)
    canaries = audit_canaries.draw_canaries(
      plan, 200, kind='add', rng=np.random.default_rng(0)
    )
    scores = audit_canaries.scores(plan, canaries, 0.5 * canaries.signals)
    took = canaries.takes_part.any(axis=0)
    assert scores[canaries.inside & took].min() > scores[~canaries.inside].max()


def test_cosines_by_hand():
  products = np.array([[3.0, 0.0], [1.0, -2.0]])
  np.testing.assert_allclose(
    audit_canaries.largest_cosine(products, np.array([5.0, 2.0])), [0.6, 0.0]
  )
  np.testing.assert_allclose(
    audit_canaries.cosine_of_final(np.array([3.0, -4.0]), 5.0), [0.6, -0.8]
  )
  assert audit_canaries.cosine_of_final(np.zeros(1), 0.0) == 0.0
