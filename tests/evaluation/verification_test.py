import fractions
import itertools

import numpy as np
import pytest

from tff_dpemb.evaluation import interval
from tff_dpemb.evaluation import verification


def _unit(rows):
  return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _noisy_identities(rng, *, identities, images, spread=1.2, dim=16):
  centres = rng.normal(size=(identities, 1, dim))
  noise = spread * rng.normal(size=(identities, images, dim))
  return (
    _unit((centres + noise).reshape(-1, dim)),
    np.repeat(np.arange(identities), images),
  )


def _brute_force(embeddings, identities, rate):
  """Returns recall, accepted impostors and pair counts, pair by pair."""
  same, different = [], []
  for i, j in itertools.combinations(range(len(embeddings)), 2):
    score = float(embeddings[i] @ embeddings[j])
    (same if identities[i] == identities[j] else different).append(score)
  allowed = int(fractions.Fraction(repr(rate)) * len(different))
  refused = sorted(different, reverse=True)[allowed]
  accepted = sum(score > refused for score in different)
  recall = sum(score > refused for score in same) / len(same)
  return recall, accepted, len(same), len(different)


class TestAgainstBruteForce:
  @pytest.mark.parametrize('seed', range(4))
  @pytest.mark.parametrize('rate', [1e-4, 1e-3, 0.01, 0.1, 0.29, 0.9])
  def test_random_embeddings_of_unequal_identities(self, seed, rate):
    rng = np.random.default_rng(seed)
    embeddings, _ = _noisy_identities(rng, identities=12, images=6)
    identities = rng.integers(0, 11, size=len(embeddings)) * 7 - 3
    expected, _, same, different = _brute_force(embeddings, identities, rate)
    result = verification.verification_report(
      embeddings, identities, false_accept_rates=(rate,)
    )
    assert result.recall_at_far[rate].value == pytest.approx(
      expected, abs=1e-12
    )
    assert result.pairs_same == same
    assert result.pairs_different == different
    assert result.pairs == len(embeddings) * (len(embeddings) - 1) // 2

  @pytest.mark.parametrize('rate', [0.001, 0.05, 0.3, 0.5, 0.75])
  def test_ties_are_accepted_or_refused_together(self, rate):
    # Rows of +-1/2: every cosine is one of -1, -1/2, 0, 1/2, 1, exactly.
    rng = np.random.default_rng(5)
    embeddings = rng.choice([-0.5, 0.5], size=(80, 4))
    identities = rng.integers(0, 16, size=80)
    expected, accepted, _, different = _brute_force(
      embeddings, identities, rate
    )
    result = verification.verification_report(
      embeddings, identities, false_accept_rates=(rate,)
    )
    assert result.recall_at_far[rate].value == expected
    assert accepted / different <= rate
    scores = embeddings @ embeddings.T
    threshold = result.thresholds[rate]
    impostors = np.triu(identities[:, None] != identities[None, :])
    assert np.count_nonzero(scores[impostors] >= threshold) == accepted

  def test_tiles_smaller_than_the_data_change_nothing(self, monkeypatch):
    rng = np.random.default_rng(6)
    embeddings, identities = _noisy_identities(rng, identities=9, images=7)
    shuffled = rng.permutation(len(embeddings))
    embeddings, identities = embeddings[shuffled], identities[shuffled]
    whole = verification.verification_report(embeddings, identities)
    monkeypatch.setattr(verification, '_TILE_ROWS', 5)
    monkeypatch.setattr(verification, '_TILE_COLUMNS', 4)
    tiled = verification.verification_report(embeddings, identities)
    assert tiled.pairs_same == whole.pairs_same == 9 * 21
    assert tiled.pairs_different == whole.pairs_different == 36 * 49
    for rate, figure in whole.recall_at_far.items():
      assert tiled.recall_at_far[rate].value == figure.value

  def test_identity_larger_than_a_tile(self, monkeypatch):
    monkeypatch.setattr(verification, '_TILE_ROWS', 4)
    monkeypatch.setattr(verification, '_TILE_COLUMNS', 3)
    rng = np.random.default_rng(7)
    embeddings = _unit(rng.normal(size=(30, 4)))
    identities = np.array([0] * 20 + [1] * 10)
    expected, _, same, different = _brute_force(embeddings, identities, 0.1)
    result = verification.verification_report(
      embeddings, identities, false_accept_rates=(0.1,)
    )
    assert (result.pairs_same, result.pairs_different) == (same, different)
    assert result.recall_at_far[0.1].value == pytest.approx(expected, abs=1e-12)


class TestKnownCases:
  def test_orthogonal_identities_are_perfect(self):
    embeddings = np.repeat(np.eye(4), 3, axis=0)
    result = verification.verification_report(
      embeddings, np.repeat(np.arange(4), 3)
    )
    assert result.pairs_same == 12
    assert result.pairs_different == 54
    for figure in result.recall_at_far.values():
      assert (figure.value, figure.low, figure.high) == (1, 1, 1)

  def test_equal_embeddings_recall_nothing(self):
    embeddings = np.tile([[0.6, 0.8]], (12, 1))
    result = verification.verification_report(
      embeddings, np.repeat(np.arange(4), 3)
    )
    for figure in result.recall_at_far.values():
      assert figure.value == 0

  def test_threshold_is_the_smallest_legal_one(self):
    # Different-identity cosines: 0.6 and 0.8 twice each; same: 1.0 and 0.96.
    embeddings = np.array([[1, 0], [1, 0], [0.6, 0.8], [0.8, 0.6]])
    identities = np.array([0, 0, 1, 1])
    result = verification.verification_report(
      embeddings, identities, false_accept_rates=(0.2, 0.5)
    )
    step = 2.0**-23
    assert result.thresholds[0.2] == pytest.approx(0.8, abs=step)
    assert result.thresholds[0.5] == pytest.approx(0.6, abs=step)
    assert result.recall_at_far[0.2].value == 1

  def test_two_identities_leave_the_interval_unknown(self):
    embeddings = np.eye(4)
    result = verification.verification_report(embeddings, [0, 0, 1, 1])
    figure = result.recall_at_far[0.001]
    assert (figure.low, figure.high) == (0, 1)


