"""`dpemb doctor`: is this machine and its environment right, and if not, why.

Reads package metadata and /proc; imports no framework unless asked
(`--deep`). Each finding that is not good prints the command that repairs it.
"""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable

import click

from tff_dpemb.processes import children

_DISTRIBUTION = 'tff-dpemb'
_TREE = pathlib.Path(__file__).resolve().parents[2]
_SYNC = 'uv sync --frozen'
_REPAIR = f'{_SYNC}   (or: pip install --no-deps -r requirements.txt)'
# Of the versions that pyproject.toml forces against TFF's own pins, those that
# an installed copy (which has no pyproject.toml) must check as well.
FORCED = (
  'jax==0.4.13',
  'jaxlib==0.4.13',
  'scipy>=1.10,<1.12',
  'typing-extensions>=4.12',
)
_GIB = 2**30
_MIN_DISK_BYTES = _GIB
_MIN_MEMORY_BYTES = 3 * _GIB
_MIN_GLIBC = (2, 31)  # the manylinux tag of TFF 0.87's wheel
_WORKER = 'worker_binary'
_DEEP_TIMEOUT_SECONDS = 300
_DEEP_PROGRAM = (
  'import tensorflow as tf, tensorflow_federated as tff;'
  'print(tf.__version__, tff.__version__,'
  ' len(tf.config.list_physical_devices("GPU")))'
)

OK, WARNING, FAULT = 'ok', 'warning', 'FAULT'


@dataclasses.dataclass(frozen=True)
class Finding:
  """One thing looked at: its status, what was found, how to repair it."""

  name: str
  status: str
  detail: str
  remedy: str = ''

  def __post_init__(self):
    if (self.status == OK) == bool(self.remedy):
      raise ValueError(f'{self.name}: a remedy if and only if it is not ok.')


def check_python(version: tuple[int, ...] | None = None) -> Finding:
  """Checks for Python 3.11, the only one that TFF 0.87 and we both run on."""
  version = tuple(version or sys.version_info[:3])
  text = '.'.join(map(str, version))
  if version[:2] == (3, 11):
    return Finding('python', OK, text)
  return Finding(
    'python',
    FAULT,
    f'{text}; TFF 0.87 has wheels for Python 3.11 at most, this code needs it',
    f'uv python install 3.11 && {_SYNC}',
  )


def check_platform(
  *,
  system: str | None = None,
  machine: str | None = None,
  glibc: str | None = None,
  cpu_flags: str | None = None,
) -> Finding:
  """Checks for Linux on x86-64 with AVX and a new enough glibc."""
  system = system or platform.system()
  machine = machine or platform.machine()
  if system != 'Linux' or machine != 'x86_64':
    return Finding(
      'platform',
      FAULT,
      f'{system} {machine}; TFF has wheels for Linux x86-64 only',
      'run in a Linux x86-64 machine or container, e.g. docker run'
      ' --platform linux/amd64 -it python:3.11-bookworm',
    )
  if glibc is None:
    glibc = platform.libc_ver()[1] if platform.libc_ver()[0] == 'glibc' else ''
  numbers = tuple(int(part) for part in re.findall(r'\d+', glibc)[:2])
  if numbers < _MIN_GLIBC:
    return Finding(
      'platform',
      FAULT,
      f'glibc {glibc or "not found (musl?)"}; at least 2.31 is needed',
      'use a newer distribution, e.g. Debian 11, Ubuntu 20.04, not Alpine',
    )
  if cpu_flags is None:
    cpu_flags = _read('/proc/cpuinfo')
  if cpu_flags and not re.search(r'\bavx\b', cpu_flags):
    return Finding(
      'platform',
      FAULT,
      'this CPU shows no AVX, which TensorFlow is built for',
      'use another machine; on a virtual one choose the host CPU model',
    )
  return Finding('platform', OK, f'Linux x86-64, glibc {glibc}')


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
) -> list[Finding]:
  """Checks that each required package is there in a right version."""
  try:
    from packaging import requirements as packaging_requirements
  except ImportError:
    return [Finding('packages', FAULT, 'packaging is not installed', _REPAIR)]
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
      bad.append(Finding(name, FAULT, f'missing; needed {wanted}', _REPAIR))
      continue
    if wanted.contains(version, prereleases=True):
      continue
    detail = f'{version}; needed {wanted}'
    if name == 'tensorflow-federated':
      detail += (
        ' (without the lock pip falls back to an old TFF: the jaxlib that'
        ' 0.87 pins is not on PyPI)'
      )
    bad.append(Finding(name, FAULT, detail, _REPAIR))
  return bad or [Finding('packages', OK, f'{count} at their versions')]


