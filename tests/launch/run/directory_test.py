"""Which pages a run may go on with, and that one process works on it."""

import pytest

from launch.run import directory
from tff_dpemb import config
from tff_dpemb.artifacts import storage


def _run(folder, **privacy):
  page = config.from_mapping({'name': 'some', 'privacy': privacy})
  run = directory.RunDirectory(page, runs=folder)
  run.root.mkdir(parents=True, exist_ok=True)
  return run


def test_a_page_may_be_corrected_until_something_is_made(tmp_path):
  _run(tmp_path, population='wrong').record_config()
  run = _run(tmp_path, population='right')
  run.data.mkdir()
  run.record_config()
  run.pretrained.mkdir()
  run.record_config()
  with pytest.raises(
    directory.RunError, match='other values of privacy.population;'
  ):
    _run(tmp_path, population='wrong').record_config()
  _run(tmp_path, population='right', budget_epsilon=2.0).record_config()


def test_one_process_works_on_a_run(tmp_path):
  with _run(tmp_path).lock():
    with pytest.raises(directory.RunError, match='one process at a time'):
      with _run(tmp_path).lock():
        pass
  with _run(tmp_path).lock():
    pass


def test_a_place_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'file').write_text('')
  page = config.from_mapping({'name': 'some'})
  run = directory.RunDirectory(page, runs=tmp_path / 'file')
  with pytest.raises(storage.ArtifactError, match='another with --runs'):
    with run.lock():
      pass


def test_a_budget_or_an_extrapolation_changes_no_digest(tmp_path):
  plain = _run(tmp_path).config_digest('privacy')
  free = {'budget_epsilon': 2.0, 'extrapolate_to': (10**6,)}
  assert _run(tmp_path, **free).config_digest('privacy') == plain
  other = _run(tmp_path, noise_multiplier=3.0)
  assert other.config_digest('privacy') != plain


def test_the_ledger_is_a_path_in_the_directory_of_runs(tmp_path):
  page = config.from_mapping({'name': 'some'})
  runs = tmp_path / 'who? #1 at 50%'
  paths = directory.RunDirectory(page, runs=runs)
  assert paths.ledger_url == str(runs / 'ledger.sqlite')
