"""Which code is running, as the ledger and certificates record it."""

import re
import subprocess

import pytest

from launch.run import revision


@pytest.fixture(autouse=True)
def _fresh():
  revision.code_revision.cache_clear()
  yield
  revision.code_revision.cache_clear()


def test_a_checkout_is_named_by_its_commit_and_whether_it_was_changed(
  monkeypatch,
):
  answers = {'rev-parse': 'c' * 40, 'status': ' M launch/cli.py'}
  monkeypatch.setattr(revision, '_git', lambda root, name, *rest: answers[name])
  monkeypatch.setattr(revision.pathlib.Path, 'exists', lambda path: True)
  assert revision.code_revision() == 'c' * 40 + '-dirty'
  revision.code_revision.cache_clear()
  answers['status'] = ''
  assert revision.code_revision() == 'c' * 40


def test_without_git_it_is_the_version_of_the_package(monkeypatch):
  def fail(*unused):
    raise subprocess.SubprocessError

  monkeypatch.setattr(revision, '_git', fail)
  assert re.fullmatch(r'tff-dpemb \d+\.\d+\.\d+', revision.code_revision())


def test_the_lock_is_named_by_its_digest():
  assert re.fullmatch('[0-9a-f]{64}', revision.lock_digest())
