"""Peers' own Python environments, made once from pinned requirements.

uv makes them: that of `$UV`, which make sets to the one that it found or
brought, or else one on the PATH.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess

_FOLDER = pathlib.Path(__file__).resolve().parent
_PYTHON = '3.11'


class EnvironmentError(RuntimeError):
  """An environment that could not be made here."""


def python_of(name: str) -> pathlib.Path:
  """Returns the interpreter of `peers/<name>.txt`; makes it if needed.

  It lies in the user's cache folder, named by the digest of its requirements.

  Raises:
    EnvironmentError: There is no uv, or packages could not be had.
  """
  requirements = _FOLDER / f'{name}.txt'
  digest = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
  cache = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(cache) / 'dpemb-benchmarks' / f'{name}-{digest}'
  python = folder / 'bin' / 'python'
  complete = folder / 'complete'
  if complete.exists():
    return python
  uv = os.environ.get('UV') or shutil.which('uv')
  if uv is None or shutil.which(uv) is None:
    raise EnvironmentError(
      f'{name}: needs uv, got {uv or "none on the PATH"}; `make bench` brings'
      ' one.'
    )
  folder.parent.mkdir(parents=True, exist_ok=True)
  commands = (
    [uv, 'venv', '--clear', '--python', _PYTHON, str(folder)],
    [uv, 'pip', 'install', '--python', str(python), '-r', str(requirements)],
  )
  for command in commands:
    # Not from the project's folder: its own pins are not the peers'.
    made = subprocess.run(
      command, capture_output=True, text=True, cwd=folder.parent
    )
    if made.returncode:
      reason = made.stderr.strip().splitlines() or ['no reason given']
      raise EnvironmentError(f'{name}: {command[1]} failed: {reason[-1]}')
  complete.touch()
  return python