def check_worker(package: pathlib.Path | None = None) -> Finding:
  """Checks that TFF's C++ worker is there and may be executed."""
  if package is None:
    spec = importlib.util.find_spec('tensorflow_federated')
    if spec is None or spec.origin is None:
      return Finding('tff worker', FAULT, 'TFF is not installed', _REPAIR)
    package = pathlib.Path(spec.origin).parent
  binary = package / 'data' / _WORKER
  if not binary.is_file():
    return Finding(
      'tff worker',
      FAULT,
      f'{binary} is missing',
      f'{_SYNC} --reinstall-package tensorflow-federated',
    )
  if not os.access(binary, os.X_OK):
    return Finding(
      'tff worker',
      FAULT,
      f'{binary} may not be executed',
      f'chmod +x {binary}   (and mount the disk without noexec)',
    )
  return Finding('tff worker', OK, f'{binary.stat().st_size >> 20} MiB binary')


def check_disk(
  directory: pathlib.Path, *, free_bytes: int | None = None
) -> Finding:
  """Checks for a GiB of free disk and the right to write there."""
  if free_bytes is None:
    free_bytes = shutil.disk_usage(directory).free
  detail = f'{free_bytes / _GIB:.1f} GiB free in {directory}'
  if not os.access(directory, os.W_OK):
    return Finding(
      'disk', FAULT, f'{directory} is not writable', 'cd to one that is'
    )
  if free_bytes < _MIN_DISK_BYTES:
    return Finding(
      'disk',
      FAULT,
      f'{detail}; a run needs about 1',
      'free space, or run from a directory on another disk',
    )
  return Finding('disk', OK, detail)


def check_cores(count: int | None = None) -> Finding:
  """Checks for two cores."""
  count = count if count is not None else len(os.sched_getaffinity(0))
  if count < 2:
    return Finding(
      'cores',
      WARNING,
      f'{count}; the quick start takes about twice as long as on 2',
      'give the machine or container 2 cores',
    )
  return Finding('cores', OK, str(count))


def check_memory(available_bytes: int | None = None) -> Finding:
  """Checks for three GiB of memory, the container's limit included."""
  if available_bytes is None:
    available_bytes = _available_memory()
  if available_bytes is None:
    return Finding(
      'memory', WARNING, 'could not be read', 'see that 3 GiB are available'
    )
  detail = f'{available_bytes / _GIB:.1f} GiB available'
  if available_bytes < _MIN_MEMORY_BYTES:
    return Finding(
      'memory',
      WARNING,
      f'{detail}; a run needs about 3',
      'end other programs or raise the container limit',
    )
  return Finding('memory', OK, detail)


def check_orphans(proc: pathlib.Path = pathlib.Path('/proc')) -> Finding:
  """Looks for TFF workers whose program has gone (parent is process 1)."""
  orphans = []
  for directory in proc.glob('[0-9]*'):
    command = _read(directory / 'cmdline').split('\0')
    if pathlib.Path(command[0]).name != _WORKER:
      continue
    # Fields after the name, which is in brackets and may hold blanks.
    fields = _read(directory / 'stat').rpartition(')')[2].split()
    if len(fields) > 1 and fields[1] == '1':
      orphans.append(int(directory.name))
  if orphans:
    pids = ' '.join(map(str, sorted(orphans)))
    return Finding(
      'orphan workers',
      WARNING,
      f'{len(orphans)} TFF workers run without their program',
      f'kill {pids}',
    )
  return Finding('orphan workers', OK, 'none')


def check_isolation(
  *, can_seal: Callable[[], bool] = children.can_seal
) -> Finding:
  """Checks that TFF workers get a network of their own."""
  if can_seal():
    return Finding('worker isolation', OK, 'workers have their own network')
  return Finding(
    'worker isolation',
    WARNING,
    "a TFF worker's port is open on all interfaces while it runs: this kernel or"
    ' container forbids unprivileged user namespaces',
    'sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), docker run'
    ' --security-opt seccomp=unconfined, or a firewall',
  )


def check_accelerator(
  device: pathlib.Path = pathlib.Path('/dev/nvidia0'),
  *,
  installed: Callable[[str], object] = importlib.util.find_spec,
) -> Finding:
  """Checks that a GPU, where there is one, has its libraries."""
  if not device.exists():
    return Finding('accelerator', OK, 'none; runs on the CPU')
  if installed('nvidia') is None:
    return Finding(
      'accelerator',
      WARNING,
      'a GPU without its CUDA libraries; runs on the CPU',
      f'{_SYNC} --extra gpu',
    )
  return Finding('accelerator', OK, 'a GPU and its CUDA libraries')


