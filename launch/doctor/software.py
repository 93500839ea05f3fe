"""Checks of Python, of the packages at their versions, and of TFF's worker."""

import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable

from launch.doctor import findings

_DISTRIBUTION = 'tff-dpemb'
_TREE = pathlib.Path(__file__).resolve().parents[2]
# Of the versions that pyproject.toml forces against TFF's own pins, those that
# an installed copy (which has no pyproject.toml) must check as well.
FORCED = (
  'jax==0.4.13',
  'jaxlib==0.4.13',
  'scipy>=1.10,<1.12',
  'typing-extensions>=4.12',
)
_REPAIR = f'{findings.SYNC}   (or: pip install --no-deps -r requirements.txt)'
_DEEP_TIMEOUT_SECONDS = 300
_DEEP_PROGRAM = (
  'import tensorflow as tf, tensorflow_federated as tff;'
  'print(tf.__version__, tff.__version__,'
  ' len(tf.config.list_physical_devices("GPU")))'
)


def check_python(version: tuple[int, ...] | None = None) -> findings.Finding:
  """Checks for Python 3.11, the only one that TFF 0.87 and we both run on."""
  version = tuple(version or sys.version_info[:3])
  text = '.'.join(map(str, version))
  if version[:2] == (3, 11):
    return findings.ok('python', text)
  return findings.fault(
    'python',
    f'{text}; TFF 0.87 has wheels for Python 3.11 at most, this code needs it',
    f'uv python install 3.11 && {findings.SYNC}',
  )


def required_versions(tree: pathlib.Path = _TREE) -> list[str]:
  """Returns requirement strings: pyproject's, or the installed metadata's."""
  try:
    project = tomllib.loads((tree / 'pyproject.toml').read_text())
    if project['project']['name'] == _DISTRIBUTION:
      return [*project['project']['dependencies'], *FORCED]
  except (OSError, ValueError, KeyError):
    pass
  try:
    installed = importlib.metadata.requires(_DISTRIBUTION) or []
  except importlib.metadata.PackageNotFoundError:
    installed = []
  return [r for r in installed if 'extra ==' not in r] + list(FORCED)


def check_packages(
  requirements: Iterable[str],
  *,
  version_of: Callable[[str], str] = importlib.metadata.version,
) -> list[findings.Finding]:
  """Checks that each required package is there in a right version."""
  try:
    from packaging import requirements as packaging_requirements
  except ImportError:
    return [findings.fault('packages', 'packaging is not installed', _REPAIR)]
  bad, count = [], 0
  for text in requirements:
    requirement = packaging_requirements.Requirement(text)
    if requirement.marker and not requirement.marker.evaluate():
      continue
    count += 1
    name, wanted = requirement.name, requirement.specifier
    try:
      version = version_of(name)
    except importlib.metadata.PackageNotFoundError:
      bad.append(findings.fault(name, f'missing; needed {wanted}', _REPAIR))
      continue
    if wanted.contains(version, prereleases=True):
      continue
    detail = f'{version}; needed {wanted}'
    if name == 'tensorflow-federated':
      detail += (
        ' (without the lock pip falls back to an old TFF: the jaxlib that'
        ' 0.87 pins is not on PyPI)'
      )
    bad.append(findings.fault(name, detail, _REPAIR))
  return bad or [findings.ok('packages', f'{count} at their versions')]


def check_worker(package: pathlib.Path | None = None) -> findings.Finding:
  """Checks that TFF's C++ worker is there and may be executed."""
  if package is None:
    spec = importlib.util.find_spec('tensorflow_federated')
    if spec is None or spec.origin is None:
      return findings.fault('tff worker', 'TFF is not installed', _REPAIR)
    package = pathlib.Path(spec.origin).parent
  binary = package / 'data' / findings.WORKER
  if not binary.is_file():
    return findings.fault(
      'tff worker',
      f'{binary} is missing',
      f'{findings.SYNC} --reinstall-package tensorflow-federated',
    )
  if not os.access(binary, os.X_OK):
    return findings.fault(
      'tff worker',
      f'{binary} may not be executed',
      f'chmod +x {binary}   (and mount the disk without noexec)',
    )
  return findings.ok('tff worker', f'{binary.stat().st_size >> 20} MiB binary')


def check_imports(program: str = _DEEP_PROGRAM) -> findings.Finding:
  """Imports the frameworks in a process of their own, which takes a while."""
  start = time.monotonic()
  try:
    process = subprocess.run(
      [sys.executable, '-c', program],
      capture_output=True,
      text=True,
      check=False,
      timeout=_DEEP_TIMEOUT_SECONDS,
    )
  except subprocess.TimeoutExpired:
    return findings.fault('imports', 'took over 300 s', _REPAIR)
  if process.returncode:
    last = (process.stderr.strip().splitlines() or ['no message'])[-1]
    return findings.fault('imports', last, _REPAIR)
  seconds = time.monotonic() - start
  detail = process.stdout.strip().splitlines()[-1]
  return findings.ok('imports', f'{detail} GPUs, {seconds:.0f} s')
