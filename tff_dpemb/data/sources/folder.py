"""Folders of images, one folder an identity, as DigiFace is distributed.

  INPUT/<identity>/<image>

A user is an identity. DigiFace (https://github.com/microsoft/DigiFace1M) has
this layout, and any data set can be brought into it. Input that breaks a rule
is refused whole, with every bad file and its reason, and nothing is written;
unless its owner says that the rest will do, and then the stores keep the list.

The vocabularies of `identity` and `category` are collected from users: that a
name is in one may reveal one user. So each store has vocabularies of its own,
with the names of its own users only, and what is published about private users
takes its classes from `synthesis.class_names`, never from here.
"""

import contextlib
import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from tff_dpemb.artifacts import storage
from tff_dpemb.data import data_sets
from tff_dpemb.data import names
from tff_dpemb.data import store_format
from tff_dpemb.data import user_store
from tff_dpemb.data.sources import folder_categories
from tff_dpemb.data.sources import folder_reading

DataError = data_sets.DataError
BadFilesError = folder_reading.BadFilesError

_log = logging.getLogger(__name__)

_FEWEST = 3  # identities: one each to train, to choose and to test on

Progress = Callable[[int, int], None]  # (identities done, identities in all)


def build_folder(
  input_dir: str | os.PathLike[str],
  output_dir: str | os.PathLike[str],
  *,
  image_shape: tuple[int, int, int],
  validation: int | None = None,
  test: int | None = None,
  split_seed: int = 0,
  public_dir: str | os.PathLike[str] | None = None,
  categories: str | os.PathLike[str] | None = None,
  max_images: int | None = None,
  encoding: Literal['raw', 'encoded'] = 'raw',
  licence: str = '',
  skip_bad: bool = False,
  replace: bool = False,
  progress: Progress | None = None,
  report: Callable[[str], None] = _log.warning,
) -> pathlib.Path:
  """Makes a data set of folders of images.

  Args:
    input_dir: INPUT/<identity>/<image>: private, validation and test users.
    output_dir: Directory of the data set; it appears when all is written.
    image_shape: (height, width, channels) to which images are brought.
    validation: Identities held out to choose on; None: as
      `data_sets.propose_held_out` says.
    test: Identities held out for the test; None: likewise.
    split_seed: Which ones; public.
    public_dir: Public images in the same layout; None: no public store.
    categories: CSV file with the header `identity,category`: the class of
      each identity. None: one class, `all`. Each store numbers its classes
      apart: compare them by name.
    max_images: Keep at most so many images of an identity, by file name.
    encoding: 'raw' stores pixels (fast), 'encoded' the files (small).
    licence: Terms of the images, for the manifest.
    skip_bad: Whether to leave out what cannot be read, and identities of whom
      nothing is left. The input is read twice then: who is left decides who
      is held out. The manifest of each store lists what its users lack; that
      of `private` also lists the identities that are left out.
    replace: Whether a data set there may be replaced.
    progress: Called after each step.
    report: Called with a line for each thing that its owner should know.

  Returns:
    `output_dir`.

  Raises:
    BadFilesError: An image is damaged, an identity has none, or a folder is no
      user's. It lists all of them; with `skip_bad` it is not raised.
    DataError: A directory is missing, there are fewer than three identities,
      two of them have one name, the CSV file is damaged, or the output is
      mixed up with the input or is not a data set to replace.
    user_store.StoreError: The image shape is not one of a store.
    artifacts.ArtifactError: The directory exists or the disk refused.
  """
  if max_images is not None and max_images < 1:
    raise DataError(f'--images must be > 0, got {max_images}.')
  data_sets.check_output(
    output_dir,
    replace=replace,
    inputs={
      '--input': input_dir,
      '--public': public_dir,
      '--categories': categories,
    },
  )
  private, bad, ignored = folder_reading.find_identities(
    input_dir, flag='--input'
  )
  public: list[folder_reading.Identity] = []
  public_bad: list[store_format.BadFile] = []
  if public_dir is not None:
    public, public_bad, more = folder_reading.find_identities(
      public_dir, flag='--public'
    )
    ignored += more
  _check_names(private, public, report)
  category_of = folder_categories.read(
    categories, [item.name for item in (*private, *public)]
  )
  read = folder_reading.Reader(
    image_shape, max_images=max_images, encoding=encoding
  )
  steps = _Steps(progress, (1 + skip_bad) * (len(private) + len(public)))
  if skip_bad:
    private, lost = _without_lost(read, private, steps)
    bad += lost
    public, lost = _without_lost(read, public, steps)
    public_bad += lost
  validation, test = _held_out(len(private), validation, test)
  splits = data_sets.split_identities(
    len(private), validation=validation, test=test, seed=split_seed
  )
  members = {split: [private[i] for i in splits[split]] for split in splits}
  if public:
    members['public'] = public
  with storage.atomic_directory(output_dir, replace=replace) as directory:
    with contextlib.ExitStack() as stack:
      writers = {
        split: stack.enter_context(
          user_store.StoreWriter(
            directory / split,
            name=split,
            image_shape=image_shape,
            label_names=_label_names(identities, category_of),
            encoding=encoding,
            source='folders of images',
            licence=licence,
          )
        )
        for split, identities in members.items()
      }
      found: list[store_format.BadFile] = []
      if skip_bad:
        writers['private'].note_skipped(bad)
        if 'public' in writers:
          writers['public'].note_skipped(public_bad)
      else:
        found += [*bad, *public_bad]
      for split, identities in members.items():
        labels = _labels(identities, category_of)
        readings = folder_reading.read_ahead(read, identities)
        for identity, reading in zip(identities, readings, strict=True):
          ignored += reading.ignored
          if skip_bad and len(reading.images):
            writers[split].note_skipped(reading.bad)
          else:
            found += reading.bad
          if not found:  # Else what follows is only looked at.
            writers[split].add_user(
              identity.name, reading.images, labels[identity.name]
            )
          steps.next()
      if found:
        raise BadFilesError(
          sorted(found, key=lambda item: item.file),
          flags='--input and --public' if public else '--input',
        )
    data_sets.write_manifest(
      directory,
      source='folder',
      options={
        'image_shape': list(image_shape),
        'max_images': max_images,
        'encoding': encoding,
        'validation_identities': validation,
        'test_identities': test,
        'split_seed': split_seed,
      },
    )
  if ignored:
    report(
      f'{ignored.total()} files or folders were ignored:'
      f' {folder_reading.describe(ignored)}; read are'
      f' {", ".join(folder_reading.IMAGE_SUFFIXES)}.'
    )
  return pathlib.Path(output_dir)


