"""Stamps: `stage.json` says that a stage is done, and from which inputs."""

import dataclasses
import hashlib
import pathlib
from typing import Any

from tff_dpemb.artifacts import storage

_FILE = 'stage.json'


class StageError(RuntimeError):
  """A stage whose inputs are missing: names the command that makes them."""


@dataclasses.dataclass(frozen=True)
class Stamp:
  """Where a stage leaves its stamp, and the digest of what it is made from."""

  directory: pathlib.Path
  inputs: str

  def read(self) -> dict[str, Any] | None:
    """Returns the stamp if the stage is done from these inputs, else None."""
    if not (self.directory / _FILE).exists():
      return None
    content = storage.read_json(self.directory / _FILE)
    return content if content.get('inputs') == self.inputs else None

  def write(self, content: dict[str, Any]) -> None:
    """Says that the stage is done, from these inputs, and what it found."""
    storage.atomic_write_json(
      self.directory / _FILE, {**content, 'inputs': self.inputs}
    )


def stamp_of(directory: pathlib.Path, *inputs: str) -> Stamp:
  """Returns the stamp of a stage made from pages, stores and weights."""
  joined = '\n'.join(inputs).encode()
  return Stamp(directory, hashlib.sha256(joined).hexdigest())


def read_any(directory: pathlib.Path) -> dict[str, Any] | None:
  """Returns the stamp in a directory, whatever it was made from, or None."""
  path = directory / _FILE
  return storage.read_json(path) if path.exists() else None
