"""Commands that make, show and verify data sets."""

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

# The rest is imported inside the commands: help must not wait for it.

_SIZE = re.compile(r'(\d{1,9})x(\d{1,9})(?:x([13]))?')
_HELD_OUT = ('validation_identities', 'test_identities')
_SHOWN = 'data_set.txt.j2'
_MOST_LISTED = 20  # bad files on the screen; a longer list goes into a file


@click.group(epilog='Example: dpemb data glyphs --bundled --output data/glyphs')
def data() -> None:
  """Make, show and verify data sets.

  A data set is a directory with four stores of users' images: public,
  private, validation and test. Name it in a run page as data.directory.
  """


def _split_options(function: Callable[..., Any]) -> Callable[..., Any]:
  for option in (
    click.option(
      '--replace', is_flag=True, help='Replace the data set at --output.'
    ),
    click.option(
      '--split-seed',
      type=click.IntRange(0),
      default=0,
      show_default=True,
      metavar='N',
      help='Seed of the choice of who is held out.',
    ),
    click.option(
      '--test',
      _HELD_OUT[1],
      type=click.IntRange(1),
      metavar='N',
      help='Identities held out for the test.  [default: a fifth, at most 600]',
    ),
    click.option(
      '--validation',
      _HELD_OUT[0],
      type=click.IntRange(1),
      metavar='N',
      help='Identities held out for choosing.  [default: a tenth, at most 200]',
    ),
    click.option(
      '--output',
      required=True,
      type=click.Path(path_type=pathlib.Path),
      metavar='DIR',
      help='Where the data set goes.',
    ),
  ):
    function = option(function)
  return function


@data.command(
  epilog='Example: dpemb data glyphs --set unified --output data/glyphs20k'
)
@_split_options
@click.option(
  '--bundled', is_flag=True, help='Use the bundled glyphs; needs no font.'
)
@click.option(
  '--fonts',
  multiple=True,
  type=click.Path(),
  metavar='DIR',
  help='Where fonts are; may be given often.  [default: installed fonts]',
)
@click.option(
  '--set',
  'character_set',
  type=click.Choice(['kanji', 'unified']),
  default='kanji',
  show_default=True,
  help='Private users: 6 355 kanji, or 20 902 ideographs.',
)
@click.option(
  '--identities',
  type=click.IntRange(1),
  metavar='N',
  help='How many of the set.  [default: all]',
)
@click.option(
  '--images',
  type=click.IntRange(1),
  metavar='N',
  help='Images of each identity.  [default: 12]',
)
@click.option(
  '--nuisance-seed',
  type=click.IntRange(0),
  metavar='N',
  help='Seed of the distortions.  [default: 0]',
)
@click.option(
  '--processes',
  type=click.IntRange(1),
  metavar='N',
  help='Renderers.  [default: cores]',
)
def glyphs(
  output: pathlib.Path,
  replace: bool,
  bundled: bool,
  fonts: tuple[str, ...],
  character_set: str,
  identities: int | None,
  images: int | None,
  processes: int | None,
  **options: int | None,
) -> None:
  """Render characters: private kanji, public Hangul.

  With --bundled the 3 000 kanji and 1 000 syllables of the package, else a
  larger set from fonts of this host (docs/data.md names Debian packages).
  """
  from tff_dpemb.data import data_sets
  from tff_dpemb.data.sources.glyphs import source as glyphs_source

  if identities:  # Of all, the page's defaults are what is proposed.
    proposed = data_sets.propose_held_out(identities)
    for key, value in zip(_HELD_OUT, proposed, strict=True):
      options[key] = options[key] or value
  settings = _data_config(images_per_identity=images, **options)
  if bundled:
    if fonts or identities or character_set != 'kanji':
      raise click.UsageError(
        '--bundled must stand without --fonts, --set and --identities.'
      )
    with _flags_named():
      glyphs_source.build_glyphs(output, config=settings, replace=replace)
  else:
    with _flags_named(), _progress('glyphs') as step:
      glyphs_source.render_glyphs(
        output,
        config=settings,
        character_set=character_set,
        identities=identities,
        directories=fonts,
        processes=processes,
        replace=replace,
        progress=step,
      )
  _print_data_set(output)


