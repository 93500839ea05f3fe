import json

from launch import cli
from launch.doctor import checks
from launch.doctor import findings


class TestCommand:
  def test_this_environment_is_good(self, capsys):
    assert cli.run(['doctor']) == 0
    assert 'FAULT' not in capsys.readouterr().out

  def test_fault_is_exit_code_2_with_its_remedy(self, capsys, monkeypatch):
    fault = findings.Finding('python', 'FAULT', '3.12.0', 'uv python install')
    monkeypatch.setattr(checks, 'examine', lambda deep: [fault])
    assert cli.run(['doctor']) == 2
    assert 'remedy: uv python install' in capsys.readouterr().out

  def test_json(self, capsys):
    cli.run(['doctor', '--json'])
    findings = json.loads(capsys.readouterr().out)
    assert {'name', 'status', 'detail', 'remedy'} == set(findings[0])
