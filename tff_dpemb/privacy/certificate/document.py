"""A certificate as a document: its digest, its file, what follows from it.

The accounting (part 8) and the plain statement (part 16) are functions of the
other parts, so building and verifying call the same code.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.accounting import profile
from tff_dpemb.privacy.planning import plan as plan_lib

GROUPS = (2, 5)  # Users of the groups that a certificate gives figures for.
OVERCHARGE_NOISE = 1e-9  # Rounding of sums of 1 / noise_multiplier^2.


class CertificateError(guarantee_lib.PrivacyError):
  """A certificate that must not be made, or cannot be read."""


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a certificate with its own digest (SHA-256) set anew.

  The digest is of all but itself and the signature, which is of the digest.
  """
  kept = {key: content[key] for key in ('signature',) if key in content}
  body = {
    key: value
    for key, value in content.items()
    if key not in ('digest', 'signature')
  }
  try:
    text = json.dumps(
      body, sort_keys=True, separators=(',', ':'), allow_nan=False
    )
  except RecursionError as error:
    raise CertificateError(
      'a certificate must not be nested too deeply.'
    ) from error
  except (TypeError, ValueError) as error:
    raise CertificateError(
      f'a certificate must hold finite JSON values only: {error}.'
    ) from error
  digest = hashlib.sha256(text.encode()).hexdigest()
  return {**body, 'digest': digest, **kept}


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns the certificate in a file; CertificateError if there is none."""
  try:
    content = storage.read_json(path)
  except storage.ArtifactError as error:
    raise CertificateError(str(error)) from error
  except RecursionError as error:
    raise CertificateError(
      f'{os.fspath(path)!r} must be a certificate, got JSON that is nested too'
      ' deeply.'
    ) from error
  if not isinstance(content, dict):
    raise CertificateError(f'{os.fspath(path)!r} must hold a JSON object.')
  return content


def write(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
  """Writes a certificate atomically as JSON."""
  storage.atomic_write_json(path, content)


def overcharge(
  draws: Sequence[Mapping[str, Any]], queries: Sequence[Mapping[str, Any]]
) -> float | None:
  """Returns how much more was charged than the queries reveal.

  In units of 1 / noise_multiplier^2, in which Gaussians add up. A crash
  between charge and draw leaves some; it may not be negative. None if a query
  states no noise multiplier, or the draws are not Gaussians.
  """
  if not queries or any('noise_multiplier' not in item for item in queries):
    return None
  asked = 0.0
  for item in queries:
    multiplier, times = float(item['noise_multiplier']), item.get('times', 1)
    if not multiplier > 0 or not times >= 1:
      raise CertificateError(
        'queries must have noise_multiplier > 0 and times >= 1, got'
        f' {multiplier} and {times}.'
      )
    asked += times / multiplier**2
  charged = events.gaussian_multiplier(
    dp_event.ComposedDpEvent(
      [
        dp_event.SelfComposedDpEvent(
          events.from_json(item['event']), item['count']
        )
        for item in draws
      ]
    )
  )
  if not charged:
    return None
  difference = charged**-2 - asked
  return 0.0 if abs(difference) < OVERCHARGE_NOISE else difference


@dataclasses.dataclass(frozen=True)
class Revealed:
  """What a release reveals, as it follows from parts 3, 6 and 7.

  Attributes:
    event: All draws of the release.
    unamplified: The guarantee without gain from sampling.
    adjacency: Relation that their sensitivities refer to.
    sensitivity: By how many clip norms one user moves a round's sum.
    assumptions: What the accounting rests on.
  """

  event: dp_event.DpEvent
  unamplified: guarantee_lib.Guarantee
  adjacency: guarantee_lib.Adjacency
  sensitivity: float
  assumptions: tuple[str, ...]


def revealed(content: Mapping[str, Any], delta: float) -> Revealed:
  """Returns what mechanism and sampling of a certificate come to."""
  mechanism = content['mechanism']
  adjacency = guarantee_lib.Adjacency(content['adjacency']['relation'])
  if content['kind'] == 'model':
    plan = plan_of(content, delta)
    redrawn = mechanism['redrawn']
    # A plan that is charged at its start is paid for as a whole.
    rounds = plan.rounds
    if not plan.is_charged_at_start:
      rounds = mechanism['draws'] - redrawn
    return Revealed(
      event=plan.event(rounds, redrawn),
      unamplified=plan.unamplified_guarantee(rounds, redrawn),
      adjacency=adjacency,
      sensitivity=plan.sensitivity,
      assumptions=plan.assumptions(),
    )
  event = events.compose(
    (events.from_json(draw['event']), draw['count'])
    for draw in mechanism['draws']
  )
  return Revealed(
    event=event,
    unamplified=accountant.guarantee_of_event(
      event, delta=delta, adjacency=adjacency
    ),
    adjacency=adjacency,
    sensitivity=1.0,
    assumptions=(
      'Every user takes part in every query; nothing is gained from sampling.',
    ),
  )


def account(found: Revealed, delta: float) -> dict[str, Any]:
  """Returns part 8: what follows from what a release reveals."""
  own = accountant.guarantee_of_event(
    found.event,
    delta=delta,
    adjacency=found.adjacency,
    assumptions=found.assumptions,
  )
  unamplified = found.unamplified
  bound = profile.gdp_bound(found.event, adjacency=found.adjacency)
  return {
    'library': accountant.library_version(),
    'accountant': own.accountant,
    'epsilon': guarantee_lib.epsilon_to_json(own.epsilon),
    'delta': delta,
    'statement': own.describe(),
    'cross_check_epsilon': (
      None
      if own.cross_check is None
      else guarantee_lib.epsilon_to_json(own.cross_check)
    ),
    'discretisation': own.discretisation,
    'epsilon_at_deltas': _profile(found, (delta / 100, delta / 10, delta)),
    'profile': _profile(found, profile.PROFILE_DELTAS),
    'groups': [
      {
        'users': users,
        'delta': delta,
        'epsilon': guarantee_lib.epsilon_to_json(
          profile.group_guarantee(
            found.event, users=users, delta=delta, adjacency=found.adjacency
          ).epsilon
        ),
      }
      for users in GROUPS
    ],
    'mu_gdp': own.mu_gdp,
    'mu_gdp_bound': None if bound is None else bound.to_json(),
    'zcdp_rho': own.zcdp_rho,
    'unamplified_epsilon': guarantee_lib.epsilon_to_json(unamplified.epsilon),
    'unamplified_mu_gdp': unamplified.mu_gdp,
    'unamplified_zcdp_rho': unamplified.zcdp_rho,
    'event': events.to_json(found.event),
    'assumptions': list(own.assumptions),
    'warnings': list(own.warnings),
  }


def _profile(
  found: Revealed, deltas: Sequence[float]
) -> list[dict[str, float | None]]:
  return [
    {
      'delta': item.delta,
      'epsilon': guarantee_lib.epsilon_to_json(item.epsilon),
    }
    for item in profile.epsilons(found.event, deltas, adjacency=found.adjacency)
  ]


def plan_of(content: Mapping[str, Any], delta: float) -> plan_lib.PrivacyPlan:
  """Returns the plan that mechanism, sampling and adjacency describe."""
  mechanism, sampling = content['mechanism'], content['sampling']
  return plan_lib.PrivacyPlan.from_json(
    {
      **sampling,
      'rounds': mechanism['rounds_planned'],
      'delta': delta,
      'adjacency': content['adjacency']['relation'],
      'shares_virtual_client': content['adjacency']['shares_virtual_client'],
      'mechanism': mechanism,
    }
  )


def statement(content: Mapping[str, Any]) -> dict[str, Any]:
  """Returns part 16: what parts 3, 8, 14 and 15 mean, in plain words."""
  numbers = content['accounting']
  own = guarantee_lib.epsilon_from_json(numbers['epsilon'])
  together = guarantee_lib.epsilon_from_json(content['composition']['epsilon'])
  is_model = content['kind'] == 'model'
  what = 'This model' if is_model else 'This synthetic set'
  if not math.isfinite(own):
    text = f'{what} carries no guarantee: noise was missing.'
  elif is_model:
    text = (
      f'{what} was made with user-level {_figures(content, own)}: what it'
      ' reveals about any one user is bounded by these figures, whatever else'
      ' is known.'
    )
  else:
    text = (
      f'{what} was made with user-level {_figures(content, own)} in addition,'
      ' given the encoder: these figures bound only what it reveals about any'
      ' one user beyond the encoder that made its embeddings.'
    )
  others = _other_releases(content)
  if not is_model or others:
    text += ' ' + _composition_text(content, together, others)
  if content['simulation']:
    text += (
      ' It is a simulation: its noise stands for that of a larger population.'
      ' The figures are those of the run as executed; do not release it as if'
      ' a larger one had been run.'
    )
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
  return {
    'text': text,
    # A synthetic set alone reveals also what its encoder reveals.
    'strength': _strength(own if is_model else together),
    'groups': _groups(content),
    'void_if': void_if,
  }


def _groups(content: Mapping[str, Any]) -> str:
  """Returns what holds for users who come or go together."""
  parts = []
  for item in content['accounting']['groups']:
    epsilon = guarantee_lib.epsilon_from_json(item['epsilon'])
    parts.append(
      f'{item["users"]}: epsilon {guarantee_lib.epsilon_text(epsilon)} at delta'
      f' {item["delta"]:.3g}'
    )
  return (
    'A group of users, for example the accounts of one person, is protected'
    f' less than one of them. For groups of {"; ".join(parts)}.'
  )


def _figures(content: Mapping[str, Any], epsilon: float) -> str:
  return (
    f'({epsilon:.4g}, {content["accounting"]["delta"]:.3g})-differential'
    f' privacy under {content["adjacency"]["relation"]}'
  )


def _other_releases(content: Mapping[str, Any]) -> list[str]:
  releases = content['composition']['releases']
  return [name for name in releases if name != content['release']]


def _composition_text(
  content: Mapping[str, Any], epsilon: float, others: Sequence[str]
) -> str:
  upto = (
    f'population {content["composition"]["population"]!r} in the ledger up to'
    f' entry {content["provenance"]["ledger_entries"]}'
  )
  if not others:
    return (
      f'The ledger holds no other draw of {upto}: if the encoder learned from'
      ' these users, it is not counted and nothing bounds everything together;'
      ' if it learned from none of them, the bound on everything together is'
      f' {_bound(content, epsilon)}.'
    )
  encoder = (
    'The encoder was trained on the same users, so this set alone reveals also'
    ' what the encoder reveals. '
  )
  return (
    f'{"" if content["kind"] == "model" else encoder}All draws of {upto}'
    f' together ({", ".join(content["composition"]["releases"])}): what bounds'
    f' everything together is {_bound(content, epsilon)}.'
  )


def _bound(content: Mapping[str, Any], epsilon: float) -> str:
  if not math.isfinite(epsilon):
    return guarantee_lib.NO_GUARANTEE
  return f'user-level {_figures(content, epsilon)}'


def _strength(epsilon: float) -> str:
  if epsilon <= 1:
    return 'strong (epsilon <= 1)'
  if epsilon <= 10:
    return 'reasonable (1 < epsilon <= 10)'
  return 'weak (epsilon > 10)' if math.isfinite(epsilon) else 'none'
