import pytest

from benchmarks import runner
from benchmarks.peers import environments
from benchmarks.peers import race

_GONE = race.Engine('gone', 'no_such_module')
_PEER = race.Engine('peer', 'pfl_torch', environment='pfl')


def test_an_engine_that_ends_fails_the_race_and_says_the_way_without_it():
  with pytest.raises(
    race.RaceError, match=r"'gone' must run.*--without='gone'"
  ):
    race.run([_GONE], 'lenet', rounds=1)
  assert issubclass(race.RaceError, runner.BenchmarkError)


def test_a_peer_without_its_environment_fails_the_race(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  monkeypatch.setenv('UV', str(tmp_path / 'no-uv'))
  with pytest.raises(race.RaceError, match='needs uv, got .*no-uv'):
    race.run([_PEER], 'lenet', rounds=1)


def test_what_is_left_out_by_name_is_not_started(monkeypatch):
  monkeypatch.setenv('UV', '/no/uv')
  assert (
    race.run([_GONE, _PEER], 'lenet', rounds=1, without=('gone', 'peer')) == {}
  )


def test_uv_is_that_of_make_or_of_the_path(monkeypatch, tmp_path):
  uv = tmp_path / 'uv'
  uv.write_text('#!/bin/sh\necho "$@" >> "$(dirname "$0")/calls"\nexit 1\n')
  uv.chmod(0o755)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  monkeypatch.setenv('UV', str(uv))
  monkeypatch.setenv('PATH', '/usr/bin:/bin')
  with pytest.raises(environments.EnvironmentError, match='venv failed'):
    environments.python_of('pfl')
  monkeypatch.delenv('UV')
  monkeypatch.setenv('PATH', f'{tmp_path}:/usr/bin:/bin')
  with pytest.raises(environments.EnvironmentError, match='venv failed'):
    environments.python_of('pfl')
  assert (tmp_path / 'calls').read_text().count('venv --clear') == 2
