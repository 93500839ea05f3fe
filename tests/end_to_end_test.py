"""The whole job through the command line, with a kill -9 in the middle."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from launch.pages import report_schema
from tff_dpemb.privacy.ledger import ledger as ledger_lib

pytestmark = pytest.mark.alone

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PAGE = _ROOT / 'launch/configs/quickstart.toml'
_ROUNDS = 4
_OVERRIDES = (
  'name=small',
  'data.images_per_identity=4',
  'data.test_identities=60',
  'data.validation_identities=20',
  'pretraining.steps=30',
  'privacy.users_per_round=48',
  'privacy.virtual_clients=4',
  f'training.rounds={_ROUNDS}',
  'training.max_examples_per_user=2',
  'training.evaluate_every=2',
  'synthesis.classes=4',
)


def _command(command, runs, *more):
  arguments = [sys.executable, '-m', 'launch.cli', command]
  if command in ('train', 'quickstart'):
    arguments += [str(_PAGE), '--runs', str(runs)]
    for override in _OVERRIDES:
      arguments += ['--set', override]
  return [*arguments, *more]


def _run(command, runs, *more):
  return subprocess.run(
    _command(command, runs, *more),
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=500,
  )


def _draws(runs):
  path = runs / 'ledger.sqlite'
  if not path.exists():
    return []
  with ledger_lib.Ledger.open(path) as ledger:
    return [
      entry
      for entry in ledger.entries(run='small', kind='draw')
      if entry.release == 'small/model'
    ]


def _kill_in_third_round(runs):
  """Starts training and kills it once its third draw is in the ledger."""
  with subprocess.Popen(
    _command('train', runs),
    cwd=_ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  ) as program:
    deadline = time.monotonic() + 400
    while len(_draws(runs)) < 3:
      assert program.poll() is None, 'training ended before it was killed'
      assert time.monotonic() < deadline
      time.sleep(0.1)
    children = psutil.Process(program.pid).children(recursive=True)
    assert any('worker_binary' in child.name() for child in children)
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
  _, alive = psutil.wait_procs(children, timeout=10)
  assert not alive


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A run that was killed once and then finished by `dpemb quickstart`."""
  runs = tmp_path_factory.mktemp('runs')
  _kill_in_third_round(runs)
  result = _run('quickstart', runs)
  assert result.returncode == 0, result.stderr[-2000:]
  return runs, result


@pytest.mark.timeout(1200)
def test_a_killed_run_resumes_and_every_draw_is_in_the_ledger(finished):
  runs, _ = finished
  rounds = [entry.round_number for entry in _draws(runs)]
  attempts = [entry.attempt for entry in _draws(runs)]
  assert sorted(set(rounds)) == list(range(_ROUNDS))
  # The kill fell after the third draw: that round was drawn again, unless its
  # checkpoint had just been written.
  assert len(rounds) in (_ROUNDS, _ROUNDS + 1)
  assert max(attempts) == 1 + (len(rounds) - _ROUNDS)
  report = json.loads((runs / 'small/report.json').read_text())
  assert report['training']['rounds'] == _ROUNDS
  assert report['privacy']['draws'] == len(rounds)
  assert report['training']['replayed_rounds'] == len(rounds) - _ROUNDS


def test_the_report_has_every_key_and_figures_of_real_stages(finished):
  runs, _ = finished
  report = json.loads((runs / 'small/report.json').read_text())
  checked = report_schema.Report.from_json(report)
  assert checked.verification.held_out_identities == 60
  assert checked.verification.pairs == 240 * 239 // 2
  assert checked.export.min_cosine >= 0.9999
  assert checked.serving.agreement_with_exact == 1.0
  assert checked.synthetic.epsilon <= 8
  assert report['privacy']['simulation'] is True
  for name in ('report.json', 'report.html'):  # Figures without noise.
    assert (runs / 'small' / name).stat().st_mode & 0o777 == 0o600
  page = (runs / 'small/report.html').read_text()
  assert 'src="http' not in page and 'href="http' not in page


@pytest.mark.parametrize('artefact', ['export/1', 'synthetic'])
def test_certificates_verify_and_an_altered_one_does_not(finished, artefact):
  runs, _ = finished
  directory = runs / 'small' / artefact
  ledger = ('--ledger', str(runs / 'ledger.sqlite'))
  good = _run(
    'certificate', runs, 'verify', str(directory / 'certificate.json'), *ledger
  )
  assert good.returncode == 0, good.stdout + good.stderr
  document = json.loads((directory / 'certificate.json').read_text())
  document['accounting']['epsilon'] = 1.0
  altered = directory / 'altered.json'
  altered.write_text(json.dumps(document))
  bad = _run('certificate', runs, 'verify', str(altered))
  altered.unlink()
  assert bad.returncode == 5, bad.stdout + bad.stderr


def test_the_ledger_verifies(finished):
  runs, _ = finished
  result = _run(
    'ledger', runs, 'verify', '--ledger', str(runs / 'ledger.sqlite')
  )
  assert result.returncode == 0, result.stdout + result.stderr


def test_a_simulation_is_not_served_unless_asked_by_name(finished):
  runs, _ = finished
  result = _run('serve', runs, str(runs / 'small/export'))
  assert result.returncode != 0
  assert '--allow-unprotected' in result.stderr


def test_a_finished_run_does_nothing_again(finished):
  runs, _ = finished
  before = len(_draws(runs))
  result = _run('quickstart', runs)
  assert result.returncode == 0
  assert len(_draws(runs)) == before


def test_another_page_under_the_same_name_is_refused(finished):
  runs, _ = finished
  result = _run('quickstart', runs, '--set', 'training.server_momentum=0.5')
  assert result.returncode == 2
  assert 'training.server_momentum' in result.stderr
  assert 'set another name' in result.stderr
