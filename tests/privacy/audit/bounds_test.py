"""Bounds, estimates and verdicts of an audit."""

import math

import numpy as np
import pytest

from tff_dpemb.privacy.audit import bounds
from tff_dpemb.privacy.audit import gaussians
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

_DELTA = 1e-5
_MU = 0.5  # epsilon 1.99 at 1e-5


def _scores(mu, count, seed):
  """Scores of a mu-Gaussian mechanism, half of them in by fair coins."""
  rng = np.random.default_rng(seed)
  inside = rng.random(count) < 0.5
  scores = rng.standard_normal(count) + mu * inside
  return scores[inside], scores[~inside]


def _claim(mu):
  return bounds.Claim(gaussians.gaussian_epsilon(mu, _DELTA), _DELTA, mu=mu)


class TestAudit:
  def test_a_true_claim_holds_and_its_bounds_stay_below(self):
    """100 audits of a Gaussian mechanism at 95 %.

    Each bound is wrong with at most 5 %; 13 or more of 100 has probability
    below 0.2 % then. The seed is fixed.
    """
    claim = _claim(_MU)
    wrong = {'mu': 0, 'epsilon': 0, 'one run': 0}
    for seed in range(100):
      found = bounds.audit(*_scores(_MU, 400, seed), claim=claim, coins=True)
      wrong['mu'] += found.mu_bound > _MU
      wrong['epsilon'] += found.epsilon_delta_bound > claim.epsilon
      wrong['one run'] += found.one_run_bound > claim.epsilon
      assert (found.verdict == bounds.VIOLATION) == (
        found.lower_bound > claim.epsilon
      )
    assert max(wrong.values()) < 13, wrong

  def test_half_the_noise_is_found(self):
    """mu twice as claimed, 1000 canaries.

    Each is found with 97 % or more; fewer than 8 of 10 has probability below
    0.3 %. The seed is fixed.
    """
    claim = _claim(_MU)
    found = [
      bounds.audit(*_scores(2 * _MU, 1000, seed), claim=claim, coins=True)
      for seed in range(10)
    ]
    assert sum(a.verdict == bounds.VIOLATION for a in found) >= 8

  def test_a_sampled_plan_is_held_to_its_whole_curve(self):
    """Poisson: no single Gaussian, so no mu, but several (delta, epsilon)."""
    plan = plan_lib.PrivacyPlan(
      sampler=samplers.PoissonSampler(1000, 100),
      mechanism=independent.FixedClipGaussian(1.0, 4.0),
      virtual_clients=10,
      rounds=20,
      delta=1e-4,
    )
    claim = bounds.claim_of_plan(plan)
    assert claim.mu is None
    epsilons = [epsilon for _, epsilon in claim.curve]
    assert epsilons == sorted(epsilons, reverse=True)
    # Scores of a mechanism without any noise.
    found = bounds.audit(
      np.ones(100) + 1e-3 * np.arange(100),
      -np.ones(100) + 1e-3 * np.arange(100),
      claim=claim,
      coins=True,
    )
    assert found.verdict == bounds.VIOLATION
    # Hardly better than chance: nothing.
    close = bounds.audit(*_scores(0.05, 400, 3), claim=claim, coins=True)
    assert close.verdict == bounds.CONSISTENT

  def test_a_claim_that_breaks_at_a_larger_delta_is_found(self):
    """Rates .6 and .3: fine at delta 1e-5 and epsilon 3, not at (.1, .01)."""
    claim = bounds.Claim(3.0, _DELTA, curve=((0.1, 0.01),))
    found = bounds.audit(*_scores(1.0, 4000, 0), claim=claim, coins=True)
    assert found.lower_bound < 3.0
    delta, epsilon, bound = found.broken
    assert (delta, epsilon) == (0.1, 0.01)
    assert bound > 0.01
    assert 'At delta 0.1 the same proof claims 0.01' in found.describe()

  def test_a_claim_out_of_reach_is_called_trivial(self):
    claim = bounds.Claim(5e4, _DELTA, mu=300.0)
    found = bounds.audit(
      np.ones(50) + np.arange(50), np.zeros(50), claim=claim, coins=True
    )
    assert found.verdict == bounds.CONSISTENT
    assert found.is_trivial
    assert 'says nothing' in found.describe()

  def test_no_claim_is_never_contradicted(self):
    claim = bounds.Claim(math.inf, _DELTA)
    found = bounds.audit(*_scores(5.0, 100, 0), claim=claim, coins=False)
    assert found.verdict == bounds.CONSISTENT
    assert found.one_run_bound is None
    assert found.to_json()['claimed_epsilon'] is None
    assert 'no guarantee' in found.describe()

  def test_equal_scores_give_nothing(self):
    found = bounds.audit(
      np.zeros(50), np.zeros(50), claim=_claim(_MU), coins=True
    )
    assert found.lower_bound == 0.0
    assert found.estimate == 0.0

  def test_json_is_what_a_certificate_carries(self):
    found = bounds.audit(*_scores(_MU, 200, 0), claim=_claim(_MU), coins=True)
    content = found.to_json()
    assert content['canaries'] == 200
    assert content['confidence'] == 0.95
    assert content['verdict'] == 'consistent'
    assert content['lower_bound'] <= content['claimed_epsilon']
    assert content['delta'] == _DELTA

  @pytest.mark.parametrize(
    ('change', 'match'),
    [
      ({'inside': np.zeros(7)}, 'at least 8 canaries in and 8 out, got 7'),
      ({'inside': np.array([np.nan] * 20)}, 'scores must be finite'),
      ({'confidence': 1.0}, r'confidence must be in \(0, 1\), got 1.0'),
    ],
  )
  def test_bad_input(self, change, match):
    arguments = {'inside': np.zeros(20), 'outside': np.zeros(20)} | change
    with pytest.raises(bounds.AuditError, match=match):
      bounds.audit(claim=_claim(_MU), coins=True, **arguments)

  @pytest.mark.parametrize(
    ('arguments', 'match'),
    [
      ((1.0, 0.0), r'delta must be in \(0, 1\), got 0.0'),
      ((-1.0, 0.1), 'epsilon must be >= 0, got -1.0'),
      ((math.nan, 0.1), 'epsilon must be >= 0, got nan'),
    ],
  )
  def test_bad_claim(self, arguments, match):
    with pytest.raises(bounds.AuditError, match=match):
      bounds.Claim(*arguments)


def test_claim_of_a_gaussian_plan_has_its_mu():
  """Every user in 4 rounds, noise 8, sensitivity 2: mu = 2 sqrt(4) / 8."""
  plan = plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(1000, 1000),
    mechanism=independent.FixedClipGaussian(1.0, 8.0),
    virtual_clients=10,
    rounds=4,
    delta=1e-4,
  )
  assert bounds.claim_of_plan(plan).mu == pytest.approx(0.5)
  assert bounds.claim_of_plan(plan, 1).mu == pytest.approx(0.25)
