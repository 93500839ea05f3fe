"""Folders of images, one folder an identity, as DigiFace is distributed.

  INPUT/<identity>/<image>

A user is an identity. DigiFace (https://github.com/microsoft/DigiFace1M) has
this layout, and any data set can be brought into it. Input that breaks a rule
is refused whole, with the file and the remedy; nothing is written then.

The vocabularies of `identity` and `category` are collected from users: that a
name is in one may reveal one user. So each store has vocabularies of its own,
with the names of its own users only, and what is published about private users
takes its classes from `synthesis.class_names`, never from here.
"""

import concurrent.futures
import contextlib
import csv
import logging
import os
import pathlib
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from tff_dpemb import config as config_lib
from tff_dpemb import images as image_codec
from tff_dpemb.artifacts import storage
from tff_dpemb.data import data_sets
from tff_dpemb.data import user_store

DataError = data_sets.DataError

IMAGE_SUFFIXES = (
  '.png', '.jpg', '.jpeg', '.webp', '.bmp', '.gif', '.ppm', '.tif', '.tiff',
)  # fmt: skip

_log = logging.getLogger(__name__)

_CHUNK = 64  # identities decoded ahead: what building holds in memory
_ONE_CATEGORY = 'all'

Progress = Callable[[int, int], None]  # (identities done, identities in all)


def build_folder(
  input_dir: str | os.PathLike[str],
  output_dir: str | os.PathLike[str],
  *,
  config: config_lib.DataConfig,
  image_shape: tuple[int, int, int],
  public_dir: str | os.PathLike[str] | None = None,
  categories: str | os.PathLike[str] | None = None,
  max_images: int | None = None,
  encoding: Literal['raw', 'encoded'] = 'raw',
  licence: str = '',
  replace: bool = False,
  progress: Progress | None = None,
  report: Callable[[str], None] = _log.warning,
) -> pathlib.Path:
  """Makes a data set of folders of images.

  Args:
    input_dir: INPUT/<identity>/<image>: private, validation and test users.
    output_dir: Directory of the data set; it appears when all is written.
    config: Held-out identities and the split seed.
    image_shape: (height, width, channels) to which images are brought.
    public_dir: Public images in the same layout; None: no public store.
    categories: CSV file with the header `identity,category`: the class of
      each identity. None: one class, `all`. Each store numbers its classes
      apart: compare them by name.
    max_images: Keep at most so many images of an identity, by file name.
    encoding: 'raw' stores pixels (fast), 'encoded' the files (small).
    licence: Terms of the images, for the manifest.
    replace: Whether a data set there may be replaced.
    progress: Called after each step.
    report: Called once with a line that counts what was ignored, if anything.

  Returns:
    `output_dir`.

  Raises:
    DataError: A directory is missing, there are fewer than two identities, an
      identity has no image, an image or the CSV file is damaged, or the
      output is mixed up with the input or is not a data set to replace.
    user_store.StoreError: The image shape is not one of a store.
    artifacts.ArtifactError: The directory exists or the disk refused.
  """
  if max_images is not None and max_images < 1:
    raise DataError(f'max_images must be > 0, got {max_images}.')
  data_sets.check_output(
    output_dir,
    replace=replace,
    inputs={
      'input': input_dir,
      'public': public_dir,
      'categories': categories,
    },
  )
  private, ignored = _identities_in(input_dir, name='input')
  if len(private) < 2:
    raise DataError(
      f'{os.fspath(input_dir)!r} must hold at least two identities (folders),'
      ' got 1; a data set of one user can neither be split nor protected.'
    )
  splits = data_sets.split_identities(
    len(private),
    validation=config.validation_identities,
    test=config.test_identities,
    seed=config.split_seed,
  )
  public: list[pathlib.Path] = []
  if public_dir is not None:
    public, more = _identities_in(public_dir, name='public')
    ignored += more
  shared = {item.name for item in private} & {item.name for item in public}
  if shared:
    raise DataError(
      f'public and input must share no identity, got {len(shared)} in both;'
      ' remove them from one.'
    )
  category_of = _categories(categories, [*private, *public])
  read = _Reader(image_shape, max_images, encoding)
  total = len(private) + len(public)
  done = 0
  with storage.atomic_directory(output_dir, replace=replace) as directory:
    for folders, parts in (
      (public, {'public': np.arange(len(public))}),
      (private, splits),
    ):
      source = folders[0].parent.name if folders else ''
      labels: dict[int, dict[str, int]] = {}
      with contextlib.ExitStack() as stack:
        writers = {}
        for split, members in parts.items():
          if not len(members):
            continue
          identities = [folders[i].name for i in members.tolist()]
          names = sorted({category_of[name] for name in identities})
          index_of = {name: i for i, name in enumerate(names)}
          for i, name in enumerate(identities):
            labels[int(members[i])] = {
              'identity': i,
              'category': index_of[category_of[name]],
            }
          writer = stack.enter_context(
            user_store.StoreWriter(
              directory / split,
              name=f'{source}-{split}',
              image_shape=image_shape,
              label_names={'identity': identities, 'category': names},
              encoding=encoding,
              source=f'folder {source}',
              licence=licence,
            )
          )
          writers.update(dict.fromkeys(members.tolist(), writer))
        for index, (images, more) in enumerate(_read_ahead(read, folders)):
          ignored += more
          writers[index].add_user(folders[index].name, images, labels[index])
          done += 1
          if progress is not None:
            progress(done, total)
    data_sets.write_manifest(
      directory,
      source='folder',
      options={
        'image_shape': list(image_shape),
        'max_images': max_images,
        'encoding': encoding,
        'validation_identities': config.validation_identities,
        'test_identities': config.test_identities,
        'split_seed': config.split_seed,
      },
    )
  if ignored:
    report(
      f'{ignored} files or folders were ignored: hidden, of another kind than'
      f' {", ".join(IMAGE_SUFFIXES)}, or beside the folders of the identities.'
    )
  return pathlib.Path(output_dir)


