"""Every check of a machine, in the order in which they are shown.

Reads package metadata and /proc; imports no framework unless asked (`deep`).
"""

import pathlib

from launch.doctor import findings
from launch.doctor import machine
from launch.doctor import software


def examine(*, deep: bool = False) -> list[findings.Finding]:
  """Returns every finding about this machine."""
  found = [
    software.check_python(),
    machine.check_platform(),
    *software.check_packages(software.required_versions()),
    software.check_worker(),
    machine.check_disk(pathlib.Path.cwd()),
    machine.check_cores(),
    machine.check_memory(),
    machine.check_accelerator(),
    machine.check_isolation(),
    machine.check_orphans(),
  ]
  return [*found, software.check_imports()] if deep else found
