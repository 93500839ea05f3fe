"""report.html: one file that opens anywhere, without a network.

Figures come from report.json; pictures are handed in beside it, because they
do not belong in a machine-readable report.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from launch.pages import charts
from launch.pages import jinja
from launch.pages import report_schema
from tff_dpemb.privacy import guarantee

# The usual words for user-level epsilon (Gboard's production launches).
_STRONG_EPSILON, _REASONABLE_EPSILON = 1.0, 10.0


@dataclasses.dataclass(frozen=True)
class ContactSheet:
  """Images of some users of a store.

  Attributes:
    title: Name of the store.
    caption: What the rows are.
    images: uint8 [users, images, H, W, C], a row a user.
  """

  title: str
  caption: str
  images: np.ndarray


@dataclasses.dataclass(frozen=True)
class GalleryRow:
  """A held-out query image and its nearest neighbours.

  Attributes:
    query: uint8 [H, W, C].
    neighbours: uint8 [k, H, W, C], the nearest first.
    same_identity: bool [k].
    cosines: float [k].
  """

  query: np.ndarray
  neighbours: np.ndarray
  same_identity: np.ndarray
  cosines: np.ndarray


@dataclasses.dataclass(frozen=True)
class ReportPictures:
  """What the page shows beside the figures; an empty part is left out.

  Attributes:
    sheets: Images of the data, a sheet a store. Public and held-out stores
      only belong in a report that leaves the private boundary.
    learning_curve: By the name of a figure, (round, value in [0, 1]) points on
      the validation store.
    roc: By the name of an embedding, (false accept rate, recall) points.
    gallery: Queries with their neighbours.
  """

  sheets: Sequence[ContactSheet] = ()
  learning_curve: Mapping[str, Sequence[tuple[float, float]]] = (
    dataclasses.field(default_factory=dict)
  )
  roc: Mapping[str, Sequence[tuple[float, float]]] = dataclasses.field(
    default_factory=dict
  )
  gallery: Sequence[GalleryRow] = ()


def to_html(report: report_schema.Report, *, pictures: ReportPictures) -> str:
  """Returns the page of a report; like it, for an operator's eyes only."""
  return _render(
    'report.html.j2',
    report,
    strength=strength_of(report.privacy.epsilon),
    facts=_flatten(report.run),
    title=str(report.run.get('name', 'run')),
    sheets=[
      (sheet, charts.contact_sheet(sheet.images))
      for sheet in pictures.sheets
      if sheet.images.size
    ],
    curve=_curve(pictures.learning_curve),
    roc=_roc(pictures.roc),
    gallery=pictures.gallery,
  )


def to_text(report: report_schema.Report) -> str:
  """Returns the main figures as some lines of text."""
  return _render('summary.txt.j2', report)


def _render(template: str, report: report_schema.Report, **values: Any) -> str:
  def bare_epsilon(value: float | None) -> str:
    return guarantee.epsilon_text(guarantee.epsilon_from_json(value))

  filters: dict[str, Callable[..., Any]] = {
    'epsilon': epsilon_text,
    'bare_epsilon': bare_epsilon,
    'adjacency': adjacency_text,
    'share': lambda value: f'{value:.3f}',
    'percent': lambda value: f'{100 * value:.1f} %',
    'count': count_text,
    'rate': lambda rate: f'{float(rate):g}',
    'image': charts.image_url,
  }
  rates = sorted(report.verification.recall_at_far, key=float)
  return jinja.render(
    template, filters=filters, report=report, rates=rates, **values
  )


def epsilon_text(epsilon: float | None) -> str:
  """Returns an epsilon for people: infinity, or 3 significant digits."""
  if epsilon is None:
    return '∞'
  if epsilon >= 100:
    return f'{epsilon:,.0f}'
  return f'{epsilon:.3g}'


def count_text(value: float) -> str:
  """Returns a count with separators; a fraction keeps one decimal."""
  return f'{value:,.0f}' if float(value).is_integer() else f'{value:,.1f}'


def adjacency_text(adjacency: str) -> str:
  """Returns how neighbouring data sets differ, in words."""
  word = adjacency.lower().replace('_', ' ').replace('-', ' ')
  if word.startswith('add'):
    return 'the addition or removal of one user'
  if word.startswith('replace'):
    return 'the replacement of one user'
  return f'one user ({word})'


def strength_of(epsilon: float | None) -> str:
  """Returns the usual word for a user-level epsilon."""
  if epsilon is None or epsilon > _REASONABLE_EPSILON:
    return 'weak'
  return 'strong' if epsilon <= _STRONG_EPSILON else 'reasonable'


def _curve(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
  ends = '; '.join(
    f'{name} goes from {points[0][1]:.2f} to {points[-1][1]:.2f} in round'
    f' {points[-1][0]:g}'
    for name, points in curves.items()
    if points
  )
  return charts.line_chart(
    [charts.Series(name, points) for name, points in curves.items()],
    axes=charts.Axes('round', 'validation recall'),
    description=f'Validation recall by round: {ends}.',
  )


def _roc(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
  return charts.line_chart(
    [charts.Series(name, points) for name, points in curves.items()],
    axes=charts.Axes('false accept rate (log scale)', 'recall', log_x=True),
    description='ROC on held-out identities, recall by false accept rate: '
    + ', '.join(curves)
    + '. The table under it gives the figures.',
  )


def _flatten(
  facts: Mapping[str, Any], prefix: str = ''
) -> list[tuple[str, str]]:
  """Returns (dotted name, text) of nested facts, in their order."""
  rows: list[tuple[str, str]] = []
  for key, value in facts.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping):
      rows += _flatten(value, f'{name}.')
    elif isinstance(value, list | tuple):
      rows.append((name, ', '.join(map(str, value))))
    else:
      rows.append((name, str(value)))
  return rows
