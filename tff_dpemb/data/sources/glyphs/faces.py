"""The faces that draw the glyphs: which, under which licence, and where.

`faces.tsv` lists, for each character set, faces that were looked at one
by one and found complete and distinct. They are found by file name, so that
any distribution's copy of a font serves.
"""

import csv
import dataclasses
import importlib.resources
import os
import pathlib
import subprocess
from collections.abc import Iterable, Sequence

_TABLE = 'faces.tsv'
_FONT_SUFFIXES = ('.ttf', '.otf', '.ttc', '.otc')


class FaceError(RuntimeError):
  """Fonts that are missing or cannot be read."""


@dataclasses.dataclass(frozen=True)
class Face:
  """One face of one font file.

  Attributes:
    character_set: 'kanji', 'hangul' or 'unified': what it draws completely.
    package: Debian package that holds the file.
    file: Path of the file inside that package.
    index: Face number in a font collection, else 0.
    name: Name for people.
    bundled: Whether its licence (OFL, Apache-2.0, IPA, MIT-like or BSD) and
      its looks let it into the bundled data.
    licence: Licence of the font.
    copyright: Copyright line of the font.
  """

  character_set: str
  package: str
  file: str
  index: int
  name: str
  bundled: bool
  licence: str
  copyright: str


@dataclasses.dataclass(frozen=True)
class InstalledFace:
  """A face and the font file that was found for it."""

  face: Face
  path: str


def known_faces(character_set: str | None = None) -> list[Face]:
  """Returns the faces of `faces.tsv`, of one character set or of all."""
  table = importlib.resources.files(__package__).joinpath(_TABLE)
  rows = csv.DictReader(
    table.read_text(encoding='utf-8').splitlines(), delimiter='\t'
  )
  faces = [
    Face(
      character_set=row['set'],
      package=row['package'],
      file=row['file'],
      index=int(row['index']),
      name=row['face'],
      bundled=row['bundled'] == 'yes',
      licence=row['licence'],
      copyright=row['copyright'],
    )
    for row in rows
  ]
  if character_set is None:
    return faces
  return [face for face in faces if face.character_set == character_set]


def installed_faces(
  faces: Iterable[Face],
  *,
  directories: Sequence[str | os.PathLike[str]] = (),
) -> list[InstalledFace]:
  """Returns those of `faces` whose font file is on this host.

  Args:
    faces: The faces to look for.
    directories: Where to look, recursively; empty: the host's fonts, as
      fontconfig lists them, or the usual directories without fontconfig.

  Raises:
    FaceError: A directory does not exist.
  """
  if directories:
    files = _files_under(directories)
  else:
    files = _host_files()
  by_name: dict[str, str] = {}
  for file in sorted(files):
    by_name.setdefault(os.path.basename(file).lower(), file)
  found = []
  for face in faces:
    path = by_name.get(os.path.basename(face.file).lower())
    if path is not None:
      found.append(InstalledFace(face, path))
  return found


def require_faces(
  character_set: str,
  minimum: int,
  *,
  directories: Sequence[str | os.PathLike[str]] = (),
  bundled_only: bool = False,
) -> list[InstalledFace]:
  """Returns the installed faces of a set, at least `minimum` of them.

  Raises:
    FaceError: There are fewer; the message names packages to install.
  """
  wanted = [
    face
    for face in known_faces(character_set)
    if face.bundled or not bundled_only
  ]
  found = installed_faces(wanted, directories=directories)
  if len(found) >= minimum:
    return found
  if len(wanted) < minimum:
    raise FaceError(
      f'images must be at most {len(wanted)} for the {character_set} set (one'
      f' face an image), got {minimum}.'
    )
  have = {item.face for item in found}
  packages = sorted({face.package for face in wanted if face not in have})
  raise FaceError(
    f'{minimum} {character_set} faces are needed, found {len(found)}; install'
    f' fonts (on Debian: apt install {" ".join(packages)}), name their'
    ' directory with --fonts, or use --bundled.'
  )


def _files_under(
  directories: Sequence[str | os.PathLike[str]],
) -> list[str]:
  files = []
  for directory in directories:
    if not os.path.isdir(directory):
      raise FaceError(
        f'--fonts must be a directory, got {os.fspath(directory)!r}.'
      )
    for root, _, names in os.walk(directory):
      files += [
        os.path.join(root, name)
        for name in names
        if name.lower().endswith(_FONT_SUFFIXES)
      ]
  return files


def _host_files() -> list[str]:
  try:
    listing = subprocess.run(
      ['fc-list', '--format', '%{file}\n'],
      check=True,
      capture_output=True,
      text=True,
      timeout=60,
    ).stdout
    files = [line for line in listing.splitlines() if line]
  except (OSError, subprocess.SubprocessError):
    files = []
  if files:
    return files
  usual = (
    pathlib.Path('/usr/share/fonts'),
    pathlib.Path('/usr/local/share/fonts'),
    pathlib.Path.home() / '.local/share/fonts',
    pathlib.Path.home() / '.fonts',
  )
  return _files_under([path for path in usual if path.is_dir()])
