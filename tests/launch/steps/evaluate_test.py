"""Held-out figures of the trained model beside what it must beat."""

import pytest

from launch.run import stamps
from launch.steps import evaluate
from tff_dpemb.evaluation import figures


def test_three_embeddings_are_measured_once(trained, monkeypatch):
  evaluate.evaluate(trained)
  found = stamps.read_any(trained.paths.evaluation)
  assert set(found) == {'trained', 'pretraining_only', 'pixels', 'inputs'}
  images, labels, _ = trained.test.read_all()
  assert found['pixels'] == figures.measure(
    figures.pixel_embeddings(images),
    labels['identity'],
    false_accept_rates=trained.config.evaluation.false_accept_rates,
    confidence=trained.config.evaluation.confidence,
  )
  assert found['trained']['identities'] == 20
  assert found['trained']['roc'] != found['pretraining_only']['roc']
  monkeypatch.setattr(figures, 'measure', None)
  evaluate.evaluate(trained)  # Done, from the same inputs.
  (trained.paths.training / 'weights.npz').write_bytes(
    (trained.paths.pretrained / 'weights.npz').read_bytes()
  )
  with pytest.raises(TypeError):
    evaluate.evaluate(trained)


def test_what_is_not_trained_is_not_evaluated(open_without_public):
  run = open_without_public(pretraining=False)
  with pytest.raises(stamps.StageError, match='finished `dpemb train`'):
    evaluate.evaluate(run)