class _Reader:
  """Reads the images of one identity; checks every one of them."""

  def __init__(
    self,
    image_shape: tuple[int, int, int],
    max_images: int | None,
    encoding: str,
  ):
    self._shape = image_shape
    self._max_images = max_images
    self._encoding = encoding

  def __call__(
    self, folder: pathlib.Path
  ) -> tuple[np.ndarray | list[bytes], int]:
    """Returns the images, and how many entries of the folder were ignored.

    The images are uint8 [n, height, width, channels], or the n files' bytes.
    """
    files, ignored = _images_in(folder)
    pixels, contents = [], []
    for file in files[: self._max_images]:
      try:
        _check_file(file)
        content = file.read_bytes()
        pixels.append(image_codec.decode(content, self._shape))
      except OSError as error:
        raise DataError(
          f'{str(file)!r} must be readable ({error.strerror}); fix or remove'
          ' the file.'
        ) from error
      except image_codec.ImageError as error:
        raise DataError(
          f'{str(file)!r}: {error} Replace or remove the file.'
        ) from error
      contents.append(content)
    images = np.stack(pixels) if self._encoding == 'raw' else contents
    return images, ignored


def _read_ahead(
  read: _Reader, folders: Sequence[pathlib.Path]
) -> Iterator[tuple[np.ndarray | list[bytes], int]]:
  """Yields what `read` returns, in order, decoding in several threads."""
  threads = len(os.sched_getaffinity(0))
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for start in range(0, len(folders), _CHUNK):
      yield from pool.map(read, folders[start : start + _CHUNK])


