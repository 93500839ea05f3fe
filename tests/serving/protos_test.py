"""The protos are well formed and the committed code is theirs."""

import pathlib
import shutil
import subprocess
import sys

import pytest

from protos import generate


def test_committed_code_is_in_step(tmp_path):
  """Regenerate with `python -m protos.generate` when this fails."""
  written = {
    path.relative_to(tmp_path): path.read_text()
    for path in generate.generate(tmp_path)
  }
  committed = {
    path.relative_to(generate.GENERATED): path.read_text()
    for pattern in ('*.py', '*.pyi')
    for path in generate.GENERATED.rglob(pattern)
  }
  assert sorted(written) == sorted(committed)
  for name, text in written.items():
    assert committed[name] == text, name


def test_lint():
  local = pathlib.Path(sys.executable).with_name('buf')
  buf = str(local) if local.exists() else shutil.which('buf')
  if buf is None:
    pytest.skip('buf is not installed')
  result = subprocess.run(
    [buf, 'lint', str(generate.ROOT)],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert result.returncode == 0, result.stdout + result.stderr
