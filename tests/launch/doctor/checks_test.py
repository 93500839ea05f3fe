from launch.doctor import checks
from launch.doctor import findings
from launch.doctor import software


def test_every_kind_of_check_is_made_and_the_slow_one_when_asked(monkeypatch):
  monkeypatch.setattr(
    software, 'check_imports', lambda: findings.Finding('imports', 'ok', 'all')
  )
  names = [finding.name for finding in checks.examine()]
  assert len(names) == 10
  assert [finding.name for finding in checks.examine(deep=True)] == [
    *names,
    'imports',
  ]
