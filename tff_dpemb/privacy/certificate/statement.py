"""Part 16: what the facts of a certificate mean, in plain words.

A function of the other parts alone. The wording has a version: a certificate
keeps the words that it was made with, and those of another version are neither
compared nor shown; `of` says the same facts in today's words.
"""

import math
from collections.abc import Sequence

from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import noise

WORDING = 1  # Raise it with every change of a sentence below.
_TRUST = (
  'Central differential privacy: whoever runs the job holds the raw images and'
  ' is trusted; whoever gets the released artefact is not.'
)


def of(certificate: document.Certificate) -> document.Statement:
  """Returns what parts 3, 7, 8, 14 and 15 mean; its own words are not read.

  Raises:
    PlanError: Mechanism and sampling are of no legal plan.
  """
  own = _epsilon(certificate.accounting.epsilon)
  together = _epsilon(certificate.composition.epsilon)
  is_model = certificate.kind == 'model'
  return document.Statement(
    wording=WORDING,
    text=_text(certificate, own, together),
    trust=_TRUST,
    # A synthetic set alone reveals also what its encoder reveals.
    strength=_strength(own if is_model else together),
    groups=_groups(certificate),
    assumptions=_assumptions(certificate),
    void_if=_void_if(is_model),
  )


def _assumptions(certificate: document.Certificate) -> tuple[str, ...]:
  mechanism = certificate.mechanism
  if isinstance(mechanism, noise.QueriesMechanism):
    return (
      'Every user takes part in every query; nothing is gained from sampling.',
    )
  return accounting.plan_of(certificate, mechanism).assumptions()


def _text(
  certificate: document.Certificate, own: float, together: float
) -> str:
  is_model = certificate.kind == 'model'
  what = 'This model' if is_model else 'This synthetic set'
  if not math.isfinite(own):
    text = f'{what} carries no guarantee: noise was missing.'
  elif is_model:
    text = (
      f'{what} was made with user-level {_figures(certificate, own)}: what it'
      ' reveals about any one user is bounded by these figures, whatever else'
      ' is known.'
    )
  else:
    text = (
      f'{what} was made with user-level {_figures(certificate, own)} in'
      ' addition, given the encoder: these figures bound only what it reveals'
      ' about any one user beyond the encoder that made its embeddings.'
    )
  others = [
    name
    for name in certificate.composition.releases
    if name != certificate.release
  ]
  if not is_model or others:
    text += ' ' + _composition_text(certificate, together, others)
  if certificate.simulation:
    text += (
      ' It is a simulation: its noise stands for that of a larger population.'
      ' The figures are those of the run as executed; do not release it as if'
      ' a larger one had been run.'
    )
  return text


def _void_if(is_model: bool) -> tuple[str, ...]:
  void_if = [
    'who took part in which round becomes known'
    if is_model
    else 'sums without noise become known',
    'anything listed as seen without protection, or not covered, is released',
    'the artefact is not the one whose hash is certified',
    'one person owns several user ids (see the figures for groups)',
    "the users' data is used under another ledger, or another population's"
    ' name: what was drawn there is not covered',
  ]
  if not is_model:
    void_if.append(
      'the encoder learned from these users and its draws are not among those'
      ' composed: then nothing bounds the encoder and this set together'
    )
  return tuple(void_if)


def _groups(certificate: document.Certificate) -> str:
  """Returns what holds for users who come or go together."""
  parts = [
    f'{item.users}: epsilon'
    f' {guarantee_lib.epsilon_text(_epsilon(item.epsilon))}'
    for item in certificate.accounting.groups
  ]
  return (
    'A group of users, for example the accounts of one person, is protected'
    f' less than one of them. At delta {certificate.accounting.delta:.3g}, for'
    f' groups of {"; ".join(parts)}.'
  )


def _figures(certificate: document.Certificate, epsilon: float) -> str:
  return (
    f'({epsilon:.4g}, {certificate.accounting.delta:.3g})-differential'
    f' privacy under {certificate.adjacency.relation.value}'
  )


def _composition_text(
  certificate: document.Certificate, epsilon: float, others: Sequence[str]
) -> str:
  upto = (
    f'population {certificate.composition.population!r} in the ledger up to'
    f' entry {certificate.provenance.ledger_entries}'
  )
  bound = (
    f'user-level {_figures(certificate, epsilon)}'
    if math.isfinite(epsilon)
    else guarantee_lib.NO_GUARANTEE
  )
  if not others:
    return (
      f'The ledger holds no other draw of {upto}: if the encoder learned from'
      ' these users, it is not counted and nothing bounds everything together;'
      ' if it learned from none of them, the bound on everything together is'
      f' {bound}.'
    )
  encoder = (
    'The encoder was trained on the same users, so this set alone reveals also'
    ' what the encoder reveals. '
  )
  return (
    f'{"" if certificate.kind == "model" else encoder}All draws of {upto}'
    f' together ({", ".join(certificate.composition.releases)}): what bounds'
    f' everything together is {bound}.'
  )


def _strength(epsilon: float) -> str:
  if epsilon <= 1:
    return 'strong (epsilon <= 1)'
  if epsilon <= 10:
    return 'reasonable (1 < epsilon <= 10)'
  return 'weak (epsilon > 10)' if math.isfinite(epsilon) else 'none'


def _epsilon(stated: float | None) -> float:
  return guarantee_lib.epsilon_from_json(stated)
