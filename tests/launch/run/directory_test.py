"""Which pages a run may go on with."""

import pytest

from launch.run import directory
from tff_dpemb import config


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
