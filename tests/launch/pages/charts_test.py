import base64
import io
import xml.etree.ElementTree

import numpy as np
import pytest
from PIL import Image

from launch.pages import charts

_AXES = charts.Axes('round', 'recall')
_LOG_AXES = charts.Axes('FAR', 'recall', log_x=True)


def _chart(series, axes=_AXES):
  text = charts.line_chart(
    [charts.Series(name, points) for name, points in series.items()],
    axes=axes,
    description='A "chart" & more.',
  )
  return xml.etree.ElementTree.fromstring(text)


def _points(chart):
  return [
    [tuple(map(float, pair.split(','))) for pair in line.get('points').split()]
    for line in chart.iter('polyline')
  ]


class TestLineChart:
  def test_places_points_on_the_axes(self):
    chart = _chart({'a': [(0, 0.0), (5, 0.5), (10, 1.0)]})
    (points,) = _points(chart)
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.11)
    assert y0 > y2  # SVG counts downwards
    assert chart.get('aria-label') == 'A "chart" & more.'

  def test_log_axis_is_even_by_decade_and_leaves_zero_out(self):
    chart = _chart(
      {'a': [(0.0, 0.0), (1e-4, 0.1), (1e-2, 0.5), (1.0, 1.0)]}, _LOG_AXES
    )
    ((x0, _), (x1, _), (x2, _)) = _points(chart)[0]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    ticks = [t.text for t in chart.iter('text') if t.get('class') == 'tick']
    assert ticks[-5:] == ['10⁻⁴', '10⁻³', '0.01', '0.1', '1']

  def test_labels_do_not_touch(self):
    chart = _chart({name: [(0, 0), (1, 1.0)] for name in ('a', 'b', 'c')})
    places = sorted(
      float(text.get('y'))
      for text in chart.iter('text')
      if text.get('class').startswith('label')
    )
    assert len(places) == 3
    assert min(np.diff(places)) >= 12

  def test_labels_at_the_bottom_stay_inside(self):
    chart = _chart({name: [(0, 0), (1, 0.0)] for name in ('a', 'b', 'c')})
    height = float(chart.get('viewBox').split()[3])
    places = [
      float(text.get('y'))
      for text in chart.iter('text')
      if text.get('class').startswith('label')
    ]
    assert max(places) < height - 30

  def test_one_point(self):
    assert len(_points(_chart({'a': [(3, 0.5)]}))) == 1

  def test_names_are_escaped(self):
    chart = _chart({'<b> & c': [(0, 0), (1, 1)]})
    assert any(text.text == '<b> & c' for text in chart.iter('text'))

  @pytest.mark.parametrize('series', [[], [charts.Series('a', [])]])
  def test_nothing_to_draw(self, series):
    assert charts.line_chart(series, axes=_AXES, description='') == ''


class TestImages:
  @pytest.mark.parametrize('channels', [1, 3])
  def test_data_url_holds_the_image(self, channels):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (5, 7, channels), dtype=np.uint8)
    kind, _, data = charts.image_url(image).partition(',')
    assert kind == 'data:image/png;base64'
    decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert np.array_equal(decoded.reshape(image.shape), image)

  def test_contact_sheet_keeps_every_image(self):
    images = np.arange(6, dtype=np.uint8).reshape(2, 3, 1, 1, 1)
    images = np.broadcast_to(images, (2, 3, 4, 5, 1))
    sheet = charts.contact_sheet(images)
    assert sheet.shape == (2 * 4 + 2, 3 * 5 + 2 * 2, 1)
    assert sheet[0, 0, 0] == 0
    assert sheet[0, 7, 0] == 1
    assert sheet[6, 14, 0] == 5
