"""requirements.txt is what the lock says; the lock is what the project says."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_EXPORT = ['export', '--frozen', '--no-dev', '--no-emit-project', '--no-header']


@pytest.fixture(scope='module')
def uv():
  """Returns a uv that runs; fails rather than skips, so nothing drifts."""
  candidates = [
    os.environ.get('UV'),
    shutil.which('uv'),
    str(_ROOT / '.tools' / 'bin' / 'uv'),
  ]
  for candidate in filter(None, candidates):
    if os.access(candidate, os.X_OK):
      run = subprocess.run([candidate, '--version'], capture_output=True)
      if run.returncode == 0:
        return candidate
  pytest.fail('no uv found; `make test` and `make check` bring one.')


def _requirements():
  text = (_ROOT / 'requirements.txt').read_text()
  joined = text.replace('\\\n', ' ')
  return [line for line in joined.splitlines() if re.match(r'\w', line)]


def test_requirements_are_exported_from_the_lock(uv):
  exported = subprocess.run(
    [uv, *_EXPORT],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
  )
  current = (_ROOT / 'requirements.txt').read_text()
  assert current == exported.stdout, 'run `make requirements`.'


def test_lock_is_resolved_from_the_project(uv):
  check = subprocess.run(
    [uv, 'lock', '--check', '--offline'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert check.returncode == 0, f'run `uv lock`. {check.stderr}'


def test_each_requirement_is_exact_and_hashed():
  requirements = _requirements()
  assert len(requirements) > 50
  for requirement in requirements:
    assert re.match(r'[A-Za-z0-9._-]+(\[[\w,]+\])?==\S+ ', requirement)
    assert '--hash=sha256:' in requirement, requirement


def test_versions_that_plain_pip_cannot_find_are_forced():
  names = {line.split(' ')[0] for line in _requirements()}
  assert {'jaxlib==0.4.13', 'tensorflow-federated==0.87.0'} <= names
