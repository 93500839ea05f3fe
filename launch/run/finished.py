"""What is known to be finished without importing a framework, and what it made.

A step knows by its stamp whether it is done, but to ask it means to import
TensorFlow. So a command notes, when a step has ended, what the step rests on:
the page, the stores' manifests, and size and time of every file that it and
the steps before it left. While all of that is as it was, the step need not be
asked, and what it printed is printed again. Anything else is the step's to
judge.
"""

import hashlib
import json
import pathlib
from collections.abc import Iterator, Sequence

from launch.run import directory
from tff_dpemb.artifacts import storage
from tff_dpemb.data import data_sets
from tff_dpemb.data import store_format

_FILE = 'finished.json'


def said(paths: directory.RunDirectory, step: str) -> list[str] | None:
  """Returns what a step said that it made; None if it has to be asked."""
  try:
    note = storage.read_json(_place(paths)).get(step)
  except storage.ArtifactError:
    return None  # Never noted, or damaged: the step knows.
  if not isinstance(note, dict) or note.get('basis') != _basis(paths, step):
    return None
  lines = note.get('said')
  return lines if isinstance(lines, list) else None


def note(
  paths: directory.RunDirectory, step: str, lines: Sequence[str]
) -> None:
  """Notes that a step is finished as things are now, and what it said."""
  try:
    content = storage.read_json(_place(paths))
  except storage.ArtifactError:
    content = {}
  content[step] = {'basis': _basis(paths, step), 'said': list(lines)}
  storage.atomic_write_json(_place(paths), content)


def _place(paths: directory.RunDirectory) -> pathlib.Path:
  return paths.root / 'stages' / _FILE


def _folders(paths: directory.RunDirectory, step: str) -> list[pathlib.Path]:
  """Returns where a step, and what it is made from, leave their files."""
  trained = [paths.pretrained, paths.training]
  match step:
    case 'pretrain':
      return [paths.pretrained]
    case 'train':
      return trained
    case 'evaluate':
      return [*trained, paths.evaluation]
    case 'export':
      return [*trained, paths.export]
    case 'serve_check':
      return [paths.export, paths.index, paths.serving]
    case 'synthesize':
      return [paths.export, paths.synthetic, paths.synthetic_stage]
  return []


def _basis(paths: directory.RunDirectory, step: str) -> str:
  """Returns a digest of all that a finished step rests on."""
  facts: list[object] = [step, paths.config.digest()]
  for split in data_sets.SPLITS:
    manifest = paths.store(split) / store_format.MANIFEST
    if manifest.is_file():
      facts.append([split, storage.sha256_of(manifest)])
  for folder in _folders(paths, step):
    for file in _files(folder):
      state = file.lstat()
      name = str(file.relative_to(paths.root))
      facts.append([name, state.st_size, state.st_mtime_ns, state.st_ino])
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _files(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  if folder.is_dir():
    for file in sorted(folder.rglob('*')):
      if not file.is_dir():
        yield file
