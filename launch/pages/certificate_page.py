"""A certificate as a page for people: Markdown, or HTML that stands alone."""

from collections.abc import Collection, Mapping
from typing import Any

from launch.pages import jinja
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import claims
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import statement

_TITLES = (
  ('setting', '1 Setting and trust'),
  ('unit', '2 Unit'),
  ('adjacency', '3 Adjacency and sensitivity'),
  ('released', '4 What is released'),
  ('data_accesses', '5 Data accesses'),
  ('mechanism', '6 Mechanism'),
  ('sampling', '7 Sampling'),
  ('accounting', '8 Accounting of this release alone'),
  ('tuning', '9 Tuning'),
  ('public_data', '10 Public data'),
  ('randomness', '11 Randomness and numerics'),
  ('audit', '12 Empirical audit'),
  ('utility', '13 Utility and coverage'),
  ('composition', '14 Composition of all releases'),
  ('provenance', '15 Provenance'),
)


# What only the method that made the figures can say again.
_OF_THE_METHOD = ('accountant', 'discretisation', 'notes', 'warnings')
_UNCHECKED = ' (stated by another method of accounting, not checked)'


def to_markdown(certificate: document.Certificate) -> str:
  """Returns the certificate as Markdown, the plain statement first.

  The statement is made anew of the facts, in today's words.

  Raises:
    PlanError: Mechanism and sampling are of no legal plan.
  """
  return _render('certificate.md.j2', certificate)


def to_html(certificate: document.Certificate) -> str:
  """Returns one HTML page without outside files; else as `to_markdown`."""
  return _render('certificate.html.j2', certificate)


def _render(template: str, certificate: document.Certificate) -> str:
  content = certificate.to_json()
  of_this_method = certificate.accounting.method == accounting.method()
  unchecked = () if of_this_method else _OF_THE_METHOD
  return jinja.render(
    template,
    certificate=content,
    statement=statement.of(certificate),
    parts=[
      (
        title,
        _rows(content[key], unchecked=unchecked if key == 'accounting' else ()),
      )
      for key, title in _TITLES
    ],
    signed=_signed(certificate.signature),
  )


def _signed(signature: document.Signature | None) -> str:
  if signature is None:
    return 'not signed'
  return f'signed by {signature.algorithm} key {signature.public_key}'


def _rows(
  part: Any, *, unchecked: Collection[str] = ()
) -> list[tuple[str, str]]:
  if isinstance(part, list):
    return [
      (claims.TEXTS.get(item['what'], item['what']), item['status'])
      for item in part
    ]
  return [
    (
      name.replace('_', ' '),
      _text(name, value) + (_UNCHECKED if name in unchecked else ''),
    )
    for name, value in part.items()
  ]


def _text(name: str, value: Any) -> str:
  if value is None:
    is_total = name in ('epsilon', 'unamplified_epsilon')
    return guarantee.NO_GUARANTEE if is_total else 'not stated'
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if isinstance(value, float):
    return f'{value:.6g}'
  if isinstance(value, list):
    return '; '.join(_text('', item) for item in value) or 'none'
  if isinstance(value, Mapping):
    inner = (f'{key} {_text(key, item)}' for key, item in value.items())
    return ', '.join(inner) or 'none'
  return claims.TEXTS.get(value, str(value)) or 'not stated'
