"""Pictures of a report: line charts as inline SVG, images as data URLs.

Charts take their colours from the page's style sheet (classes `series-0`,
`series-1`, ...), so that they follow light and dark. Every picture has a text
that says what it shows.
"""

import base64
import dataclasses
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from launch.pages import jinja

_WIDTH, _HEIGHT = 640, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 138, 14, 44
_LABEL_GAP = 15.0
_Y_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SHEET_GAP, _SHEET_GAP_VALUE = 2, 216


@dataclasses.dataclass(frozen=True)
class Series:
  """A line: its name and its (x, y) points, x ascending."""

  name: str
  points: Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Axes:
  """Names and ranges of the axes; y is a share in [0, 1]."""

  x_name: str
  y_name: str
  log_x: bool = False


def line_chart(
  series: Sequence[Series], *, axes: Axes, description: str
) -> str:
  """Returns an SVG with a line a series, each labelled at its right end.

  Returns an empty string when there is nothing to draw.
  """
  series = [_positive(s) if axes.log_x else s for s in series]
  drawn = [(i, s) for i, s in enumerate(series) if s.points]
  if not drawn:
    return ''
  xs = [x for _, s in drawn for x, _ in s.points]
  low, high = min(xs), max(xs)
  if low == high:
    low, high = (low / 2, high * 2) if axes.log_x else (low - 1, high + 1)
  plot_width = _WIDTH - _LEFT - _RIGHT
  plot_height = _HEIGHT - _TOP - _BOTTOM

  def place_x(x: float) -> float:
    if axes.log_x:
      share = math.log(x / low) / math.log(high / low)
    else:
      share = (x - low) / (high - low)
    return _LEFT + share * plot_width

  def place_y(y: float) -> float:
    return _TOP + (1 - y) * plot_height

  return jinja.render(
    'chart.svg.j2',
    description=description,
    axes=axes,
    size=(_WIDTH, _HEIGHT),
    left=_LEFT,
    right=_LEFT + plot_width,
    middle=(_LEFT + plot_width / 2, _TOP + plot_height / 2),
    grid=[(place_y(tick), f'{tick:.2f}') for tick in _Y_TICKS],
    ticks=[
      (place_x(tick), _tick_text(tick, log=axes.log_x))
      for tick in _x_ticks(low, high, log=axes.log_x)
    ],
    lines=[
      (
        index,
        item.name,
        [
          (place_x(x), place_y(y), y, _tick_text(x, log=axes.log_x))
          for x, y in item.points
        ],
      )
      for index, item in drawn
    ],
    labels=_labels(drawn, place_x, place_y),
  )


def image_url(image: np.ndarray) -> str:
  """Returns a PNG data URL of uint8 [H, W, C], C = 1 or 3."""
  buffer = io.BytesIO()
  array = image[..., 0] if image.shape[-1] == 1 else image
  Image.fromarray(np.ascontiguousarray(array)).save(
    buffer, format='PNG', optimize=True
  )
  return 'data:image/png;base64,' + base64.b64encode(buffer.getvalue()).decode()


def contact_sheet(images: np.ndarray) -> np.ndarray:
  """Returns uint8 [H', W', C]: a row for each of [rows, columns, H, W, C]."""
  rows, columns, height, width, channels = images.shape
  sheet = np.full(
    (
      rows * (height + _SHEET_GAP) - _SHEET_GAP,
      columns * (width + _SHEET_GAP) - _SHEET_GAP,
      channels,
    ),
    _SHEET_GAP_VALUE,
    np.uint8,
  )
  for row in range(rows):
    for column in range(columns):
      top, left = row * (height + _SHEET_GAP), column * (width + _SHEET_GAP)
      sheet[top : top + height, left : left + width] = images[row, column]
  return sheet


def _positive(series: Series) -> Series:
  return Series(series.name, [(x, y) for x, y in series.points if x > 0])


def _labels(drawn, place_x, place_y) -> list[tuple[int, float, float, str]]:
  """Labels the lines at their right ends, moved apart where they touch."""
  ends = sorted(
    (place_y(item.points[-1][1]), index, item) for index, item in drawn
  )
  places: list[float] = []
  for y, _, _ in ends:
    places.append(max(y, places[-1] + _LABEL_GAP) if places else y)
  overflow = max(0.0, places[-1] - (_HEIGHT - _BOTTOM))
  return [
    (index, place_x(item.points[-1][0]) + 8, place - overflow + 4, item.name)
    for place, (_, index, item) in zip(places, ends, strict=True)
  ]


def _x_ticks(low: float, high: float, *, log: bool) -> list[float]:
  if log:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    step = max(1, math.ceil((last - first + 1) / 8))
    # From the upper end, so that 1 is named.
    return [10.0**power for power in range(last, first - 1, -step)][::-1]
  span = high - low
  step = 10 ** math.floor(math.log10(span / 4))
  for factor in (1, 2, 5, 10):
    if span / (step * factor) <= 6:
      step *= factor
      break
  first = math.ceil(low / step)
  last = math.floor(high / step)
  return [tick * step for tick in range(first, last + 1)]


def _tick_text(value: float, *, log: bool) -> str:
  if not log:
    return f'{value:g}'
  power = round(math.log10(value))
  if power >= -2 or not math.isclose(value, 10.0**power, rel_tol=1e-9):
    return f'{value:.2g}'
  digits = str(-power).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))
  return f'10⁻{digits}'
