"""`dpemb doctor --executor`: a real round, or what is in its way."""

import re

import pytest

from launch import cli
from launch.doctor import checks
from launch.doctor import executor_check
from tff_dpemb import config
from tff_dpemb.training.execution import executors


def test_a_round_on_two_workers_is_placed_and_timed(capsys, monkeypatch):
  monkeypatch.setattr(checks, 'examine', lambda deep: [])
  assert cli.run(['doctor', '--executor', 'workers']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert re.search(r'executor workers +a round of 16 virtual clients', lines[0])
  places = [
    re.search(
      r'(local-\d) +(\d+) virtual clients, (\d+) examples, \d+ ex', line
    )
    for line in lines[1:]
  ]
  assert [place[1] for place in places] == ['local-0', 'local-1']
  assert sum(int(place[2]) for place in places) == 16
  assert sum(int(place[3]) for place in places) == 16 * 32


def test_an_absent_worker_is_a_fault_with_a_remedy(monkeypatch):
  workers = executors.workers
  monkeypatch.setattr(
    executors,
    'workers',
    lambda addresses, **options: workers(
      addresses, **{**options, 'start_seconds': 0.2}
    ),
  )
  (finding,) = executor_check.examine(
    config.RuntimeConfig(executor='workers', workers=('127.0.0.1:9',))
  )
  assert finding.status == 'FAULT'
  assert 'worker 127.0.0.1:9 must answer within' in finding.detail
  assert 'dpemb worker' in finding.detail


def test_an_unprotected_address_is_a_fault(capsys, monkeypatch):
  monkeypatch.setattr(checks, 'examine', lambda deep: [])
  assert (
    cli.run(['doctor', '--executor', 'workers', '--workers', '10.0.0.7:1']) == 2
  )
  assert '10.0.0.7:1 must have TLS' in capsys.readouterr().out


@pytest.mark.parametrize(
  'arguments',
  [['--workers', 'localhost:1'], ['--executor', 'local', '--workers', 'a:1']],
)
def test_workers_need_their_executor(arguments, capsys):
  assert cli.run(['doctor', *arguments]) == 2
  assert '--workers needs --executor workers' in capsys.readouterr().err
