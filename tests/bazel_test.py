"""BUILD is true for a real Bazel too, where one is installed.

Debian's Bazel runs offline on an overlay of links to the tree with the stub
repositories of tests/bazel/, so that the tree itself needs no WORKSPACE.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_STUBS = _ROOT / 'tests' / 'bazel'
_DEBIAN = pathlib.Path('/usr/share/bazel')
_INSTALL = (
  'apt-get install --no-install-recommends bazel-bootstrap bazel-rules-java'
  ' bazel-rules-proto bazel-platforms'
)
_ALL_VARIABLE = 'DPEMB_BAZEL_ALL'  # set: run every pure test, minutes
_WORKSPACE = """\
workspace(name = "tree")
local_repository(name = "com_google_protobuf", path = "{stubs}/protobuf")
local_repository(name = "rules_python", path = "{stubs}/rules_python")
local_repository(name = "rules_cc", path = "{stubs}/rules_cc")
local_repository(
    name = "remote_coverage_tools",
    path = "{stubs}/remote_coverage_tools",
)
local_repository(name = "rules_java", path = "{debian}/rules/java")
local_repository(name = "rules_proto", path = "{debian}/rules/proto")
local_repository(name = "platforms", path = "{debian}/tools/platforms")
"""
_LINKED = (
  'BUILD',
  'benchmarks',
  'launch',
  'protos',
  'pyproject.toml',
  'serving',
  'tests',
  'tff_dpemb',
)

pytestmark = [
  pytest.mark.alone,
  pytest.mark.timeout(900),
  pytest.mark.skipif(
    shutil.which('bazel') is None
    or not (_DEBIAN / 'tools' / 'platforms').is_dir(),
    reason=f'no offline Bazel is installed; {_INSTALL}',
  ),
]


class Overlay:
  """A directory that Bazel takes for its workspace."""

  def __init__(self, directory: pathlib.Path):
    self.root = directory / 'tree'
    self._output = directory / 'output'
    self.root.mkdir()
    for name in _LINKED:
      (self.root / name).symlink_to(_ROOT / name)
    (self.root / 'WORKSPACE').write_text(
      _WORKSPACE.format(stubs=_STUBS, debian=_DEBIAN)
    )
    # Bazel must not take the stubs for packages of the tree.
    stubs = sorted(path.name for path in _STUBS.iterdir() if path.is_dir())
    (self.root / '.bazelignore').write_text(
      ''.join(f'tests/bazel/{name}\n' for name in stubs)
    )

  def bazel(self, command: str, *arguments: str):
    """Runs Bazel; the first python3 on its PATH is this interpreter."""
    environment = {
      'HOME': str(self._output),
      'PATH': f'{pathlib.Path(sys.executable).parent}:/usr/bin:/bin',
    }
    options = []
    if command in ('build', 'test'):
      options = ['--symlink_prefix=/', '--noshow_progress', '--color=no']
      options += [f'--{kind}_env=PATH' for kind in ('action', 'test')]
    return subprocess.run(
      [
        'bazel',
        f'--output_user_root={self._output}',
        '--max_idle_secs=60',
        command,
        *options,
        *arguments,
      ],
      cwd=self.root,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      check=False,
      timeout=800,
    )


@pytest.fixture(scope='module')
def overlay(tmp_path_factory):
  made = Overlay(tmp_path_factory.mktemp('bazel'))
  yield made
  made.bazel('shutdown')


def test_builds_every_target(overlay):
  run = overlay.bazel('build', '//...')
  assert run.returncode == 0, run.stdout


def test_pure_tests_pass(overlay):
  # `make test` runs the slower ones (clustering, privacy) itself.
  suite = 'pure_tests' if os.environ.get(_ALL_VARIABLE) else 'quick_tests'
  run = overlay.bazel('test', f'//:{suite}', '--test_output=errors')
  assert run.returncode == 0, run.stdout


def test_undeclared_import_fails(overlay):
  """A test sees what is declared: not the tree, nor its installed copy."""
  build = overlay.root / 'BUILD'
  text = build.read_text()
  declared = 'tags = ["pure"],\n        deps = [":" + layer],'
  assert declared in text
  build.unlink()
  build.write_text(text.replace(declared, 'tags = ["pure"],', 1))
  run = overlay.bazel('test', '//:tests/config_test', '--test_output=errors')
  assert run.returncode == 3, run.stdout  # built, but a test failed
  assert "No module named 'tff_dpemb'" in run.stdout
