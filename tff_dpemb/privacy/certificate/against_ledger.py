"""A certificate against the ledger: no draw is missing, none is another's."""

import collections
from collections.abc import Sequence

from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import figures
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.ledger import errors
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.ledger import state as ledger_state
from tff_dpemb.privacy.planning import plan as plan_lib

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


def refuse_damaged(ledger: ledger_lib.Ledger) -> None:
  """Refuses a ledger that is not as it was written: draws may be missing.

  Raises:
    LedgerDamagedError: It names the first problem.
  """
  found = ledger.verify()
  if found:
    raise errors.LedgerDamagedError(
      'the ledger must be as it was written, or draws may be missing, got:'
      f' {found[0]} Run `dpemb ledger verify` for all {len(found)} problems and'
      ' restore the ledger from a copy; nothing was charged or certified.'
    )


def draw_problems(
  entries: Sequence[ledger_state.Entry], plan: plan_lib.PrivacyPlan
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
  certificate: document.Certificate, ledger: ledger_lib.Ledger
) -> list[str]:
  """Returns where a certificate and the ledger disagree."""
  found = [f'ledger: {problem}' for problem in ledger.verify()]
  provenance = certificate.provenance
  population = certificate.composition.population
  count = provenance.ledger_entries
  if count < 1 or ledger.digest_at(count) != provenance.ledger_digest:
    found.append(
      f'ledger: entry {count} must have the certified digest; this is another'
      ' ledger, or it was rewritten.'
    )
  found += _composition_in_ledger(certificate, ledger)
  found += figures.differs(
    'tuning.runs_in_ledger',
    certificate.tuning.runs_in_ledger,
    len(ledger.runs(population, until=count)),
  )
  entries = ledger.entries(
    population=population,
    run=certificate.run,
    release=certificate.release,
    kind='draw',
  )
  if not entries:
    found.append(
      f'ledger: it must hold draws of release {certificate.release!r} of run'
      f' {certificate.run!r} of population {population!r}, it has none.'
    )
  found += _relations_differ(certificate, entries)
  found += _artifact_in_ledger(certificate, ledger)
  found += charges_differ(certificate, entries)
  found += _budget_differs(certificate, ledger)
  mechanism = certificate.mechanism
  if isinstance(mechanism, noise.QueriesMechanism):
    return found + _queries_in_ledger(mechanism, entries)
  return found + _model_in_ledger(certificate, mechanism, entries)


def _relations_differ(
  certificate: document.Certificate, entries: Sequence[ledger_state.Entry]
) -> list[str]:
  """Checks that the draws were charged under the certified adjacency."""
  stated = certificate.adjacency.relation
  return [
    f'ledger: entry {entry.sequence} must be charged under adjacency.relation'
    f' {stated.value!r}, it is under {entry.adjacency.value!r}.'
    for entry in entries
    if entry.adjacency != stated
  ][:1]


def rounds_among(entries: Sequence[ledger_state.Entry]) -> list[str]:
  """Returns that draws are of training, whose plan binds population and delta.

  As a synthetic set's, both would be free.
  """
  return [
    f'ledger: entry {entry.sequence} is of a round of training: this is not the'
    ' certificate of a synthetic set.'
    for entry in entries
    if entry.round_number is not None
  ][:1]


def charges_differ(
  certificate: document.Certificate, entries: Sequence[ledger_state.Entry]
) -> list[str]:
  """Checks what the draws of the release were charged as."""
  if certificate.kind == 'synthetic' and (found := rounds_among(entries)):
    return found
  stated = {
    SIMULATION: certificate.simulation,
    DELTA: certificate.accounting.delta,
    POPULATION_SIZE: certificate.sampling.population,
  }
  return [
    f'ledger: entry {entry.sequence} was charged at {key} {entry.details[key]},'
    f' the certificate says {value}.'
    for entry in entries
    for key, value in stated.items()
    if key in entry.details and entry.details[key] != value
  ][:1]


def composition(
  ledger: ledger_lib.Ledger,
  population: str,
  own: document.Accounting,
  *,
  until: int,
) -> document.Composition:
  """Returns part 14: all draws of a population up to an entry of the ledger.

  At the release's own delta, so that both figures can be compared; the budget
  is at its own, and None where there is none.
  """
  spent = ledger.spent(population, own.delta, until=until).epsilon
  epsilon, delta, left = _budget(ledger, population, until=until)
  return document.Composition(
    population=population,
    # Two accountants' grids may differ: never below the release's own figure.
    epsilon=guarantee_lib.epsilon_to_json(
      max(spent, guarantee_lib.epsilon_from_json(own.epsilon))
    ),
    delta=own.delta,
    releases=tuple(ledger.releases(population, until=until)),
    budget_epsilon=epsilon,
    budget_delta=delta,
    remaining_epsilon=left,
  )


