"""Commands that make, show and verify data sets."""

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

# The rest is imported inside the commands: help must not wait for it.

_SIZE = re.compile(r'(\d{1,9})x(\d{1,9})(?:x([13]))?')


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
      type=int,
      metavar='N',
      help='Seed of the choice of held-out identities.',
    ),
    click.option(
      '--test',
      'test_identities',
      type=click.IntRange(1),
      metavar='N',
      help='Identities held out for the test.',
    ),
    click.option(
      '--validation',
      'validation_identities',
      type=click.IntRange(1),
      metavar='N',
      help='Identities held out for choosing.',
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
  '--identities', type=int, metavar='N', help='How many of the set.'
)
@click.option(
  '--images', type=int, metavar='N', help='Images of each identity.'
)
@click.option(
  '--nuisance-seed', type=int, metavar='N', help='Seed of the distortions.'
)
@click.option(
  '--processes', type=int, metavar='N', help='Renderers.  [default: cores]'
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
  from tff_dpemb.data.sources.glyphs import source as glyphs_source

  settings = _data_config(images_per_identity=images, **options)
  if bundled:
    if fonts or identities or character_set != 'kanji':
      raise click.UsageError(
        '--bundled must stand without --fonts, --set and --identities.'
      )
    glyphs_source.build_glyphs(output, config=settings, replace=replace)
  else:
    with _progress('glyphs') as step:
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
  type=int,
  metavar='N',
  help='Keep at most so many images of an identity.',
)
@click.option(
  '--encoded', is_flag=True, help='Store the files, not pixels: smaller.'
)
@click.option('--licence', default='', metavar='TEXT', help='Terms of use.')
def folder(
  input_dir: str,
  output: pathlib.Path,
  replace: bool,
  size: str,
  encoded: bool,
  **options: Any,
) -> None:
  """Read folders of images: one folder a user.

  The layout is DigiFace's. A corrupt image, an empty folder or a missing
  directory stops the command; then nothing is written.
  """
  from tff_dpemb.data.sources import folder as folder_source

  match = _SIZE.fullmatch(size)
  if match is None:
    raise click.UsageError(
      '--size must be HxW or HxWxC with 1 or 3 channels, as 112x112x3, got'
      f' {size!r}.'
    )
  config_options = {
    key: options.pop(key)
    for key in ('validation_identities', 'test_identities', 'split_seed')
  }
  notes: list[str] = []
  with _progress('identities') as step:
    folder_source.build_folder(
      input_dir,
      output,
      config=_data_config(**config_options),
      image_shape=(int(match[1]), int(match[2]), int(match[3] or 3)),
      encoding='encoded' if encoded else 'raw',
      replace=replace,
      progress=step,
      report=notes.append,
      **options,
    )
  _print_data_set(output)
  for note in notes:
    click.echo(f'note: {note}', err=True)


@data.command(epilog='Example: dpemb data show runs/quickstart/data')
@click.argument('path', type=click.Path(path_type=pathlib.Path))
def show(path: pathlib.Path) -> None:
  """Print what a data set or one store holds.

  Shapes, counts, classes, source and digest; never a user id or an image.
  """
  _print_data_set(path)


@data.command(epilog='Example: dpemb data verify runs/quickstart/data')
@click.argument('path', type=click.Path(path_type=pathlib.Path))
def verify(path: pathlib.Path) -> None:
  """Read every file of a data set or store and check it.

  Digests, and that no user of a held-out store is in another one.
  """
  from tff_dpemb.data import data_sets
  from tff_dpemb.data import store_format
  from tff_dpemb.data import user_store

  if (path / store_format.MANIFEST).is_file():
    store = user_store.UserStore.open(path)
    store.verify()
    users = {path.name: store.num_users}
  else:
    users = data_sets.verify(path)
  counts = ', '.join(f'{split} {count}' for split, count in users.items())
  click.echo(f'{path}: whole. Users: {counts}.')


def _data_config(**options: int | None) -> Any:
  """Returns the DataConfig of the given options; None means the default."""
  from tff_dpemb import config

  given = {key: value for key, value in options.items() if value is not None}
  page = config.from_mapping({'name': 'data', 'data': given}, source='options')
  return page.data


@contextlib.contextmanager
def _progress(unit: str) -> Iterator[Callable[[int, int], None]]:
  """Yields a function of (done, in all) that moves a bar on stderr."""
  import tqdm

  with tqdm.tqdm(unit=f' {unit}', disable=None, leave=False) as bar:

    def step(done: int, total: int) -> None:
      bar.total = total
      bar.update(done - bar.n)

    yield step


def _print_data_set(path: pathlib.Path) -> None:
  from launch.pages import jinja
  from tff_dpemb.data import data_sets
  from tff_dpemb.data import store_format
  from tff_dpemb.data import user_store

  if (path / store_format.MANIFEST).is_file():
    stores = {path.name: user_store.UserStore.open(path)}
  else:
    stores = data_sets.open_stores(path)
  click.echo(
    jinja.render('data_set.txt.j2', path=path, stores=stores), nl=False
  )
