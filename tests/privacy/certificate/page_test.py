"""A certificate as a page for people."""

from tests.privacy.certificate import cases
from tff_dpemb.privacy.certificate import page


def test_pages_show_the_statement_and_escape_what_they_print(book):
  content = cases.for_training(book, user_definition='<b>one & only</b>')
  html = page.to_html(content)
  assert '&lt;b&gt;one &amp; only&lt;/b&gt;' in html
  assert '<b>one' not in html
  assert 'http' not in html.replace('https://json-schema.org', '')
  for text in (html, page.to_markdown(content)):
    assert 'differential privacy' in text
    for title in ('1 Setting', '8 Accounting', '15 Provenance', 'void if'):
      assert title in text


def test_pages_show_groups_both_figures_and_audits(book):
  content = cases.for_synthesis(book, audits=[cases.audit(0.1)])
  html, markdown = page.to_html(content), page.to_markdown(content)
  assert content['statement']['groups'] in markdown
  for text in (html, markdown):
    for part in ('accounting', 'composition'):
      assert f'({content[part]["epsilon"]:.4g}, ' in text
    assert 'one-shot canaries' in text