def check_imports(program: str = _DEEP_PROGRAM) -> Finding:
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
    return Finding('imports', FAULT, 'took over 300 s', _REPAIR)
  if process.returncode:
    last = (process.stderr.strip().splitlines() or ['no message'])[-1]
    return Finding('imports', FAULT, last, _REPAIR)
  seconds = time.monotonic() - start
  detail = process.stdout.strip().splitlines()[-1]
  return Finding('imports', OK, f'{detail} GPUs, {seconds:.0f} s')


def examine(*, deep: bool = False) -> list[Finding]:
  """Returns every finding about this machine."""
  findings = [
    check_python(),
    check_platform(),
    *check_packages(required_versions()),
    check_worker(),
    check_disk(pathlib.Path.cwd()),
    check_cores(),
    check_memory(),
    check_accelerator(),
    check_isolation(),
    check_orphans(),
  ]
  if deep:
    findings.append(check_imports())
  return findings


def render(findings: Iterable[Finding]) -> str:
  """Returns one line a finding, and its remedy under it."""
  lines = []
  for finding in findings:
    lines.append(f'{finding.status:8}{finding.name:21}{finding.detail}')
    if finding.remedy:
      lines.append(f'{"":8}remedy: {finding.remedy}')
  return '\n'.join(lines)


@click.command()
@click.option('--deep', is_flag=True, help='Import the frameworks too (slow).')
@click.option(
  '--executor',
  type=click.Choice(['local', 'workers', 'accelerator']),
  help='Run a small round there; print who did what, and the speed.',
)
@click.option(
  '--workers',
  multiple=True,
  metavar='HOST:PORT',
  help='A worker of --executor workers; once for each. Default: two here.',
)
@click.option(
  '--device',
  'devices',
  multiple=True,
  metavar='DEVICE',
  help='A device of --executor accelerator, as GPU:0 or CPU:0; once for each.'
  ' Default: every GPU.',
)
@click.option('--tls-authority', default='', help='PEM: who both sides trust.')
@click.option('--tls-certificate', default='', help='PEM: of this side.')
@click.option('--tls-key', default='', help='PEM: its private key.')
@click.option(
  '--insecure-network', is_flag=True, help='As runtime.insecure_network.'
)
@click.option('--json', 'as_json', is_flag=True, help='Print JSON.')
@click.pass_context
def doctor(
  context: click.Context,
  deep: bool,
  executor: str | None,
  workers: tuple[str, ...],
  devices: tuple[str, ...],
  tls_authority: str,
  tls_certificate: str,
  tls_key: str,
  insecure_network: bool,
  as_json: bool,
) -> None:
  """Checks Python, platform, packages, worker, disk, memory, orphans.

  Prints the command that repairs each fault; exit code 2 if there is one.

  Example: dpemb doctor --executor workers --workers localhost:8470
  """
  if workers and executor != 'workers':
    raise click.UsageError('--workers needs --executor workers.')
  if devices and executor != 'accelerator':
    raise click.UsageError('--device needs --executor accelerator.')
  findings = examine(deep=deep)
  if executor is not None:
    from launch.doctor import executor_check

    runtime = executor_check.runtime_from_options(
      executor,
      workers,
      devices=devices,
      tls_authority=tls_authority,
      tls_certificate=tls_certificate,
      tls_key=tls_key,
      insecure_network=insecure_network,
    )
    findings += executor_check.examine(runtime)
  if as_json:
    click.echo(json.dumps([dataclasses.asdict(f) for f in findings], indent=2))
  else:
    click.echo(render(findings))
  if any(finding.status == FAULT for finding in findings):
    context.exit(2)


def _available_memory() -> int | None:
  match = re.search(r'MemAvailable:\s+(\d+) kB', _read('/proc/meminfo'))
  if match is None:
    return None
  available = int(match[1]) * 1024
  limit = _read('/sys/fs/cgroup/memory.max').strip()
  used = _read('/sys/fs/cgroup/memory.current').strip()
  if limit.isdigit() and used.isdigit():
    available = min(available, int(limit) - int(used))
  return available


def _read(path: str | os.PathLike[str]) -> str:
  """Returns a small file's text, empty if it cannot be read."""
  try:
    return pathlib.Path(path).read_text(errors='replace')
  except OSError:
    return ''
