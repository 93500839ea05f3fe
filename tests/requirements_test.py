"""requirements.txt is what the lock says, the lock what the project says, and
the project what the code imports.
"""

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

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


# ---- what is imported is declared, and what is declared is imported ----

_PRODUCT = ('tff_dpemb', 'serving', 'protos', 'launch')
_OURS = {*_PRODUCT, 'benchmarks', 'tests'}
# Declared, and needed without an import of ours.
_NOT_IMPORTED = {'psycopg': 'SQLAlchemy imports it for a postgresql URL'}
# In the product's folders, and run by its developers alone.
_DEVELOPMENT = pathlib.Path('protos/generate.py')
_TOOLS = {'pytest-timeout', 'ruff', 'mypy', 'buf-bin', 'pytest-xdist'}


def _name(requirement):
  """Returns the normalised name of a distribution."""
  return re.sub(r'[-_.]+', '-', re.match(r'[\w.-]+', requirement)[0]).lower()


def _imports(*folders):
  """Returns {top-level module: a file that imports it}, without our own."""
  found = {}
  for folder in folders:
    for path in sorted((_ROOT / folder).rglob('*.py')):
      for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
          names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
          names = [node.module]
        for name in names:
          found.setdefault(name.partition('.')[0], path.relative_to(_ROOT))
  return {
    name: path
    for name, path in found.items()
    if name not in sys.stdlib_module_names and name not in _OURS
  }


@pytest.fixture(scope='module', name='project')
def _project():
  return tomllib.loads((_ROOT / 'pyproject.toml').read_text())


@pytest.fixture(scope='module', name='distributions')
def _distributions():
  return {
    module: {_name(item) for item in names}
    for module, names in importlib.metadata.packages_distributions().items()
  }


def _undeclared(imports, declared, distributions):
  return [
    f'{path} imports {module}: declare it'
    for module, path in imports.items()
    if not distributions.get(module, {module}) & declared
  ]


def test_what_the_product_imports_is_declared(project, distributions):
  declared = {_name(item) for item in project['project']['dependencies']}
  imports = {
    module: path
    for module, path in _imports(*_PRODUCT).items()
    if path != _DEVELOPMENT
  }
  assert not _undeclared(imports, declared, distributions)


def test_what_tests_and_benchmarks_import_is_declared(project, distributions):
  declared = {_name(item) for item in project['project']['dependencies']}
  declared |= {_name(item) for item in project['dependency-groups']['dev']}
  # Peers run in environments of their own.
  for file in (_ROOT / 'benchmarks' / 'peers').glob('*.txt'):
    declared |= {
      _name(line)
      for line in file.read_text().splitlines()
      if line[:1].isalpha()
    }
  found = _undeclared(_imports('tests', 'benchmarks'), declared, distributions)
  assert not found


def test_what_is_declared_is_imported(project, distributions):
  imported = set()
  for module in _imports(*_OURS):
    imported |= distributions.get(module, set())
  declared = [
    *project['project']['dependencies'],
    *project['dependency-groups']['dev'],
  ]
  assert set(_NOT_IMPORTED) <= {_name(item) for item in declared}
  for item in declared:
    name = _name(item)
    if name in _NOT_IMPORTED or name in _TOOLS:
      continue
    assert name in imported, f'{name} is declared and nothing imports it'
