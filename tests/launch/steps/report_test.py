"""The report is what the other steps left on disk and in the ledger."""

import shutil

import pytest

from launch.pages import report_schema
from launch.run import stamps
from launch.steps import evaluate
from launch.steps import report
from tff_dpemb.artifacts import storage


@pytest.fixture(name='finished')
def _finished(trained):
  """A run whose export, serving and synthetic set are stamps alone."""
  evaluate.evaluate(trained)
  paths = trained.paths
  storage.atomic_write_json(
    paths.training / 'curve.json',
    [{'round': n, 'recall_at_far_0.001': 0.1, 'recall_at_1': 0.2 * n}
     for n in range(3)],
  )  # fmt: skip
  stamps.Stamp(paths.export, '').write(
    {
      'version': 1,
      'model_digest': 'd' * 64,
      'min_cosine': 0.9999,
      'saved_model': 'export/1/saved_model',
      'tflite': 'export/1/model.tflite',
    }
  )
  stamps.Stamp(paths.serving, '').write(
    {'lookups': 60, 'agreement_with_exact': 1.0, 'seconds': 0.5}
  )
  stamps.Stamp(paths.synthetic_stage, '').write(
    {'examples': 100, 'epsilon': 8.0, 'delta': 1e-3, 'classes': 10}
  )
  storage.atomic_write_json(
    paths.make_restricted() / 'synthetic' / 'comparison.json',
    {
      'accuracy': {'value': 0.5, 'low': 0.4, 'high': 0.6},
      'accuracy_on_real': {'value': 0.7, 'low': 0.6, 'high': 0.8},
      'chance': 0.1,
      'share_of_real': 2 / 3,
    },
  )
  return trained


def test_figures_are_those_of_the_steps_and_of_the_ledger(finished, capsys):
  report.report(finished)
  paths = finished.paths
  found = report_schema.Report.read(paths.report_json)
  assert found.training.population == 20
  # Two rounds of 8 users with 8 images at most, twice over the backbone...
  training = finished.config.training
  examples = 2 * 8 * min(training.max_examples_per_user, 12)
  examples *= training.backbone_epochs
  assert found.training.examples_per_second == pytest.approx(examples / 4.0)
  assert found.privacy.draws == 2
  proved = finished.plan.guarantee(2)
  assert found.privacy.epsilon == pytest.approx(proved.epsilon)
  assert found.privacy.extrapolated == ()
  assert found.verification.held_out_identities == 20
  assert found.synthetic.share_of_real == pytest.approx(2 / 3)
  for path in (paths.report_json, paths.report_html):
    assert path.stat().st_mode & 0o777 == 0o600
  page = paths.report_html.read_text()
  assert 'Public users' in page  # Held-out ones are people, too.
  assert 'Held-out test users' not in page
  shown = capsys.readouterr().out
  assert 'some: held-out identities' in shown
  assert '\n\n' not in shown.partition('held-out identities')[2]
  assert f'report: {paths.report_html}\n' in shown


def test_a_draw_more_costs_more(finished):
  report.report(finished)
  before = report_schema.Report.read(finished.paths.report_json).privacy
  finished.ledger.charge(
    population=finished.config.privacy.population,
    release=finished.model_release,
    run='some',
    event=finished.plan.charge_event(1, 2),
    round_number=1,
  )
  report.report(finished)
  after = report_schema.Report.read(finished.paths.report_json).privacy
  assert (before.draws, after.draws) == (2, 3)
  assert after.epsilon > before.epsilon


def test_the_step_that_is_missing_is_named(finished):
  (finished.paths.serving / 'stage.json').unlink()
  with pytest.raises(stamps.StageError, match='finished `dpemb serve-check`'):
    report.report(finished)
  assert not finished.paths.report_json.exists()


def test_without_public_images_the_report_has_no_synthetic_set(
  finished, capsys
):
  shutil.rmtree(finished.paths.store('public'))
  (finished.paths.synthetic_stage / 'stage.json').unlink()
  report.report(finished)
  found = report_schema.Report.read(finished.paths.report_json)
  assert found.synthetic is None
  assert 'Synthetic' not in finished.paths.report_html.read_text()
  assert 'synthetic' not in capsys.readouterr().out