def _identities_in(
  directory: str | os.PathLike[str], *, name: str
) -> tuple[list[pathlib.Path], int]:
  """Returns the folders, and how many other entries were ignored."""
  directory = pathlib.Path(directory)
  if not directory.is_dir():
    raise DataError(
      f'{name} must be a directory with one folder an identity, got'
      f' {str(directory)!r}; check the path.'
    )
  entries = sorted(directory.iterdir())
  folders = [
    path for path in entries if path.is_dir() and not path.name.startswith('.')
  ]
  if not folders:
    raise DataError(
      f'{str(directory)!r} must hold one folder an identity'
      ' (identity/image.png), got none.'
    )
  for folder in folders:
    if folder.is_symlink():
      raise DataError(
        f'{str(folder)!r} must be a folder, not a link (one person could be two'
        ' users); replace or remove the link.'
      )
    try:
      folder.name.encode()
    except UnicodeEncodeError as error:
      raise DataError(
        f'folder name {folder.name!r} must be UTF-8; rename it.'
      ) from error
  return folders, len(entries) - len(folders)


def _check_file(file: pathlib.Path) -> None:
  """Refuses what is no regular file (a pipe would never end) or leads away."""
  if not stat.S_ISREG(file.stat().st_mode):
    raise DataError(
      f'{str(file)!r} must be a regular file, got a pipe, socket or device;'
      ' replace or remove it.'
    )
  if file.is_symlink() and not file.resolve().is_relative_to(
    file.parent.resolve()
  ):
    raise DataError(
      f'{str(file)!r} must not be a link out of its folder (one person could'
      ' be two users); replace or remove the link.'
    )


def _images_in(folder: pathlib.Path) -> tuple[list[pathlib.Path], int]:
  """Returns the image files, and how many other entries were ignored."""
  files = []
  entries = sorted(folder.iterdir())
  for path in entries:
    if path.name.startswith('.'):
      continue
    if path.is_dir():
      raise DataError(
        f'{str(folder)!r} must hold images only, got the folder'
        f' {path.name!r}; move its images up or remove it.'
      )
    if path.suffix.lower() in IMAGE_SUFFIXES:
      files.append(path)
  if not files:
    raise DataError(
      f'{str(folder)!r} must hold at least one image'
      f' ({", ".join(IMAGE_SUFFIXES[:3])}, ...), got none; add images or'
      ' remove the folder.'
    )
  return files, len(entries) - len(files)


def _categories(
  path: str | os.PathLike[str] | None, folders: Sequence[pathlib.Path]
) -> Mapping[str, str]:
  """Returns the category of each identity. PRIVATE for private identities."""
  if path is None:
    return {folder.name: _ONE_CATEGORY for folder in folders}
  path = pathlib.Path(path)
  try:
    with path.open(newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file)
      if not {'identity', 'category'} <= set(reader.fieldnames or ()):
        raise DataError(
          f"{str(path)!r} must have the header 'identity,category', got"
          f' {reader.fieldnames}.'
        )
      rows = [(row['identity'], row['category']) for row in reader]
  except OSError as error:
    raise DataError(
      f'{str(path)!r} must be a readable CSV file ({error.strerror}).'
    ) from error
  except (UnicodeDecodeError, csv.Error) as error:
    raise DataError(f'{str(path)!r} must be CSV in UTF-8 ({error}).') from error
  listed: dict[str, str] = {}
  for line, (identity, category) in enumerate(rows, start=2):
    if not identity or not category:
      raise DataError(
        f'{str(path)!r} line {line} must have an identity and a category; fill'
        ' in the line or remove it.'
      )
    if listed.setdefault(identity, category) != category:
      raise DataError(
        f'{str(path)!r} line {line} must not give an identity a second'
        ' category; remove one of the lines.'
      )
  missing = [folder for folder in folders if folder.name not in listed]
  if missing:
    raise DataError(
      f'{str(path)!r} must list every identity, got none for'
      f' {str(missing[0])!r} (and {len(missing) - 1} more); add the lines.'
    )
  return listed
