import html.parser
import re

import numpy as np
import pytest

from launch.pages import report
from launch.pages import report_schema
from tests.launch.pages import cases


def _read(content):
  return report_schema.Report.from_json(content, name='report')


def _changed(path, value):
  return _read(cases.changed_report(path, value))


@pytest.fixture
def pictures():
  rng = np.random.default_rng(0)

  def images(*shape):
    return rng.integers(0, 256, shape, dtype=np.uint8)

  return report.ReportPictures(
    sheets=[
      report.ContactSheet('Public', 'Hangul.', images(3, 4, 28, 28, 1)),
      report.ContactSheet('Test', 'Kanji.', images(2, 4, 28, 28, 3)),
    ],
    learning_curve={'recall@1': [(0, 0.2), (5, 0.5), (10, 0.6)]},
    roc={
      'this model': [(0.0, 0.1), (1e-5, 0.2), (1e-2, 0.8), (1.0, 1.0)],
      'raw pixels': [(1e-5, 0.0), (1.0, 1.0)],
    },
    gallery=[
      report.GalleryRow(
        query=images(28, 28, 1),
        neighbours=images(2, 28, 28, 1),
        same_identity=np.array([True, False]),
        cosines=np.array([0.97, 0.61]),
      )
    ],
  )


class _Page(html.parser.HTMLParser):
  """Collects the text, the images and the outline; checks nesting."""

  _VOID = ('meta', 'img', 'br')

  def __init__(self, text):
    super().__init__()
    self.open, self.images, self.headings, self.words = [], [], [], []
    self.attributes = []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.attributes += attrs
    if tag == 'img':
      self.images.append(dict(attrs))
    if re.fullmatch('h[1-6]', tag):
      self.headings.append(tag)
    if tag not in self._VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.attributes += attrs

  def handle_endtag(self, tag):
    assert self.open and self.open.pop() == tag, f'</{tag}>'

  def handle_data(self, data):
    if self.open and self.open[-1] not in ('style', 'script'):
      self.words.append(data)

  @property
  def text(self):
    return ' '.join(' '.join(self.words).split())


class TestRender:
  def test_page_is_whole_and_opens_without_a_network(self, pictures):
    text = report.to_html(_read(cases.REPORT), pictures=pictures)
    page = _Page(text)
    assert page.open == []
    assert 'http://' not in text and 'https://' not in text
    assert '<script' not in text and '<link' not in text
    for name, value in page.attributes:
      if name in ('src', 'href'):
        assert value.startswith('data:image/png;base64,')

  def test_every_picture_has_a_text(self, pictures):
    text = report.to_html(_read(cases.REPORT), pictures=pictures)
    page = _Page(text)
    assert len(page.images) == 2 + 3
    assert all(image['alt'].strip() for image in page.images)
    assert len(re.findall(r'<svg[^>]* role="img" aria-label="[^"]+', text)) == 2

  def test_outline(self, pictures):
    page = _Page(report.to_html(_read(cases.REPORT), pictures=pictures))
    assert page.headings[0] == 'h1'
    assert set(page.headings[1:]) == {'h2'}

  @pytest.mark.parametrize(
    'words',
    [
      '51.2 %',  # recall at the strictest rate
      'public pretraining alone: 13.0 %',
      'ε = 41,234',
      'the addition or removal of one user',
      "This run's own guarantee is weak.",
      'Naive wrong 2,300 256 412',
      'Un-amplified 2,300 256 ∞',
      'Larger population extrapolated 1,000,000 111,304 3.02',
      '0.490 to 0.530',
      '25,916,400 pairs',
      'Synthetic embeddings 61.0 %',
      'Nothing: chance 10.0 %',
      '200, of which 100.0 % agree',
      'versions.numpy 1.26.4',
      'demo <run>',
      '✓ 0.97',
      '✗ 0.61',
    ],
  )
  def test_figures_are_on_the_page(self, pictures, words):
    assert (
      words
      in _Page(report.to_html(_read(cases.REPORT), pictures=pictures)).text
    )

  def test_strong_guarantee_has_no_warning(self, pictures):
    text = report.to_html(_changed('privacy.epsilon', 0.9), pictures=pictures)
    assert 'guarantee is weak' not in _Page(text).text
    assert 'per user; strong' in _Page(text).text

  def test_without_pictures(self):
    page = _Page(
      report.to_html(_read(cases.REPORT), pictures=report.ReportPictures())
    )
    assert page.images == []
    assert 'The data' not in page.text
    assert 'Verification' in page.text


def test_the_summary_has_the_main_figures():
  lines = report.to_text(_read(cases.REPORT)).splitlines()
  assert lines[:4] == [
    '',
    'demo <run>: held-out identities',
    '  recall@FAR 0.001  0.512   (pretraining only 0.130, pixels 0.020)',
    '  recall@FAR 0.1    0.951   (pretraining only 0.620, pixels 0.310)',
  ]
  text = '\n'.join(lines)
  for words in (
    '  recall@1          0.780\n',
    '(user level, delta 0.0002, 31 noise draws)\n',
    '  epsilon           4.123e+04   (naive 412.3, without amplification',
    '  extrapolated to   1,000,000 users, 111,304 a round: 3.02   (not run)\n',
    'synthetic embeddings (user-level epsilon 8)\n',
    '  accuracy          0.610   (trained on real 0.740, chance 0.100)',
  ):
    assert words in text


@pytest.mark.parametrize(
  ('epsilon', 'text', 'strength'),
  [
    (None, '∞', 'weak'),
    (0.8372, '0.837', 'strong'),
    (1.0, '1', 'strong'),
    (9.994, '9.99', 'reasonable'),
    (10.01, '10', 'weak'),
    (1234.5, '1,234', 'weak'),
  ],
)
def test_epsilon_in_words(epsilon, text, strength):
  assert report.epsilon_text(epsilon) == text
  assert report.strength_of(epsilon) == strength