@data.command(
  epilog='Example: dpemb data folder --input faces --size 112x112x3'
  ' --output data/faces'
)
@_split_options
@click.option(
  '--input',
  'input_dir',
  required=True,
  type=click.Path(),
  metavar='DIR',
  help='Folder of identities: DIR/<identity>/<image>.',
)
@click.option(
  '--public',
  'public_dir',
  type=click.Path(),
  metavar='DIR',
  help='Public images in the same layout, to pretrain on.',
)
@click.option(
  '--categories',
  type=click.Path(),
  metavar='CSV',
  help='File with the header identity,category.',
)
@click.option(
  '--size',
  default='112x112x3',
  show_default=True,
  metavar='HxW[xC]',
  help='Height, width and channels (1 or 3) of the store.',
)
@click.option(
  '--images',
  'max_images',
  type=click.IntRange(1),
  metavar='N',
  help='Keep at most so many images of an identity.  [default: all]',
)
@click.option(
  '--encoded', is_flag=True, help='Store the files, not pixels: smaller.'
)
@click.option('--licence', default='', metavar='TEXT', help='Terms of use.')
@click.option(
  '--skip-bad',
  is_flag=True,
  help='Leave out bad files; list them in the store.',
)
def folder(
  input_dir: str,
  output: pathlib.Path,
  replace: bool,
  size: str,
  encoded: bool,
  skip_bad: bool,
  validation_identities: int | None,
  test_identities: int | None,
  **options: Any,
) -> None:
  """Read folders of images: one folder a user.

  The layout is DigiFace's. What cannot be read is listed with its reason; then
  nothing is written, unless --skip-bad leaves it out.
  """
  from tff_dpemb.data import data_sets
  from tff_dpemb.data import store_format
  from tff_dpemb.data.sources import folder as folder_source

  match = _SIZE.fullmatch(size)
  if match is None:
    raise click.UsageError(
      '--size must be HxW or HxWxC with 1 or 3 channels, as 112x112x3, got'
      f' {size!r}.'
    )
  notes: list[str] = []
  bad_files = output.with_name(f'{output.name}.bad-files.tsv')
  try:
    with _flags_named(), _progress('identities') as step:
      folder_source.build_folder(
        input_dir,
        output,
        image_shape=(int(match[1]), int(match[2]), int(match[3] or 3)),
        validation=validation_identities,
        test=test_identities,
        encoding='encoded' if encoded else 'raw',
        skip_bad=skip_bad,
        replace=replace,
        progress=step,
        report=notes.append,
        **options,
      )
  except folder_source.BadFilesError as error:
    if len(error.bad) > 1:  # The error itself names one.
      _print_bad(error.bad, 'bad', whole_list=bad_files)
    if len(error.bad) > _MOST_LISTED:
      _write_list(error.bad, bad_files)
    raise
  bad_files.unlink(missing_ok=True)  # Of an earlier try: names of users.
  is_proposed = validation_identities is None or test_identities is None
  _print_data_set(output, 'import.txt.j2' if is_proposed else _SHOWN)
  for note in notes:
    click.echo(f'note: {note}', err=True)
  for split, store in data_sets.open_stores(output).items():
    manifest = output / split / store_format.MANIFEST
    _print_bad(store.manifest.skipped, 'skipped', whole_list=manifest)


@data.command(epilog='Example: dpemb data show runs/quickstart/data')
@click.argument('path', type=click.Path(path_type=pathlib.Path))
def show(path: pathlib.Path) -> None:
  """Print what a data set or one store holds.

  Shapes, counts, classes, source and digest; never a user id or an image.
  """
  _print_data_set(path)


