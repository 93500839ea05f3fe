"""What lies in folders of images: identities, images, and what is neither.

Reading goes on past what it cannot use: a bad file or folder is noted with its
reason, and what is passed over is counted by its kind, so that one pass tells
all of it.
"""

import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import stat
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from tff_dpemb import images as image_codec
from tff_dpemb.data import data_sets
from tff_dpemb.data import names
from tff_dpemb.data import store_format

IMAGE_SUFFIXES = (
  '.png', '.jpg', '.jpeg', '.webp', '.bmp', '.gif', '.ppm', '.tif', '.tiff',
)  # fmt: skip

# What file systems, desktops and archives leave beside images; in lower case.
_SYSTEM_NAMES = {
  name.lower(): name
  for name in (
    '__MACOSX', '.DS_Store', '.AppleDouble', '.Spotlight-V100', '.Trashes',
    'Thumbs.db', 'ehthumbs.db', 'desktop.ini', '$RECYCLE.BIN',
    'System Volume Information', '@eaDir', '#recycle', 'lost+found', '.git',
    '__pycache__', '.ipynb_checkpoints',
  )
}  # fmt: skip
_RESOURCE_FORK = '._'  # of macOS: `._1.png` beside `1.png` is no image

_CHUNK = 64  # identities decoded ahead: what building holds in memory
_MOST_KINDS = 12  # named in a sentence

Ignored = collections.Counter[str]  # how many entries, by kind


class BadFilesError(data_sets.DataError):
  """Files or folders of the input that cannot be used.

  Attributes:
    bad: All of them; paths are relative to the input.
  """

  def __init__(self, bad: Sequence[store_format.BadFile], *, flags: str):
    """Takes all of them, and the flags of the inputs that they lie in."""
    self.bad = tuple(bad)
    first = self.bad[0]
    more = f', and {len(bad) - 1} more' if len(bad) > 1 else ''
    super().__init__(
      f'every image of {flags} must be readable, got {first.file!r} ({first.reason})'
      f'{more}; mend or remove what is listed, or import the rest with'
      ' --skip-bad.'
    )


@dataclasses.dataclass(frozen=True)
class Identity:
  """A folder of images of one user.

  Attributes:
    name: Of the folder, in NFC.
    folder: The folder.
  """

  name: str
  folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Reading:
  """What was found in one folder.

  Attributes:
    images: uint8 [n, height, width, channels], or the n files' bytes.
    bad: What could not be read, by its path relative to the input.
    ignored: Other entries.
  """

  images: np.ndarray | list[bytes]
  bad: list[store_format.BadFile]
  ignored: Ignored


def find_identities(
  directory: str | os.PathLike[str], *, flag: str
) -> tuple[list[Identity], list[store_format.BadFile], Ignored]:
  """Returns the folders of an input, by name, and what else lies beside them.

  Args:
    directory: The input.
    flag: With which it was given, for errors.

  Raises:
    DataError: There is no such directory, or no folder in it.
  """
  directory = pathlib.Path(directory)
  if not directory.is_dir():
    found = 'a file' if directory.exists() else 'no such directory'
    raise data_sets.DataError(
      f'{flag} must be a directory with one folder an identity, got {found}'
      f' {str(directory)!r}; check the path.'
    )
  identities, bad, ignored = [], [], Ignored()
  for path in sorted(directory.iterdir()):
    kind = _system_kind(path.name)
    if kind is not None:
      ignored[kind] += 1
    elif not path.is_dir():
      is_image = path.suffix.lower() in IMAGE_SUFFIXES
      ignored['image beside the folders' if is_image else _suffix(path)] += 1
    elif path.is_symlink():
      reason = 'must be a folder, not a link: one person could be two users'
      bad.append(_bad_file(path.name, reason))
    elif not names.is_unicode(path.name):
      bad.append(_bad_file(path.name, 'must have a name in UTF-8'))
    else:
      identities.append(Identity(names.normal(path.name), path))
  if not identities:
    other = f' but {describe(ignored)}' if ignored else ''
    raise data_sets.DataError(
      f'{flag} {str(directory)!r} must hold one folder an identity'
      f' (identity/image.png), got none{other}.'
    )
  identities.sort(key=lambda item: item.name)
  return identities, bad, ignored


