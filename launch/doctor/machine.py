"""Checks of the machine: platform, disk, cores, memory, workers, accelerator."""

import importlib.util
import os
import pathlib
import platform
import re
import shutil
from collections.abc import Callable

from launch.doctor import findings
from tff_dpemb.processes import children

_GIB = 2**30
_MIN_DISK_BYTES = _GIB
_MIN_MEMORY_BYTES = 3 * _GIB
_MIN_GLIBC = (2, 31)  # the manylinux tag of TFF 0.87's wheel


def check_platform(
  *,
  system: str | None = None,
  machine: str | None = None,
  glibc: str | None = None,
  cpu_flags: str | None = None,
) -> findings.Finding:
  """Checks for Linux on x86-64 with AVX and a new enough glibc."""
  system = system or platform.system()
  machine = machine or platform.machine()
  if system != 'Linux' or machine != 'x86_64':
    return findings.fault(
      'platform',
      f'{system} {machine}; TFF has wheels for Linux x86-64 only',
      'run in a Linux x86-64 machine or container, e.g. docker run'
      ' --platform linux/amd64 -it python:3.11-bookworm',
    )
  if glibc is None:
    glibc = platform.libc_ver()[1] if platform.libc_ver()[0] == 'glibc' else ''
  numbers = tuple(int(part) for part in re.findall(r'\d+', glibc)[:2])
  if numbers < _MIN_GLIBC:
    return findings.fault(
      'platform',
      f'glibc {glibc or "not found (musl?)"}; at least 2.31 is needed',
      'use a newer distribution, e.g. Debian 11, Ubuntu 20.04, not Alpine',
    )
  if cpu_flags is None:
    cpu_flags = _read('/proc/cpuinfo')
  if cpu_flags and not re.search(r'\bavx\b', cpu_flags):
    return findings.fault(
      'platform',
      'this CPU shows no AVX, which TensorFlow is built for',
      'use another machine; on a virtual one choose the host CPU model',
    )
  return findings.ok('platform', f'Linux x86-64, glibc {glibc}')


def check_disk(
  directory: pathlib.Path, *, free_bytes: int | None = None
) -> findings.Finding:
  """Checks for a GiB of free disk and the right to write there."""
  if free_bytes is None:
    free_bytes = shutil.disk_usage(directory).free
  detail = f'{free_bytes / _GIB:.1f} GiB free in {directory}'
  if not os.access(directory, os.W_OK):
    return findings.fault(
      'disk', f'{directory} is not writable', 'cd to one that is'
    )
  if free_bytes < _MIN_DISK_BYTES:
    return findings.fault(
      'disk',
      f'{detail}; a run needs about 1',
      'free space, or run from a directory on another disk',
    )
  return findings.ok('disk', detail)


def check_cores(count: int | None = None) -> findings.Finding:
  """Checks for two cores."""
  count = count if count is not None else len(os.sched_getaffinity(0))
  if count < 2:
    return findings.warning(
      'cores',
      f'{count}; the quick start takes about twice as long as on 2',
      'give the machine or container 2 cores',
    )
  return findings.ok('cores', str(count))


def check_memory(available_bytes: int | None = None) -> findings.Finding:
  """Checks for three GiB of memory, the container's limit included."""
  if available_bytes is None:
    available_bytes = _available_memory()
  if available_bytes is None:
    return findings.warning(
      'memory', 'could not be read', 'see that 3 GiB are available'
    )
  detail = f'{available_bytes / _GIB:.1f} GiB available'
  if available_bytes < _MIN_MEMORY_BYTES:
    return findings.warning(
      'memory',
      f'{detail}; a run needs about 3',
      'end other programs or raise the container limit',
    )
  return findings.ok('memory', detail)


def check_orphans(
  proc: pathlib.Path = pathlib.Path('/proc'),
) -> findings.Finding:
  """Looks for TFF workers whose program has gone (parent is process 1)."""
  orphans = []
  for directory in proc.glob('[0-9]*'):
    command = _read(directory / 'cmdline').split('\0')
    if pathlib.Path(command[0]).name != findings.WORKER:
      continue
    # Fields after the name, which is in brackets and may hold blanks.
    fields = _read(directory / 'stat').rpartition(')')[2].split()
    if len(fields) > 1 and fields[1] == '1':
      orphans.append(int(directory.name))
  if orphans:
    pids = ' '.join(map(str, sorted(orphans)))
    return findings.warning(
      'orphan workers',
      f'{len(orphans)} TFF workers run without their program',
      f'kill {pids}',
    )
  return findings.ok('orphan workers', 'none')


def check_isolation(
  *, can_seal: Callable[[], bool] = children.can_seal
) -> findings.Finding:
  """Checks that TFF workers get a network of their own."""
  if can_seal():
    return findings.ok('worker isolation', 'workers have their own network')
  return findings.warning(
    'worker isolation',
    "a TFF worker's port is open on all interfaces while it runs: this kernel or"
    ' container forbids unprivileged user namespaces',
    'sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), docker run'
    ' --security-opt seccomp=unconfined, or a firewall',
  )


def check_accelerator(
  device: pathlib.Path = pathlib.Path('/dev/nvidia0'),
  *,
  installed: Callable[[str], object] = importlib.util.find_spec,
) -> findings.Finding:
  """Checks that a GPU, where there is one, has its libraries."""
  if not device.exists():
    return findings.ok('accelerator', 'none; runs on the CPU')
  if installed('nvidia') is None:
    return findings.warning(
      'accelerator',
      'a GPU without its CUDA libraries; runs on the CPU',
      f'{findings.SYNC} --extra gpu',
    )
  return findings.ok('accelerator', 'a GPU and its CUDA libraries')


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