@data.command(epilog='Example: dpemb data verify runs/quickstart/data')
@click.argument('path', type=click.Path(path_type=pathlib.Path))
@click.option('--strict', is_flag=True, help='Exit 5 if splits share pictures.')
def verify(path: pathlib.Path, strict: bool) -> None:
  """Read every file of a data set or store and check it.

  Digests, and that no user is in two stores. Pictures that are in two stores,
  exactly or nearly, are counted with examples (names of users: your own); they
  make held-out figures too good. docs/data.md says what is not found.
  """
  from launch.pages import jinja
  from tff_dpemb.data import data_sets
  from tff_dpemb.data import duplicates
  from tff_dpemb.data import store_format
  from tff_dpemb.data import user_store

  if (path / store_format.MANIFEST).is_file():
    store = user_store.UserStore.open(path)
    store.verify()
    click.echo(f'{path}: whole. Users: {path.name} {store.num_users}.')
    return
  users = data_sets.verify(path)
  counts = ', '.join(f'{split} {count}' for split, count in users.items())
  click.echo(f'{path}: whole. Users: {counts}.')
  overlaps = duplicates.find_overlaps(data_sets.open_stores(path))
  text = jinja.render(
    'overlaps.txt.j2', overlaps=overlaps, bits=duplicates.MOST_DIFFERENT_BITS
  )
  click.echo(text, nl=False)
  if strict and overlaps:
    raise duplicates.OverlapError(
      f'no picture of {str(path)!r} must be in two splits (--strict), got what'
      ' is listed; remove the pictures from one, and import again.'
    )


def _data_config(**options: int | None) -> Any:
  """Returns the DataConfig of the given options; None means the default."""
  from tff_dpemb import config

  given = {key: value for key, value in options.items() if value is not None}
  page = config.from_mapping({'name': 'data', 'data': given}, source='options')
  return page.data


@contextlib.contextmanager
def _flags_named() -> Iterator[None]:
  """Lets an error of the held-out sizes name the flags."""
  from tff_dpemb.data import data_sets

  try:
    yield
  except data_sets.HeldOutError as error:
    raise error.in_flags('--validation', '--test') from error


def _print_bad(
  files: Sequence[Any], word: str, *, whole_list: pathlib.Path
) -> None:
  """Lists bad files on stderr, one a line; of many, the first."""
  from launch.pages import jinja

  text = jinja.render(
    'bad_files.txt.j2',
    files=files,
    word=word,
    most=_MOST_LISTED,
    whole_list=whole_list,
  )
  click.echo(text, nl=False, err=True)


def _write_list(files: Sequence[Any], path: pathlib.Path) -> None:
  """Writes what does not fit the screen; names of users, for the owner only."""
  from tff_dpemb.artifacts import storage

  rows = ''.join(f'{item.file!r}\t{item.reason}\n' for item in files)
  storage.atomic_write_bytes(path, rows.encode(), is_private=True)


@contextlib.contextmanager
def _progress(unit: str) -> Iterator[Callable[[int, int], None]]:
  """Yields a function of (done, in all) that moves a bar on stderr."""
  import tqdm

  with tqdm.tqdm(unit=f' {unit}', disable=None, leave=False) as bar:

    def step(done: int, total: int) -> None:
      bar.total = total
      bar.update(done - bar.n)

    yield step


def _print_data_set(path: pathlib.Path, template: str = _SHOWN) -> None:
  from launch.pages import jinja
  from tff_dpemb.data import data_sets
  from tff_dpemb.data import store_format
  from tff_dpemb.data import user_store

  if (path / store_format.MANIFEST).is_file():
    stores = {path.name: user_store.UserStore.open(path)}
  else:
    stores = data_sets.open_stores(path)
  users = {
    split: store.num_users
    for split, store in stores.items()
    if split != 'public'
  }
  click.echo(
    jinja.render(template, path=path, stores=stores, users=users), nl=False
  )
