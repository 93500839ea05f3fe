import numpy as np
import pytest

from tff_dpemb.evaluation import interval


class TestJackknifeInterval:
  def test_hand_computed(self):
    # Mean of 0.2, 0.4, 0.6, 0.8 by delete-one means; the jackknife error of a
    # mean is its standard error: sqrt(0.2 / 3 / 4) = 0.1291.
    values = np.array([0.2, 0.4, 0.6, 0.8])
    left = (values.sum() - values) / 3
    figure = interval.jackknife_interval(0.5, left, confidence=0.95)
    assert figure.low == pytest.approx(0.5 - 1.959964 * 0.1290994, abs=1e-6)
    assert figure.high == pytest.approx(0.5 + 1.959964 * 0.1290994, abs=1e-6)

  def test_ends_are_cut(self):
    figure = interval.jackknife_interval(0.9, [0.2, 1.0, 1.0], confidence=0.99)
    assert (figure.low, figure.high) == (0, 1)

  @pytest.mark.parametrize('left', [[], [0.5], [0.5, np.nan]])
  def test_unknown(self, left):
    figure = interval.jackknife_interval(0.4, left, confidence=0.9)
    assert figure == interval.Interval(0.4, 0.0, 1.0)

  @pytest.mark.parametrize('confidence', [0.0, 1.0, -1.0, float('nan')])
  def test_illegal_confidence(self, confidence):
    with pytest.raises(interval.EvaluationError, match='confidence must be in'):
      interval.jackknife_interval(0.5, [0.5, 0.5], confidence=confidence)


class TestInterval:
  @pytest.mark.parametrize(
    'ends', [(0.5, 0.6, 0.7), (0.5, 0.4, 0.45), (1.5, 0, 2), (np.nan, 0, 1)]
  )
  def test_illegal_ends(self, ends):
    with pytest.raises(interval.EvaluationError, match='low <= value <= high'):
      interval.Interval(*ends)

  def test_to_json(self):
    assert interval.Interval(0.5, 0.25, 0.75).to_json() == {
      'value': 0.5,
      'low': 0.25,
      'high': 0.75,
    }


class TestCheckEmbeddings:
  def test_rounding_of_norms_is_repaired(self):
    rows = np.array([[0.6004, 0.8], [1.0, 0.0]], np.float16)
    checked = interval.check_embeddings('embeddings', rows)
    assert checked.dtype == np.float32
    assert np.linalg.norm(checked, axis=1) == pytest.approx(1, abs=1e-6)
