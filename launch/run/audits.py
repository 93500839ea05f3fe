"""The audits of a run on disk: a block for each kind of attack."""

import json
import pathlib
from typing import Any

from launch.run import directory
from tff_dpemb.artifacts import storage

SCHEMA = 'dpemb.audit/1'


def audit_path(paths: directory.RunDirectory) -> pathlib.Path:
  """Returns where the audits are kept that a certificate may carry."""
  return paths.root / 'audit' / 'audit.json'


def for_certificate(
  paths: directory.RunDirectory, what: str
) -> dict[str, Any] | None:
  """Returns the block that a certificate carries, or None if none was made.

  Args:
    paths: The run.
    what: 'training' or 'synthetic'.
  """
  path = audit_path(paths)
  return storage.read_json(path).get(what) if path.exists() else None


def write(
  path: pathlib.Path,
  paths: directory.RunDirectory,
  what: str,
  block: dict[str, Any],
) -> None:
  """Writes the block beside those of other audits of the run."""
  content = storage.read_json(path) if path.exists() else {}
  content |= {
    'schema': SCHEMA,
    'run': paths.config.name,
    'config_digest': paths.config.digest(),
    what: json.loads(json.dumps(block)),
  }
  storage.atomic_write_json(path, content)