class TestInterval:
  def test_close_to_the_exact_jackknife(self):
    rng = np.random.default_rng(8)
    embeddings, identities = _noisy_identities(rng, identities=30, images=6)
    rate = 0.1
    left = []
    for identity in range(30):
      keep = identities != identity
      left.append(_brute_force(embeddings[keep], identities[keep], rate)[0])
    value = _brute_force(embeddings, identities, rate)[0]
    exact = interval.jackknife_interval(value, left, confidence=0.9)
    result = verification.verification_report(
      embeddings, identities, false_accept_rates=(rate,), confidence=0.9
    )
    figure = result.recall_at_far[rate]
    width = exact.high - exact.low
    assert figure.value == pytest.approx(exact.value, abs=1e-12)
    assert figure.high - figure.low == pytest.approx(width, rel=0.1)

  def test_covers_the_population_value(self):
    # At a true coverage of 0.9, fewer than 82 of 100 intervals cover with
    # probability 0.004 (binomial tail): the bound of a false alarm, were the
    # seed not fixed.
    rng = np.random.default_rng(9)
    embeddings, identities = _noisy_identities(rng, identities=900, images=4)
    population = verification.verification_report(
      embeddings, identities, false_accept_rates=(0.1,)
    )
    truth = population.recall_at_far[0.1].value
    covered = 0
    for _ in range(100):
      embeddings, identities = _noisy_identities(rng, identities=40, images=4)
      result = verification.verification_report(
        embeddings, identities, false_accept_rates=(0.1,), confidence=0.9
      )
      figure = result.recall_at_far[0.1]
      covered += figure.low <= truth <= figure.high
    assert covered >= 82

  def test_is_over_identities_not_pairs(self):
    # The same four identities, with each image four times: no new evidence,
    # so the interval must not shrink by much.
    rng = np.random.default_rng(10)
    embeddings, identities = _noisy_identities(rng, identities=20, images=4)
    few = verification.verification_report(
      embeddings, identities, false_accept_rates=(0.1,)
    ).recall_at_far[0.1]
    many = verification.verification_report(
      np.repeat(embeddings, 4, axis=0),
      np.repeat(identities, 4),
      false_accept_rates=(0.1,),
    ).recall_at_far[0.1]
    assert many.high - many.low > 0.5 * (few.high - few.low)


class TestRoc:
  def test_points_are_exact_and_ordered(self):
    rng = np.random.default_rng(11)
    embeddings, identities = _noisy_identities(rng, identities=15, images=5)
    result = verification.verification_report(embeddings, identities)
    scores = (
      embeddings.astype(np.float32) @ embeddings.astype(np.float32).T
    ).astype(np.float64)
    same = identities[:, None] == identities[None, :]
    upper = np.triu(np.ones_like(same), 1)
    rates = [point.false_accept_rate for point in result.roc]
    recalls = [point.recall for point in result.roc]
    assert rates == sorted(rates)
    assert recalls == sorted(recalls)
    assert (rates[-1], recalls[-1]) == (1, 1)
    assert 20 < len(result.roc) <= 200
    for point in result.roc:
      accepted = scores >= point.threshold
      assert point.recall == pytest.approx(
        accepted[same & upper].mean(), abs=1 / result.pairs_same
      )
      assert point.false_accept_rate == pytest.approx(
        accepted[~same & upper].mean(), abs=1 / result.pairs_different
      )


_GOOD = np.eye(4)


@pytest.mark.parametrize(
  ('embeddings', 'identities', 'options', 'match'),
  [
    (_GOOD, [0, 0, 0, 0], {}, 'at least 2 identities, got 1'),
    (_GOOD, [0, 1, 2, 3], {}, 'at least 2 images, got 4 identities'),
    (_GOOD, [0, 0, 1], {}, r'shape \(4,\)'),
    (np.full((4, 4), np.nan), [0, 0, 1, 1], {}, 'finite.*4 of 4 rows'),
    (2 * _GOOD, [0, 0, 1, 1], {}, 'unit L2 norm, got 4 of 4'),
    (0 * _GOOD, [0, 0, 1, 1], {}, 'unit L2 norm'),
    (np.zeros((0, 4)), [], {}, 'non-empty'),
    (np.zeros(4), [0, 0, 1, 1], {}, 'non-empty matrix'),
    (_GOOD, [0, 0, 1, 1], {'confidence': 1.0}, 'confidence must be in'),
    (
      _GOOD,
      [0, 0, 1, 1],
      {'false_accept_rates': (0.0,)},
      r'false_accept_rates must be in \(0, 1\), got 0.0',
    ),
  ],
)
def test_degenerate_input_is_refused(embeddings, identities, options, match):
  with pytest.raises(interval.EvaluationError, match=match):
    verification.verification_report(embeddings, identities, **options)
