"""The templates of the pages: what they print is escaped unless marked safe."""

import pathlib

import jinja2


def environment() -> jinja2.Environment:
  """Returns an environment of its own, to which filters may be added."""
  return jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent / 'templates'),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