def image_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns what a `Reader` takes for images in a folder, by name, unread."""
  return [
    path
    for path in _entries(folder)
    if not path.is_dir() and _ignored_kind(path) is None
  ]


class Reader:
  """Reads the images of one identity; looks at every one of them."""

  def __init__(
    self,
    image_shape: tuple[int, int, int],
    *,
    max_images: int | None = None,
    encoding: Literal['raw', 'encoded'] = 'raw',
  ):
    """Sets what images become; arguments as of `folder.build_folder`."""
    self._shape = image_shape
    self._max_images = max_images
    self._encoding = encoding

  def __call__(self, identity: Identity) -> Reading:
    """Returns the images of an identity, in the order of the files' names."""
    bad, ignored = [], Ignored()
    pixels: list[np.ndarray] = []
    contents: list[bytes] = []
    try:
      entries = _entries(identity.folder)
    except OSError as error:
      bad.append(_bad_file(identity.folder.name, _reason_of(error)))
      entries = []
    for path in entries:
      if len(pixels) == self._max_images:
        break
      kind = _ignored_kind(path)
      if kind is not None:
        ignored[kind] += 1
        continue
      try:
        _check_file(path)
        content = path.read_bytes()
        pixels.append(image_codec.decode(content, self._shape))
      except (OSError, _BadFile, image_codec.ImageError) as error:
        name = f'{path.parent.name}/{path.name}'
        bad.append(_bad_file(name, _reason_of(error)))
        continue
      if self._encoding == 'encoded':
        contents.append(content)
    if not pixels and not bad:
      other = f' but {describe(ignored)}' if ignored else ''
      reason = f'must hold at least one image, got none{other}'
      bad.append(_bad_file(identity.folder.name, reason))
    if self._encoding == 'encoded':
      return Reading(contents, bad, ignored)
    images = np.stack(pixels) if pixels else np.empty((0, *self._shape), 'u1')
    return Reading(images, bad, ignored)


def read_ahead(
  read: Reader, identities: Sequence[Identity]
) -> Iterator[Reading]:
  """Yields the reading of each identity, in order, made in several threads."""
  threads = len(os.sched_getaffinity(0))
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for start in range(0, len(identities), _CHUNK):
      yield from pool.map(read, identities[start : start + _CHUNK])


def describe(ignored: Ignored) -> str:
  """Returns kinds with their counts, as `.txt 3, __MACOSX 1`."""
  ordered = sorted(ignored.items(), key=lambda item: (-item[1], item[0]))
  parts = [f'{kind} {count}' for kind, count in ordered[:_MOST_KINDS]]
  rest = sum(count for _, count in ordered[_MOST_KINDS:])
  return ', '.join([*parts, *([f'others {rest}'] if rest else [])])


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(folder.iterdir(), key=lambda path: names.normal(path.name))


class _BadFile(Exception):
  """An entry that is no image; the message is the reason."""


def _check_file(path: pathlib.Path) -> None:
  """Refuses what is no regular file (a pipe would never end) or leads away."""
  if path.is_dir():
    raise _BadFile('must be an image, got a folder: move its images up')
  if not stat.S_ISREG(path.stat().st_mode):
    raise _BadFile('must be a regular file, got a pipe, socket or device')
  if path.is_symlink() and not path.resolve().is_relative_to(
    path.parent.resolve()
  ):
    raise _BadFile(
      'must not be a link out of its folder: one person could be two users'
    )


def _reason_of(error: Exception) -> str:
  if isinstance(error, OSError):
    return f'must be readable ({error.strerror})'
  return str(error).removesuffix('.')


def _bad_file(name: str, reason: str) -> store_format.BadFile:
  # Names may hold other bytes than UTF-8, and so may a decoder's message.
  return store_format.BadFile(
    file=os.fsencode(name).decode(errors='backslashreplace'),
    reason=' '.join(reason.split()),
  )


def _ignored_kind(path: pathlib.Path) -> str | None:
  """Returns as what an entry is ignored, or None: it must be an image."""
  kind = _system_kind(path.name)
  if kind is not None or path.suffix.lower() in IMAGE_SUFFIXES:
    return kind
  return None if path.is_dir() else _suffix(path)


def _system_kind(name: str) -> str | None:
  """Returns the kind of an entry that is no user's, or None."""
  if name.startswith(_RESOURCE_FORK):
    return f'{_RESOURCE_FORK}*'
  known = _SYSTEM_NAMES.get(name.lower())
  if known is None and name.startswith('.'):
    return 'hidden'
  return known


def _suffix(path: pathlib.Path) -> str:
  """Returns the kind of a file that is not read: its suffix."""
  suffix = path.suffix.lower()
  if not suffix:
    return 'without suffix'
  return suffix if suffix.isprintable() else ascii(suffix)