class _Steps:
  """Counts identities for `progress`."""

  def __init__(self, progress: Progress | None, total: int):
    self._progress = progress
    self._total = total
    self._done = 0

  def next(self) -> None:
    self._done += 1
    if self._progress is not None:
      self._progress(self._done, self._total)


def _without_lost(
  read: folder_reading.Reader,
  identities: Sequence[folder_reading.Identity],
  steps: _Steps,
) -> tuple[list[folder_reading.Identity], list[store_format.BadFile]]:
  """Returns the identities with an image, and what the others have instead."""
  kept, lost = [], []
  readings = folder_reading.read_ahead(read, identities)
  for identity, reading in zip(identities, readings, strict=True):
    if len(reading.images):
      kept.append(identity)
    else:
      lost += reading.bad
    steps.next()
  return kept, lost


def _held_out(
  count: int, validation: int | None, test: int | None
) -> tuple[int, int]:
  """Returns how many identities validate and test: as asked, or proposed."""
  if count < _FEWEST:
    raise DataError(
      f'--input must hold at least {_FEWEST} identities (folders with images),'
      f' one each to train, to choose and to test on, got {count}; bring more.'
    )
  proposed = data_sets.propose_held_out(count)
  return (
    proposed[0] if validation is None else validation,
    proposed[1] if test is None else test,
  )


def _check_names(
  private: Sequence[folder_reading.Identity],
  public: Sequence[folder_reading.Identity],
  report: Callable[[str], None],
) -> None:
  """Refuses a name that is there twice; points out what only looks alike."""
  for flag, identities in (('--input', private), ('--public', public)):
    pairs = names.twins(item.folder.name for item in identities)
    if pairs:
      raise DataError(
        f'the folders of {flag} must differ in more than the Unicode form (NFC'
        f' or NFD) of a name, got {len(pairs)} twice, as {pairs[0][0]!a}'
        f' and {pairs[0][1]!a}; merge each two into one folder.'
      )
  here, there = ({item.name for item in part} for part in (private, public))
  shared = sorted(here & there)
  if shared:
    raise DataError(
      f'--public and --input must share no identity, got {len(shared)} in both,'
      f' as {shared[0]!r}; remove them from one.'
    )
  pairs = names.look_alikes(item.name for item in (*private, *public))
  if pairs:
    report(
      f'{len(pairs)} names of folders differ from others in case, width or'
      f' spaces only, as {pairs[0][1]!r} and {pairs[0][0]!r}: they are taken as'
      ' different users; if they are one, merge the folders and import again.'
    )


def _label_names(
  identities: Sequence[folder_reading.Identity], category_of: Mapping[str, str]
) -> dict[str, list[str]]:
  """Returns the classes of one store: those of its own users."""
  users = [identity.name for identity in identities]
  return {
    'identity': users,
    'category': sorted({category_of[user] for user in users}),
  }


def _labels(
  identities: Sequence[folder_reading.Identity], category_of: Mapping[str, str]
) -> dict[str, dict[str, int]]:
  """Returns the classes of each user of one store, as their positions."""
  classes = _label_names(identities, category_of)
  category_index = {name: i for i, name in enumerate(classes['category'])}
  return {
    user: {'identity': i, 'category': category_index[category_of[user]]}
    for i, user in enumerate(classes['identity'])
  }
