"""`dpemb init`: a commented page for own images."""

import pathlib
import shlex

import click

# The rest is imported inside the command: help must not wait for it.


@click.command()
@click.argument('directory', type=click.Path(path_type=pathlib.Path))
@click.option(
  '--images',
  type=click.Path(path_type=pathlib.Path),
  metavar='DIR',
  help='Images, one folder an identity.  [default: DIRECTORY/images]',
)
@click.option(
  '--public',
  type=click.Path(path_type=pathlib.Path),
  metavar='DIR',
  help='Public images in the same layout, to pretrain on.',
)
def init(
  directory: pathlib.Path,
  images: pathlib.Path | None,
  public: pathlib.Path | None,
) -> None:
  """Write a commented page for own images: DIRECTORY/page.toml.

  Says what was found, proposes settings and why, and prints the commands that
  come next. Reads headers only; a page that is there is never overwritten.

  \b
  Example:
    dpemb init faces --images photos
  """
  from launch.pages import own_page

  images = directory / 'images' if images is None else images
  page = directory / own_page.PAGE
  found = own_page.survey(images)
  if public is not None:
    own_page.survey(public)
  name = directory.resolve().name
  proposal = own_page.propose(found, name=name, pretrains=public is not None)
  own_page.write(page, found, proposal, images=images, public=public)
  click.echo(
    f'found: {found.identities} identities with {found.images} images,'
    f' {found.fewest} to {found.most} each, about {found.height} x'
    f' {found.width} pixels, {"in colour" if found.is_colour else "grey"}'
  )
  kind = (
    'a simulation, which protects nobody: the page says why'
    if proposal.simulation
    else f'a budget of epsilon {proposal.budget_epsilon:g}'
  )
  click.echo(f'wrote {page}: {kind}')
  output = directory / own_page.DATA
  command = own_page.import_command(
    proposal, images=images, output=output, public=public
  )
  shown = shlex.quote(str(page))
  click.echo(f'next:\n  {command}\n  dpemb quickstart {shown}')
