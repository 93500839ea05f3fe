"""What was found about a machine: good, or with the command that repairs it."""

import dataclasses
from collections.abc import Iterable

OK, WARNING, FAULT = 'ok', 'warning', 'FAULT'
SYNC = 'uv sync --frozen'  # what repairs most
WORKER = 'worker_binary'  # TFF's C++ program


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


def ok(name: str, detail: str) -> Finding:
  """Returns that all is well."""
  return Finding(name, OK, detail)


def warning(name: str, detail: str, remedy: str) -> Finding:
  """Returns what runs worse than it could."""
  return Finding(name, WARNING, detail, remedy)


def fault(name: str, detail: str, remedy: str) -> Finding:
  """Returns what must be repaired."""
  return Finding(name, FAULT, detail, remedy)


def render(findings: Iterable[Finding]) -> str:
  """Returns one line a finding, and its remedy under it."""
  lines = []
  for finding in findings:
    lines.append(f'{finding.status:8}{finding.name:21}{finding.detail}')
    if finding.remedy:
      lines.append(f'{"":8}remedy: {finding.remedy}')
  return '\n'.join(lines)
