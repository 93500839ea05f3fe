import pytest

from launch.doctor import findings


def test_finding_has_a_remedy_unless_ok():
  for status, remedy in (('FAULT', ''), ('warning', ''), ('ok', 'repair')):
    with pytest.raises(ValueError, match='a remedy if and only if'):
      findings.Finding('x', status, 'bad', remedy)


def test_a_remedy_is_under_its_finding():
  text = findings.render(
    [
      findings.Finding('cores', 'ok', '2'),
      findings.Finding('disk', 'FAULT', 'full', 'free space'),
    ]
  )
  assert [line.split() for line in text.splitlines()] == [
    ['ok', 'cores', '2'],
    ['FAULT', 'disk', 'full'],
    ['remedy:', 'free', 'space'],
  ]
