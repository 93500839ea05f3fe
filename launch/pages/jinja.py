"""The templates of the pages: what HTML prints is escaped unless marked safe."""

import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jinja2

_TEMPLATES = pathlib.Path(__file__).parent / 'templates'
_NO_FILTERS: Mapping[str, Callable[..., Any]] = MappingProxyType({})


def render(
  name: str,
  *,
  filters: Mapping[str, Callable[..., Any]] = _NO_FILTERS,
  **values: Any,
) -> str:
  """Returns the text of a template; a value that it misses is an error."""
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=jinja2.select_autoescape(['html.j2', 'svg.j2'], default=False),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )
  environment.filters.update(filters)
  return environment.get_template(name).render(values)
