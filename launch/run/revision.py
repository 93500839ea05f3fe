"""Which code is running: recorded in the ledger, certificates and results."""

import functools
import importlib.metadata
import pathlib
import subprocess

from tff_dpemb.artifacts import storage


@functools.cache
def code_revision() -> str:
  """Returns the git commit (with `-dirty`), or the package's version."""
  root = pathlib.Path(__file__).resolve().parents[2]
  if (root / '.git').exists():
    try:
      commit = _git(root, 'rev-parse', 'HEAD')
      dirty = '-dirty' if _git(root, 'status', '--porcelain') else ''
      return commit + dirty
    except (OSError, subprocess.SubprocessError):
      pass
  return f'tff-dpemb {importlib.metadata.version("tff-dpemb")}'


def lock_digest() -> str:
  """Returns the SHA-256 of uv.lock, or '' where the package is installed."""
  path = pathlib.Path(__file__).resolve().parents[2] / 'uv.lock'
  return storage.sha256_of(path) if path.exists() else ''


def _git(root: pathlib.Path, *arguments: str) -> str:
  result = subprocess.run(
    ['git', '-C', str(root), *arguments],
    capture_output=True,
    text=True,
    check=True,
    timeout=20,
  )
  return result.stdout.strip()
