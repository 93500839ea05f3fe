import json
import pathlib
import sys
import types

import pytest

from benchmarks import runner

_ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder of benchmarks whose modules are those given."""
  monkeypatch.setattr(runner, '_FOLDER', tmp_path)
  monkeypatch.setattr(runner, '_RESULTS', tmp_path / 'results')
  docs = tmp_path / 'benchmarks.md'
  docs.write_text(f'Before.\n{runner._BEGIN}\n{runner._END}\n')
  monkeypatch.setattr(runner, '_DOCS', docs)

  def add(name, measures, text='What it shows.', peers=()):
    (tmp_path / f'{name}.py').write_text(
      f'"""{text}\n\nMore."""\ndef measure(): ...\n'
    )
    module = types.ModuleType(f'benchmarks.{name}')
    module.measure = lambda without=(): measures
    module.MAY_BE_LEFT_OUT = peers
    monkeypatch.setitem(sys.modules, module.__name__, module)

  add.path = tmp_path
  return add


class TestMeasures:
  @pytest.mark.parametrize(
    ('measure', 'target', 'holds'),
    [
      (runner.at_least('a', 0.5, target=0.5), '>= 0.5', True),
      (runner.at_least('a', 0.49, target=0.5), '>= 0.5', False),
      (runner.at_most('a', 4.01, target=4), '<= 4', False),
      (runner.at_most('a', 4, target=4), '<= 4', True),
      (runner.equal_to('a', 1, target=1), '= 1', True),
      (runner.equal_to('a', 0.999, target=1), '= 1', False),
      (runner.at_least('a', float('nan'), target=0), '>= 0', False),
      (runner.noted('a', 3), '', None),
    ],
  )
  def test_claims(self, measure, target, holds):
    assert (measure.target, measure.holds) == (target, holds)

  def test_claim_without_an_answer(self):
    with pytest.raises(runner.BenchmarkError, match='if and only if'):
      runner.Measure('a', 1.0, target='>= 0')


class TestMain:
  def test_lists_without_importing(self, folder, capsys):
    folder('fast', [])
    (folder.path / 'slow.py').write_text(
      '"""Slow one."""\nimport no_such\ndef measure(): ...\n'
    )
    (folder.path / 'shared.py').write_text('"""Parts."""\n')
    assert runner.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
      'make bench NAME=fast            What it shows.',
      'make bench NAME=slow            Slow one.',
    ]

  def test_result_has_measures_and_their_origin(self, folder, capsys):
    folder('fast', [runner.at_least('speed', 12.5, target=10, unit='1/s')])
    assert runner.main(['fast']) == 0
    result = json.loads((folder.path / 'results' / 'fast.json').read_text())
    assert result['measures'] == [
      {
        'measure': 'speed',
        'value': 12.5,
        'unit': '1/s',
        'target': '>= 10',
        'holds': True,
      }
    ]
    assert result['command'] == 'make bench NAME=fast'
    assert {'cpu', 'cores', 'memory_gib', 'load_before'} <= set(
      result['machine']
    )
    assert result['versions']['numpy'].startswith('1.')
    assert result['commit'] and result['date'].endswith('+00:00')
    assert '| speed | 12.5 1/s | >= 10 | yes |' in capsys.readouterr().out

  def test_missed_target(self, folder, capsys):
    folder('fast', [runner.at_most('seconds', 9, target=5)])
    assert runner.main(['fast']) == 5
    assert 'missed: seconds' in capsys.readouterr().err
    assert (folder.path / 'results' / 'fast.json').exists()

  def test_unknown_name(self, folder, capsys):
    folder('quickstart', [])
    assert runner.main(['quikstart']) == 2
    assert "nearest one is 'quickstart'" in capsys.readouterr().err

  def test_nothing_measured(self, folder, capsys):
    folder('empty', [])
    assert runner.main(['empty']) == 2
    assert not (folder.path / 'results').exists()
    assert 'measured nothing' in capsys.readouterr().err

  def test_the_docs_page_is_in_step_after_a_run(self, folder):
    folder('fast', [runner.noted('speed', 12.5, unit='1/s')])
    assert runner.main(['fast']) == 0
    page = (folder.path / 'benchmarks.md').read_text()
    assert '| speed | 12.5 1/s |' in page
    assert page == runner.docs_with_results(page, runner.kept_results())

  def test_a_peer_is_left_out_by_name_and_the_result_says_so(self, folder):
    folder('race', [runner.noted('speed', 1.0)], peers=('pfl', 'Flower'))
    assert runner.main(['race', '--without', 'pfl']) == 0
    result = json.loads((folder.path / 'results' / 'race.json').read_text())
    assert result['command'] == "make bench NAME=race ARGS='--without pfl'"

  @pytest.mark.parametrize('peers', [(), ('Flower',)])
  def test_no_such_peer(self, folder, capsys, peers):
    folder('race', [runner.noted('speed', 1.0)], peers=peers)
    assert runner.main(['race', '--without', 'pfl']) == 2
    assert "must name peers of benchmark 'race'" in capsys.readouterr().err
    assert not (folder.path / 'results').exists()


class TestDocs:
  def test_page_keeps_its_text_and_shows_the_results(self, folder):
    folder('fast', [runner.noted('speed', 12345.678, unit='1/s')])
    runner.run('fast')
    page = f'Before.\n{runner._BEGIN}\nstale\n{runner._END}\nAfter.\n'
    once = runner.docs_with_results(page, runner.kept_results())
    assert once.startswith('Before.\n') and once.endswith('\nAfter.\n')
    assert 'stale' not in once
    assert '| speed | 1.235e+04 1/s |  |  |' in once
    assert runner.docs_with_results(once, runner.kept_results()) == once

  def test_page_without_markers(self):
    with pytest.raises(runner.BenchmarkError, match='must hold'):
      runner.docs_with_results('text', [])

  def test_committed_page_is_that_of_the_committed_results(self):
    page = (_ROOT / 'docs' / 'benchmarks.md').read_text()
    expected = runner.docs_with_results(page, runner.kept_results())
    assert page == expected, 'run `make bench-docs`.'


def test_every_benchmark_says_what_it_shows():
  for name, text in runner.names().items():
    assert text.endswith('.'), (
      f'benchmarks/{name}.py needs a one-line docstring'
    )
