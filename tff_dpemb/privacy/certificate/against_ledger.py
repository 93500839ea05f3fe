"""A certificate against the ledger: no draw is missing, none is another's."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.planning import plan as plan_lib

TOLERANCE = 1e-6  # Relative; the accounting is deterministic.

# What accounting raises for numbers and events that cannot be.
ILLEGAL = (
  guarantee_lib.PrivacyError,
  ArithmeticError,
  KeyError,
  RecursionError,
  TypeError,
  ValueError,
)

# In the details of a release: the digest of its certificate, which covers all
# that is stated.
CERTIFICATE = 'certificate_digest'

# In the details of draws: what they were charged as. A synthetic set's have
# what epsilon is stated for, a model's have that in its plan.
SIMULATION = 'simulation'
DELTA = 'delta'
POPULATION_SIZE = 'population_size'

_BUDGET_FACTS = ('budget_epsilon', 'budget_delta', 'remaining_epsilon')


def refuse_damaged(ledger: ledger_lib.Ledger) -> None:
  """Refuses a ledger that is not as it was written: draws may be missing.

  Raises:
    LedgerDamagedError: It names the first problem.
  """
  found = ledger.verify()
  if found:
    raise ledger_lib.LedgerDamagedError(
      'the ledger must be as it was written, or draws may be missing, got:'
      f' {found[0]} Run `dpemb ledger verify` for all {len(found)} problems and'
      ' restore the ledger from a copy; nothing was charged or certified.'
    )


def draw_problems(
  entries: Sequence[ledger_lib.Entry], plan: plan_lib.PrivacyPlan
) -> list[str]:
  """Returns which draws are not what a plan charges, one sentence each.

  Each round's attempts must count up from 1, and each entry's event be
  `plan.charge_event(round, attempt)`: then the entries together are what
  `plan.event` of those rounds and replays says.

  Args:
    entries: All draws of one release, oldest first.
    plan: Of the release.
  """
  problems = []
  attempts: dict[int, int] = {}
  for entry in entries:
    name = f'entry {entry.sequence}'
    number = entry.round_number
    if number is None or not 0 <= number < plan.rounds:
      problems.append(
        f'{name} must be of a round in [0, {plan.rounds}), got {number}.'
      )
      continue
    attempts[number] = attempts.get(number, 0) + 1
    if entry.attempt != attempts[number]:
      problems.append(
        f'{name} must be attempt {attempts[number]} of round {number}, got'
        f' {entry.attempt}.'
      )
    elif events.canonical_text(entry.event) != events.canonical_text(
      plan.charge_event(number, entry.attempt)
    ):
      problems.append(
        f"{name} must be charged the plan's event of round {number}, attempt"
        f' {entry.attempt}; it is another event.'
      )
    if entry.plan_digest not in ('', plan.digest()):
      problems.append(f'{name} must be of this plan, got another digest.')
  if plan.is_charged_at_start and entries and 0 not in attempts:
    problems.append('round 0 must be there: it pays for all rounds.')
  return problems


def problems(
  content: Mapping[str, Any], ledger: ledger_lib.Ledger
) -> list[str]:
  """Returns where a certificate and the ledger disagree."""
  found = [f'ledger: {problem}' for problem in ledger.verify()]
  provenance = content['provenance']
  count = provenance['ledger_entries']
  if count < 1 or ledger.digest_at(count) != provenance['ledger_digest']:
    found.append(
      f'ledger: entry {count} must have the certified digest; this is another'
      ' ledger, or it was rewritten.'
    )
  found += _composition_in_ledger(content, ledger)
  runs = len(ledger.runs(content['composition']['population'], until=count))
  if content['tuning']['runs_in_ledger'] != runs:
    found.append(
      f'tuning.runs_in_ledger must be {runs}, got'
      f' {content["tuning"]["runs_in_ledger"]}.'
    )
  entries = ledger.entries(
    population=content['composition']['population'],
    run=content['run'],
    release=content['release'],
    kind='draw',
  )
  if not entries:
    found.append(
      f'ledger: it must hold draws of release {content["release"]!r} of run'
      f' {content["run"]!r} of population'
      f' {content["composition"]["population"]!r}, it has none.'
    )
  mechanism = content['mechanism']
  found += _relations_differ(content, entries)
  found += _artifact_in_ledger(content, ledger)
  found += charges_differ(content, entries)
  found += _budget_differs(content, ledger)
  if content['kind'] == 'model':
    return found + _model_in_ledger(content, entries)
  certified: dict[str, int] = {}
  in_ledger: dict[str, int] = {}
  try:
    for entry in entries:
      text = events.canonical_text(entry.event)
      in_ledger[text] = in_ledger.get(text, 0) + 1
    for draw in mechanism['draws']:
      text = events.canonical_text(events.from_json(draw['event']))
      certified[text] = certified.get(text, 0) + draw['count']
  except ILLEGAL:
    return found  # Reported with the accounting.
  found += _counts_differ(sum(certified.values()), len(entries))
  if sum(certified.values()) == len(entries) and certified != in_ledger:
    found.append('ledger: the draws of this release are other events.')
  return found


def _relations_differ(content, entries) -> list[str]:
  """Checks that the draws were charged under the certified adjacency."""
  stated = content['adjacency']['relation']
  return [
    f'ledger: entry {entry.sequence} must be charged under adjacency.relation'
    f' {stated!r}, it is under {entry.adjacency.value!r}.'
    for entry in entries
    if entry.adjacency.value != stated
  ][:1]


def charges_differ(
  content: Mapping[str, Any], entries: Sequence[ledger_lib.Entry]
) -> list[str]:
  """Checks what the draws of the release were charged as."""
  if content['kind'] == 'synthetic':
    of_rounds = [e.sequence for e in entries if e.round_number is not None]
    if of_rounds:
      return [
        f'ledger: entry {of_rounds[0]} is of a round of training: this is not'
        ' the certificate of a synthetic set.'
      ]
  stated = {
    SIMULATION: content['simulation'],
    DELTA: content['accounting']['delta'],
    POPULATION_SIZE: content['sampling']['population'],
  }
  return [
    f'ledger: entry {entry.sequence} was charged at {key} {entry.details[key]},'
    f' the certificate says {value}.'
    for entry in entries
    for key, value in stated.items()
    if key in entry.details and entry.details[key] != value
  ][:1]


def budget_facts(
  ledger: ledger_lib.Ledger, population: str, *, until: int
) -> dict[str, float | None]:
  """Returns a population's budget at an entry of the ledger, and what is left.

  These are fields of part 14 (composition); all are None without a budget.
  """
  facts: dict[str, float | None] = dict.fromkeys(_BUDGET_FACTS)
  for entry in ledger.entries(population=population, kind='budget'):
    if entry.sequence <= until:
      facts['budget_epsilon'] = entry.details['epsilon']
      facts['budget_delta'] = entry.details['delta']
  epsilon, delta = facts['budget_epsilon'], facts['budget_delta']
  if epsilon is not None and delta is not None:
    spent = ledger.spent(population, delta, until=until)
    facts['remaining_epsilon'] = max(0.0, epsilon - spent.epsilon)
  return facts


def _budget_differs(content, ledger) -> list[str]:
  """Checks the budget of part 14: one that was set, and what was left of it."""
  composition = content['composition']
  until = content['provenance']['ledger_entries']
  facts = budget_facts(ledger, composition['population'], until=until)
  slack = TOLERANCE * (facts['budget_epsilon'] or 0.0)
  for name, known in facts.items():
    stated = composition[name]
    same = stated == known
    is_computed = name == 'remaining_epsilon'
    if is_computed and stated is not None and known is not None:
      same = math.isclose(stated, known, rel_tol=TOLERANCE, abs_tol=slack)
    if not same:
      return [
        f'composition.{name} must be what follows from the ledger up to entry'
        f' {until}, {known}, got {stated}.'
      ]
  return []


def _artifact_in_ledger(content, ledger) -> list[str]:
  """Checks that what was released is what the certificate is about."""
  names = {
    'population': content['composition']['population'],
    'run': content['run'],
    'release': content['release'],
  }
  provenance = content['provenance']
  own = {provenance['artifact_digest'], *provenance['artifacts'].values()} - {
    ''
  }
  here, elsewhere = [], []
  for entry in ledger.entries(kind='release'):
    if all(getattr(entry, name) == value for name, value in names.items()):
      here.append(entry.details)
    elif entry.details.get('artifact_digest') in own:
      elsewhere.append(entry)
  of_this = [one for one in here if one.get('artifact_digest') in own]
  if (own or here) and not of_this:
    reason = 'this is another artefact, or it was never released'
    if elsewhere:
      other = elsewhere[0]
      reason = (
        f'entry {other.sequence} says that it was released as'
        f' {other.release!r} of run {other.run!r} of population'
        f' {other.population!r}'
      )
    return [
      'ledger: provenance must name a file, or a digest of all files, that the'
      f' ledger says was released as {names["release"]!r}; {reason}.'
    ]
  certified = {one.get(CERTIFICATE, '') for one in of_this}
  if certified and certified.isdisjoint({'', content['digest']}):
    return [
      'ledger: the artefact must have the certificate that it was released'
      ' with, whose digest the ledger holds; this is another one.'
    ]
  return []


def too_small(stated: Any, least: float, reason: str) -> list[str]:
  """Checks composition.epsilon; null is no guarantee: infinite."""
  epsilon = guarantee_lib.epsilon_from_json(stated)
  if epsilon >= least or math.isclose(epsilon, least, rel_tol=TOLERANCE):
    return []
  return [
    'composition.epsilon must be at least'
    f' {guarantee_lib.epsilon_text(least)} ({reason}), got {stated}.'
  ]


def _model_in_ledger(
  content: Mapping[str, Any], entries: Sequence[ledger_lib.Entry]
) -> list[str]:
  mechanism = content['mechanism']
  problems = _counts_differ(mechanism['draws'], len(entries))
  again = len(entries) - len({entry.round_number for entry in entries})
  if not problems and mechanism['redrawn'] != again:
    problems.append(
      f'ledger: {again} of its draws are of a round drawn before, the'
      f' certificate says {mechanism["redrawn"]}.'
    )
  try:
    plan = document.plan_of(content, content['accounting']['delta'])
  except ILLEGAL:
    return problems  # Reported with the accounting.
  wrong = draw_problems(entries, plan)
  if wrong:
    problems.append(
      'ledger: the draws of this release are other events than its plan'
      f' charges: {wrong[0]}'
    )
  return problems


def _counts_differ(certified: int, in_ledger: int) -> list[str]:
  if certified < in_ledger:
    return [
      f'ledger: it holds {in_ledger} draws of this release, the certificate'
      f' only {certified}: it claims less than was spent.'
    ]
  if certified > in_ledger:
    return [
      f'ledger: it holds {in_ledger} draws of this release, the certificate'
      f' {certified}.'
    ]
  return []


def _composition_in_ledger(
  content: Mapping[str, Any], ledger: ledger_lib.Ledger
) -> list[str]:
  """Checks part 14 against the entries up to the certified head."""
  composition = content['composition']
  population, delta = composition['population'], composition['delta']
  until = content['provenance']['ledger_entries']
  whole, known = (
    sum(
      count
      for _, count in ledger.draw_counts(
        population=population,
        run=content['run'],
        release=content['release'],
        until=last,
      )
    )
    for last in (None, until)
  )
  problems = []
  if known < min(whole, _certified_draws(content)):
    problems.append(
      f'ledger: entry {until} must lie after the draws of this release; what'
      ' was drawn before them is left out of the composition.'
    )
  charged = ledger.releases(population, until=until)
  if sorted(composition['releases']) != sorted(charged):
    problems.append(
      f'composition.releases must be {sorted(charged)}, as in the ledger up to'
      f' entry {until}, got {composition["releases"]}.'
    )
  if not 0 < delta < 1:
    return problems  # Reported with the accounting.
  return problems + too_small(
    composition['epsilon'],
    ledger.spent(population, delta, until=until).epsilon,
    f'all draws of population {population!r} up to entry {until}',
  )


def _certified_draws(content: Mapping[str, Any]) -> int:
  draws = content['mechanism']['draws']
  if content['kind'] == 'model':
    return draws
  return sum(draw['count'] for draw in draws)
