import json

import pytest

from tff_dpemb.artifacts import storage
from tff_dpemb.training import history
from tff_dpemb.training.execution import round_form


def _report(number, *, attempt=1, seconds=1.0):
  executor = round_form.RoundTimes(
    total=0.5,
    ship=0.1,
    train=0.3,
    aggregate=0.05,
    server=0.05,
    losses=0,
    placement=[round_form.Placement('local', 3, 12, 0.4)],
  )
  return history.RoundReport(
    round=number,
    attempt=attempt,
    seconds=seconds,
    clip_norm=0.2,
    update_norm=0.1,
    loss=1.5,
    accuracy=0.25,
    users=4,
    examples=16,
    zeroed=0,
    times=history.Times(0.2, 0.1, executor),
  )


@pytest.fixture(name='path')
def _path(tmp_path):
  return tmp_path / 'restricted' / 'metrics.jsonl'


def test_each_report_is_a_line_of_its_owners_alone(path):
  kept = history.History(path)
  kept.append(_report(1))
  kept.append(_report(2))
  assert path.parent.stat().st_mode & 0o777 == 0o700
  assert path.stat().st_mode & 0o777 == 0o600
  first, second = map(json.loads, path.read_text().split('\n')[1:])
  assert (first['round'], second['round']) == (1, 2)
  assert first['times']['wait'] == 0.1
  assert first['times']['executor']['placement'][0]['clients'] == 3


def test_the_last_report_of_a_round_counts(path):
  kept = history.History(path)
  assert kept.seconds() == 0
  for report in (
    _report(1, seconds=1.0),
    _report(2, seconds=2.0),
    _report(2, attempt=2, seconds=4.0),
  ):
    kept.append(report)
  assert history.History(path).seconds() == 5.0


def test_a_torn_line_stays_alone(path):
  kept = history.History(path)
  kept.append(_report(1, seconds=1.0))
  kept.append(_report(2, seconds=2.0))
  path.write_text(path.read_text()[:-5])  # A crash in the middle of a line.
  kept.append(_report(3, seconds=4.0))
  assert kept.seconds() == 5.0


def test_a_disk_that_refuses_is_told_with_the_remedy(path):
  kept = history.History(path)
  path.mkdir()
  with pytest.raises(storage.ArtifactError, match='run the same command again'):
    kept.append(_report(1))
