"""report.json: what its form refuses, each fault named."""

import json

import pytest

from launch.pages import report_schema
from tests.launch.pages import cases
from tff_dpemb.artifacts import documents


def _read(content):
  return report_schema.Report.from_json(content, name='report')


def test_good():
  checked = _read(cases.REPORT)
  assert checked.verification.recall_at_far['0.001'] == 0.512
  assert checked.privacy.epsilon_unamplified is None


def test_is_what_json_and_a_file_give_back(tmp_path):
  checked = _read(cases.REPORT)
  assert _read(json.loads(json.dumps(cases.REPORT))) == checked
  checked.write(tmp_path / 'report.json', is_private=True)
  assert (tmp_path / 'report.json').stat().st_mode & 0o777 == 0o600
  assert report_schema.Report.read(tmp_path / 'report.json') == checked
  assert checked.digest == documents.digest_of(cases.REPORT)


@pytest.mark.parametrize(
  ('path', 'value', 'match'),
  [
    ('schema', 1, "must have schema 'dpemb.report/3', got 1; `dpemb report`"),
    ('schema', None, "schema 'dpemb.report/3', got None"),
    ('training.rounds', None, 'report.training.rounds must be there'),
    ('training.rounds', -1, 'training.rounds must be >= 0, got -1'),
    ('training.rounds', 2.5, 'training.rounds must be a whole number, got 2.5'),
    ('training.loss_note', 'x', 'loss_note is not part of this form'),
    ('privacy', None, 'report.privacy must be there'),
    ('privacy.delta', 1.0, 'privacy.delta must be < 1'),
    ('privacy.epsilon', float('inf'), 'must hold finite JSON values'),
    ('privacy.extrapolated', [{}], r'extrapolated\[0\].population must be th'),
    ('verification.recall_at_far', {}, 'must hold a false accept rate'),
    ('verification.recall_at_far', {'2': 0.5}, "keyed by rates, got '2'"),
    ('verification.recall_at_far', {'0.1': 1.5}, 'recall_at_far.0.1 must be'),
    ('verification.pixels', {'0.1': 0.3}, 'pixels must have the rates 0.001'),
    ('export.min_cosine', 'high', "min_cosine must be a number, got 'high'"),
    ('export.digest', 'short', "export.digest must match .*, got 'short'"),
    ('synthetic.chance', float('nan'), 'must hold finite JSON values'),
  ],
)
def test_fault(path, value, match):
  with pytest.raises(documents.DocumentError, match=match):
    _read(cases.changed_report(path, value))
