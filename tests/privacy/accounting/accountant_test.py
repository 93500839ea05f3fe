"""Epsilon: published figures, speed at the edges, defined outcomes."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events

_ADD_REMOVE = guarantee.Adjacency.ADD_OR_REMOVE_ONE


def _rounds(noise_multiplier, probability, count):
  return dp_event.SelfComposedDpEvent(
    dp_event.PoissonSampledDpEvent(
      probability, dp_event.GaussianDpEvent(noise_multiplier)
    ),
    count,
  )


def _epsilon(event, delta, adjacency=_ADD_REMOVE, grid_points=4_000):
  return accountant.guarantee_of_event(
    event, delta=delta, adjacency=adjacency, grid_points=grid_points
  ).epsilon


def test_golden_dp_sgd():
  # dp_accounting's own golden: z 3, q .1, T 512, delta 1e-6 -> 3.77 by PLD
  # (3.7697 on its 1e-4 grid), 4.05 by RDP.
  found = accountant.guarantee_of_event(
    _rounds(3.0, 0.1, 512), delta=1e-6, adjacency=_ADD_REMOVE
  )
  assert found.epsilon == pytest.approx(3.7697, abs=2e-4)
  assert found.accountant == 'PLD'
  assert found.cross_check == pytest.approx(4.051, abs=1e-3)
  assert found.warnings == ()


def test_golden_gaussians_are_exact():
  # 10 Gaussians of multiplier 1 at delta 1e-5: PLD 17.857, RDP 19.054.
  event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 10)
  found = accountant.guarantee_of_event(
    event, delta=1e-5, adjacency=_ADD_REMOVE
  )
  assert found.accountant == 'analytic Gaussian'
  assert found.epsilon == pytest.approx(17.857, abs=1e-3)
  assert found.cross_check == pytest.approx(19.054, abs=1e-3)
  assert found.mu_gdp == pytest.approx(math.sqrt(10))
  assert found.zcdp_rho == pytest.approx(5.0)
  # The defining equation, arXiv 1805.06530 theorem 8.
  mu, epsilon = math.sqrt(10), found.epsilon
  delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(
    epsilon
  ) * stats.norm.cdf(-mu / 2 - epsilon / mu)
  assert delta == pytest.approx(1e-5, rel=1e-6)


def test_every_relation_gives_an_unsampled_gaussian_the_same_epsilon():
  # The event's multiplier is noise / sensitivity already; the PLD of
  # dp_accounting 0.6 would double it once more under replace-one (46.2).
  event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 10)
  found = {_epsilon(event, 1e-5, relation) for relation in guarantee.Adjacency}
  assert len(found) == 1


@pytest.mark.parametrize(
  ('noise', 'probability', 'count'),
  [(0.015, 0.1, 30), (0.05, 0.1, 1000), (0.31, 0.0376, 200), (1e-4, 0.5, 3)],
)
def test_low_noise_has_an_answer(noise, probability, count):
  found = accountant.guarantee_of_event(
    _rounds(noise, probability, count), delta=1e-5, adjacency=_ADD_REMOVE
  )
  assert math.isfinite(found.epsilon)
  assert found.epsilon > 10
  if found.discretisation is None:
    assert any('RDP is the accountant' in note for note in found.assumptions)


def test_low_noise_is_close_to_a_finer_grid():
  # z / 2 = .015, q .1, T 30, delta 1e-5: 26582.9 on a grid of .1 nats; RDP,
  # the other quick answer, is 72685.
  found = _epsilon(_rounds(0.015, 0.1, 30), 1e-5)
  assert found == pytest.approx(26582.9, rel=1e-4)


def test_a_coarser_grid_never_gives_less():
  event, delta = _rounds(0.72, 0.012288, 30), 1e6**-1.1
  fine, coarse = (
    accountant.guarantee_of_event(
      event, delta=delta, adjacency=_ADD_REMOVE, grid_points=points
    ).epsilon
    for points in (10_000, 500)
  )
  assert fine <= coarse <= 1.01 * fine


@pytest.mark.parametrize('delta', [1e-12, 1e-16, 1e-30, 1e-300])
def test_tiny_delta_answers_by_rdp_and_says_so(delta):
  found = accountant.guarantee_of_event(
    _rounds(0.72, 0.012288, 30), delta=delta, adjacency=_ADD_REMOVE
  )
  assert found.accountant == 'RDP'
  assert 0 < found.epsilon < math.inf
  assert any('delta is below' in note for note in found.assumptions)


def test_one_small_step_has_a_positive_epsilon():
  # TFP#166: an order near 1 once gave 0.
  assert _epsilon(_rounds(1.0, 0.00105, 1), 1e-4) > 0


@pytest.mark.parametrize('delta', [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_illegal_delta_is_refused(delta):
  with pytest.raises(guarantee.AccountingError, match='delta must be in'):
    _epsilon(_rounds(1.0, 0.1, 1), delta)


def test_epsilon_grows_with_rounds_and_falls_with_noise_and_delta():
  base = _epsilon(_rounds(1.0, 0.05, 100), 1e-5)
  assert _epsilon(_rounds(1.0, 0.05, 101), 1e-5) > base
  assert _epsilon(_rounds(1.01, 0.05, 100), 1e-5) < base
  assert _epsilon(_rounds(1.0, 0.05, 100), 2e-5) < base
  assert _epsilon(_rounds(1.0, 0.049, 100), 1e-5) < base


def test_replayed_rounds_are_paid():
  # Field reports M14: z 1, q .05, delta 1e-5: eps(110) 3.646, eps(100) 3.502.
  assert _epsilon(_rounds(1.0, 0.05, 100), 1e-5) == pytest.approx(
    3.502, abs=2e-3
  )
  assert _epsilon(_rounds(1.0, 0.05, 110), 1e-5) == pytest.approx(
    3.646, abs=2e-3
  )


def test_monte_carlo_agrees():
  """Samples the privacy loss of one worst-case pair: delta(eps) must match.

  Two rounds of N(0, z^2) against (1-q) N(0, z^2) + q N(1, z^2). The estimate
  of delta has a standard deviation below sqrt(delta / n) = 1e-4; the bound is
  six of them (false alarms below 1e-8).
  """
  noise, probability, number = 0.6, 0.3, 1_000_000
  rng = np.random.default_rng(7)
  loss = np.zeros(number)
  for _ in range(2):
    shift = rng.random(number) < probability
    x = rng.standard_normal(number) * noise + shift
    loss += np.log1p(probability * np.expm1((2 * x - 1) / (2 * noise**2)))
  epsilon = _epsilon(_rounds(noise, probability, 2), 0.01)
  delta = np.maximum(0, -np.expm1(epsilon - loss)).mean()
  assert delta == pytest.approx(0.01, abs=6e-4)


def test_no_noise_is_no_guarantee():
  found = accountant.guarantee_of_event(
    dp_event.ComposedDpEvent(
      [
        dp_event.GaussianDpEvent(5.0),
        dp_event.NonPrivateDpEvent(),
      ]
    ),
    delta=1e-5,
    adjacency=_ADD_REMOVE,
  )
  assert found.epsilon == math.inf
  assert found.accountant == 'none'
  assert not found.is_private
  assert 'no noise' in found.warnings[0]


def test_nothing_done_costs_nothing():
  assert _epsilon(dp_event.NoOpDpEvent(), 1e-5) == 0


@pytest.mark.parametrize(
  ('event', 'adjacency'),
  [
    (dp_event.UnsupportedDpEvent(), _ADD_REMOVE),
    # Poisson amplification is proved for add-or-remove, a tree for zero-out.
    (_rounds(1.0, 0.1, 2), guarantee.Adjacency.REPLACE_ONE),
    (
      dp_event.SingleEpochTreeAggregationDpEvent(
        noise_multiplier=1.0, step_counts=4
      ),
      _ADD_REMOVE,
    ),
    (
      dp_event.SampledWithoutReplacementDpEvent(
        100, 10, dp_event.GaussianDpEvent(1.0)
      ),
      _ADD_REMOVE,
    ),
  ],
)
def test_what_no_accountant_supports_is_no_guarantee(event, adjacency):
  found = accountant.guarantee_of_event(event, delta=1e-5, adjacency=adjacency)
  assert found.epsilon == math.inf
  assert 'No accountant supports' in found.warnings[0]


def test_mixed_training_and_zcdp_release_compose_by_rdp():
  event = dp_event.ComposedDpEvent(
    [
      _rounds(1.0, 0.05, 100),
      dp_event.ZCDpEvent(rho=0.1),
    ]
  )
  found = accountant.guarantee_of_event(
    event, delta=1e-5, adjacency=_ADD_REMOVE
  )
  assert found.accountant == 'RDP'
  assert found.epsilon > _epsilon(_rounds(1.0, 0.05, 100), 1e-5)
  assert found.epsilon < math.inf


def test_a_million_rounds_do_not_pay_for_the_grid():
  # z 1, q .001, T 1e6: on a grid of 1.8e-3 nats rounding alone adds 1.2; RDP
  # is 7.144.
  found = accountant.guarantee_of_event(
    _rounds(1.0, 0.001, 10**6), delta=1e-6, adjacency=_ADD_REMOVE
  )
  assert found.accountant == 'PLD'
  assert found.epsilon == pytest.approx(6.709, abs=0.01)
  assert found.epsilon < found.cross_check
  assert found.warnings == ()


def test_rdp_answers_where_the_grid_is_too_coarse():
  # Three mixed events of which one has hardly any noise: the grid that the
  # cost allows would be 100 nats wide.
  event = dp_event.ComposedDpEvent(
    [
      _rounds(0.0107, 0.696, 16754),
      _rounds(1.13, 1.2e-4, 17),
      _rounds(11.1, 1.46e-5, 4),
    ]
  )
  found = accountant.guarantee_of_event(
    event, delta=9e-10, adjacency=_ADD_REMOVE
  )
  assert found.accountant == 'RDP'
  assert math.isfinite(found.epsilon)
  assert 'the PLD has no finite answer' in found.assumptions[0]


def test_rdp_below_the_accountant_is_flagged(monkeypatch):
  monkeypatch.setattr(accountant, '_rdp_epsilon', lambda *_: 1.0)
  found = accountant.guarantee_of_event(
    _rounds(3.0, 0.1, 512), delta=1.001e-6, adjacency=_ADD_REMOVE
  )
  assert found.epsilon == pytest.approx(3.77, abs=1e-2)  # The larger is stated.
  assert 'RDP gives 1' in found.warnings[0]


def test_a_thousand_equal_events_are_one_event_a_thousand_times():
  counts = events.merge([(_rounds(1.0, 0.01, 1), 1)] * 1000)
  assert counts == events.flatten(_rounds(1.0, 0.01, 1000))


def test_max_count_is_the_last_that_fits():
  target = 0.5
  event, base = _rounds(1.0, 0.01, 1), events.flatten(_rounds(2.0, 0.02, 10))
  found = accountant.max_count(
    base, event, epsilon=target, delta=1e-5, adjacency=_ADD_REMOVE, limit=5000
  )

  def spent(count):
    return accountant.guarantee_of_counts(
      events.merge((*base, (event, count))), delta=1e-5, adjacency=_ADD_REMOVE
    ).epsilon

  assert spent(found) <= target < spent(found + 1)


def test_max_count_at_its_ends():
  event = _rounds(1.0, 0.01, 1)
  arguments = dict(delta=1e-5, adjacency=_ADD_REMOVE, limit=10)
  assert accountant.max_count((), event, epsilon=100.0, **arguments) == 10
  assert accountant.max_count((), event, epsilon=1e-6, **arguments) == 0
  assert (
    accountant.max_count(
      (), dp_event.NonPrivateDpEvent(), epsilon=100.0, **arguments
    )
    == 0
  )


@pytest.mark.parametrize('multiplier', [1e-308, 1e-200, 1e308])
def test_what_cannot_be_represented_is_no_guarantee_and_no_crash(multiplier):
  """Such an entry in a ledger must not bar all that come after it."""
  found = accountant.guarantee_of_event(
    dp_event.GaussianDpEvent(multiplier),
    delta=1e-5,
    adjacency=guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  )
  assert found.epsilon >= 0
  if multiplier < 1:
    assert found.epsilon == math.inf