def _budget(
  ledger: ledger_lib.Ledger, population: str, *, until: int
) -> tuple[float | None, float | None, float | None]:
  """Returns the budget's epsilon and delta at an entry, and what is left."""
  epsilon = delta = left = None
  for entry in ledger.entries(population=population, kind='budget'):
    if entry.sequence <= until:
      epsilon, delta = entry.details['epsilon'], entry.details['delta']
  if epsilon is not None and delta is not None:
    spent = ledger.spent(population, delta, until=until)
    left = max(0.0, epsilon - spent.epsilon)
  return epsilon, delta, left


def _budget_differs(
  certificate: document.Certificate, ledger: ledger_lib.Ledger
) -> list[str]:
  """Checks the budget of part 14: one that was set, and what was left of it."""
  stated = certificate.composition
  epsilon, delta, left = _budget(
    ledger, stated.population, until=certificate.provenance.ledger_entries
  )
  found = figures.differs(
    'composition.budget_epsilon', stated.budget_epsilon, epsilon
  )
  found += figures.differs(
    'composition.budget_delta', stated.budget_delta, delta
  )
  remaining = stated.remaining_epsilon
  if (
    certificate.accounting.method != accounting.method()
    and remaining is not None
    and left is not None
  ):
    # Another method spends less or more of it; more may not be promised.
    left = min(left, remaining)
  slack = figures.TOLERANCE * (epsilon or 0.0)
  return found + figures.differs(
    'composition.remaining_epsilon', remaining, left, slack=slack
  )


def _artifact_in_ledger(
  certificate: document.Certificate, ledger: ledger_lib.Ledger
) -> list[str]:
  """Checks that what was released is what the certificate is about."""
  names = {
    'population': certificate.composition.population,
    'run': certificate.run,
    'release': certificate.release,
  }
  provenance = certificate.provenance
  own = {provenance.artifact_digest, *provenance.artifacts.values()} - {''}
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
  if certified and certified.isdisjoint({'', certificate.sealed_digest}):
    return [
      'ledger: the artefact must have the certificate that it was released'
      ' with, whose digest the ledger holds; this is another one.'
    ]
  return []


def _queries_in_ledger(
  mechanism: noise.QueriesMechanism, entries: Sequence[ledger_state.Entry]
) -> list[str]:
  certified: collections.Counter[str] = collections.Counter()
  try:
    in_ledger = collections.Counter(
      events.canonical_text(entry.event) for entry in entries
    )
    for draw in mechanism.draws:
      text = events.canonical_text(events.from_json(draw.event))
      certified[text] += draw.count
  except ILLEGAL:
    return []  # Reported with the accounting.
  found = _counts_differ(certified.total(), len(entries))
  if not found and certified != in_ledger:
    found.append('ledger: the draws of this release are other events.')
  return found


def _model_in_ledger(
  certificate: document.Certificate,
  mechanism: noise.ModelMechanism,
  entries: Sequence[ledger_state.Entry],
) -> list[str]:
  problems = _counts_differ(mechanism.draws, len(entries))
  again = len(entries) - len({entry.round_number for entry in entries})
  if not problems and mechanism.redrawn != again:
    problems.append(
      f'ledger: {again} of its draws are of a round drawn before, the'
      f' certificate says {mechanism.redrawn}.'
    )
  try:
    plan = accounting.plan_of(certificate, mechanism)
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
  if certified == in_ledger:
    return []
  text = f'ledger: it holds {in_ledger} draws of this release, the certificate'
  if certified > in_ledger:
    return [f'{text} {certified}.']
  return [f'{text} only {certified}: it claims less than was spent.']


def _composition_in_ledger(
  certificate: document.Certificate, ledger: ledger_lib.Ledger
) -> list[str]:
  """Checks part 14 against the entries up to the certified head."""
  stated = certificate.composition
  population, delta = stated.population, stated.delta
  until = certificate.provenance.ledger_entries
  whole, known = (
    sum(
      count
      for _, count in ledger.draw_counts(
        population=population,
        run=certificate.run,
        release=certificate.release,
        until=last,
      )
    )
    for last in (None, until)
  )
  problems = []
  mechanism = certificate.mechanism
  certified = (
    sum(draw.count for draw in mechanism.draws)
    if isinstance(mechanism, noise.QueriesMechanism)
    else mechanism.draws
  )
  if known < min(whole, certified):
    problems.append(
      f'ledger: entry {until} must lie after the draws of this release; what'
      ' was drawn before them is left out of the composition.'
    )
  charged = ledger.releases(population, until=until)
  if sorted(stated.releases) != sorted(charged):
    problems.append(
      f'composition.releases must be {sorted(charged)}, as in the ledger up to'
      f' entry {until}, got {list(stated.releases)}.'
    )
  if not 0 < delta < 1:
    return problems  # Reported with the accounting.
  return problems + figures.too_small(
    'composition.epsilon',
    stated.epsilon,
    ledger.spent(population, delta, until=until).epsilon,
    f'all draws of population {population!r} up to entry {until}',
  )
