"""Commands on privacy: `plan`, `ledger` and `certificate`.

Accounting libraries take seconds to import, so each command imports what it
needs when it runs. Domain errors end in `launch.cli`, which prints one line.
"""

import contextlib
import json
import math
import pathlib
import re
from typing import Any

import click

from tff_dpemb.privacy import guarantee

_DEFAULT_LEDGER = 'runs/ledger.sqlite'
_VERIFICATION_FAILED = 5


def _ledger_option(command: Any) -> Any:
  return click.option(
    '--ledger',
    'url',
    default=_DEFAULT_LEDGER,
    show_default=True,
    metavar='URL',
    help='SQLite file or SQLAlchemy URL.',
  )(command)


@click.command()
@click.option(
  '--population', type=click.IntRange(2), required=True, help='Users.'
)
@click.option(
  '--epsilon', type=float, default=4.0, show_default=True, help='Budget.'
)
@click.option('--delta', type=float, help='Default: population ** -1.1.')
@click.option(
  '--rounds',
  type=click.IntRange(1, 1_000_000),
  default=30,
  show_default=True,
  metavar='N',
)
@click.option(
  '--users-per-virtual-client',
  type=click.IntRange(1),
  default=32,
  show_default=True,
  metavar='N',
)
@click.option(
  '--cohort', 'cohorts', type=int, multiple=True, help='Users a round; repeat.'
)
@click.option(
  '--noise',
  type=click.Choice(['independent', 'tree', 'banded', 'blt']),
  multiple=True,
  default=('independent',),
  metavar='KIND',
  help='independent, tree, banded or blt; repeat.',
)
@click.option(
  '--examples-per-user',
  type=click.IntRange(1),
  default=8,
  show_default=True,
  metavar='N',
)
@click.option(
  '--runs',
  type=click.IntRange(2, 10_000),
  metavar='N',
  help='Show what choosing among N runs costs.',
)
@click.option('--json', 'as_json', is_flag=True, help='Print JSON.')
def plan(
  population: int,
  epsilon: float,
  delta: float | None,
  rounds: int,
  users_per_virtual_client: int,
  cohorts: tuple[int, ...],
  noise: tuple[str, ...],
  examples_per_user: int,
  runs: int | None,
  as_json: bool,
) -> None:
  """Shows which noise each cohort size needs for a budget.

  User level, add-or-remove-one-user. Independent noise is for Poisson samples,
  the other kinds for a schedule. The less noise of the total, the better.

  \b
  Example:
    dpemb plan --population 1000000 --epsilon 4 --noise independent --noise blt
  """
  from tff_dpemb.privacy.planning import cohort_table
  from tff_dpemb.privacy.planning import plan as plan_lib

  if delta is None:
    delta = plan_lib.default_delta(population)
  rows = [
    row
    for kind in dict.fromkeys(noise)
    for row in cohort_table.cohort_table(
      population,
      epsilon=epsilon,
      delta=delta,
      rounds=rounds,
      users_per_virtual_client=users_per_virtual_client,
      cohorts=cohorts,
      noise=kind,
      examples_per_user=examples_per_user,
    )
  ]
  tuning = [_tuning_costs(row, runs) for row in rows] if runs else None
  if as_json:
    content = [row.to_json() for row in rows]
    for item, cost in zip(content, tuning or [], strict=False):
      item['tuning'] = {'mean_runs': runs, 'epsilon': cost}
    click.echo(json.dumps(content, indent=2))
    return
  click.echo(
    f'population {population}, {rounds} rounds, epsilon <= {epsilon:g} at delta'
    f' {delta:.3g} (user level, add-or-remove-one-user)'
  )
  click.echo(
    f'{"noise":<11} {"users/round":>11} {"virtual":>8} {"times":>6}'
    f' {"noise":>9} {"epsilon":>8} {"of mean":>9} {"of total":>9}'
    f' {"users trained":>14} {"examples":>12}'
  )
  for row in rows:
    cells = row.to_json()
    click.echo(
      f'{cells["noise"]:<11} {cells["users_per_round"]:>11}'
      f' {cells["virtual_clients"]:>8} {row.participations:>6.3g}'
      f' {cells["noise_multiplier"]:>9.4g} {row.epsilon:>8.4g}'
      f' {row.noise_of_mean:>9.3g} {row.noise_of_total:>9.3g}'
      f' {row.users_trained:>14} {row.examples_trained:>12}'
    )
  click.echo(
    'times: rounds of one user; noise: on the sum / clip norm; of mean, of'
    ' total: noise of a round, and of all rounds so far at worst, / clip norm'
  )
  if tuning:
    click.echo(
      f'epsilon of choosing among runs like these, a secret random number of'
      f' them (mean {runs}) of which the best one alone is released, and of all'
      f' {runs} composed:'
    )
    click.echo(
      f'{"noise":<11} {"users/round":>11}'
      + ''.join(f' {rule:>12}' for rule in tuning[0])
    )
    for row, cost in zip(rows, tuning, strict=True):
      cells = row.to_json()
      click.echo(
        f'{cells["noise"]:<11} {cells["users_per_round"]:>11}'
        + ''.join(f' {value or math.inf:>12.4g}' for value in cost.values())
      )


def _tuning_costs(row: Any, runs: int) -> dict[str, float | None]:
  """Returns epsilon of each way to choose among runs of a planning row."""
  from tff_dpemb.privacy.accounting import selection

  found = selection.costs(
    row.plan.event(row.plan.rounds),
    runs=runs,
    delta=row.plan.delta,
    adjacency=row.plan.adjacency,
  )
  return {
    f'{cost.rule} x {cost.mean_runs:g}'
    if cost.rule == selection.COMPOSED
    else cost.rule: guarantee.epsilon_to_json(cost.guarantee.epsilon)
    for cost in found
  }


def _populations(book: Any, population: str | None) -> list[str]:
  """Returns the one that is asked for, or all of a ledger."""
  names = book.populations()
  if population is None:
    return names
  if population not in names and book.budget(population) is None:
    raise click.UsageError(
      f'--population must be one of {names or "none yet"}, got {population!r}.'
    )
  return [population]


@click.group()
def ledger() -> None:
  """Looks at what has been spent: show, verify, export, budget.

  The ledger lists every noise draw, written before its result was used.

  \b
  Example:
    dpemb ledger show --ledger runs/ledger.sqlite
  """


@ledger.command('show')
@_ledger_option
@click.option('--population', help='Only this one.')
@click.option('--delta', type=float, help='For populations without a budget.')
@click.option('--entries', is_flag=True, help='List the entries too.')
def ledger_show(
  url: str, population: str | None, delta: float | None, entries: bool
) -> None:
  """Shows spent and remaining epsilon of each population.

  Exit code 5 if the ledger was changed: then the figures are not to be trusted.

  \b
  Example:
    dpemb ledger show --population glyphs --delta 1e-5 --entries
  """
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  with ledger_lib.Ledger.open(url, create=False) as book:
    names = _populations(book, population)
    if not names:
      click.echo('the ledger is empty')
    for name in names:
      budget = book.budget(name)
      draws = sum(count for _, count in book.draw_counts(population=name))
      line = f'{name}: {draws} draws for {len(book.releases(name))} releases'
      if budget is None and delta is None:
        line += '; no budget (give --delta for epsilon)'
      else:
        spent = book.spent(name, delta)
        line += f'; spent {spent.describe()}'
        if budget is not None and delta in (None, budget.delta):
          left = max(0.0, budget.epsilon - spent.epsilon)
          line += (
            f'; budget {budget.epsilon:g}, left {guarantee.epsilon_text(left)}'
          )
        for warning in spent.warnings:
          line += f'; warning: {warning}'
      click.echo(line)
    if entries:
      for entry in book.entries(population=population):
        where = '' if entry.round_number is None else entry.round_number
        click.echo(
          f'{entry.sequence:>6} {entry.recorded_at[:19]} {entry.kind:<8}'
          f' {entry.population} {entry.release} {where}'
          f' attempt {entry.attempt} {entry.digest[:12]}'
        )
    problems = book.verify()
  _fail_on(problems[:1])


@ledger.command('verify')
@_ledger_option
@click.option(
  '--head',
  'noted',
  metavar='COUNT:DIGEST',
  help='A head noted earlier, which must still be there.',
)
def ledger_verify(url: str, noted: str | None) -> None:
  """Checks the hash chain; exit code 5 if anything was changed.

  Finds entries that were edited, deleted, reordered or replayed, leases that
  were, and a ledger that was truncated or replaced by an older copy. On
  PostgreSQL without a mirror, an end that was cut off or rewritten is found
  only with --head; it prints the one to note.

  \b
  Example:
    dpemb ledger verify --ledger runs/ledger.sqlite
  """
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  head = None if noted is None else _parse_head(noted)
  with ledger_lib.Ledger.open(url, create=False) as book:
    problems = book.verify(head=head)
    count, digest = book.head() if not problems else (0, '')
  _fail_on(problems)
  click.echo(f'{count} entries, chain whole, head {count}:{digest}')


def _parse_head(text: str) -> tuple[int, str]:
  found = re.fullmatch(r'([0-9]{1,18}):([0-9a-f]{64})', text)
  if found is None:
    raise click.UsageError(
      '--head must be COUNT:DIGEST as `dpemb ledger verify` prints it, got'
      f' {text!r}.'
    )
  return int(found[1]), found[2]


@ledger.command('export')
@_ledger_option
@click.option('--population', help='Only this one.')
@click.option(
  '--composed',
  is_flag=True,
  help='One dp_accounting event a population instead of the entries.',
)
def ledger_export(url: str, population: str | None, composed: bool) -> None:
  """Prints entries as JSON lines, events in dp_accounting's form.

  Exit code 5 if the ledger was changed: then entries may be missing.

  \b
  Example:
    dpemb ledger export --population glyphs > glyphs.jsonl
  """
  from tff_dpemb.privacy.accounting import events
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  with ledger_lib.Ledger.open(url, create=False) as book:
    if composed:
      names = _populations(book, population)
      lines: list[dict[str, Any]] = [
        {
          'population': name,
          'event': events.to_json(book.composed_event(name)),
        }
        for name in names
      ]
    else:
      entries = book.entries(population=population)
      lines = [entry.to_json() for entry in entries]
    problems = book.verify()
  for line in lines:
    click.echo(json.dumps(line, sort_keys=True))
  _fail_on(problems[:1])


@ledger.command('budget')
@_ledger_option
@click.argument('population')
@click.option('--epsilon', type=float, help='Set it to this.')
@click.option('--delta', type=float, help='Set it to this.')
@click.option(
  '--adjacency',
  type=click.Choice([a.value for a in guarantee.Adjacency]),
  default=guarantee.Adjacency.ADD_OR_REMOVE_ONE.value,
  show_default=True,
  help='Relation that the budget speaks of; fixed-size pages have replace-one.',
)
@click.option('--replace', is_flag=True, help='Change a budget that is set.')
@click.option('--approved-by', default='', help='Who allowed it; recorded.')
def ledger_budget(
  url: str,
  population: str,
  epsilon: float | None,
  delta: float | None,
  adjacency: str,
  replace: bool,
  approved_by: str,
) -> None:
  """Shows or sets the budget of a population, over all its releases.

  A draw that would exceed it is refused before it runs. Exit code 5 if the
  ledger was changed: then nothing is set.

  \b
  Example:
    dpemb ledger budget glyphs --epsilon 8 --delta 1e-5 --approved-by dpo
  """
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  if (epsilon is None) != (delta is None):
    raise click.UsageError('--epsilon and --delta must be given together.')
  with ledger_lib.Ledger.open(url, create=epsilon is not None) as book:
    _fail_on(book.verify()[:1])
    if epsilon is not None and delta is not None:
      book.set_budget(
        population,
        guarantee.Budget(epsilon, delta, guarantee.Adjacency(adjacency)),
        replace=replace,
        approved_by=approved_by,
      )
    budget = book.budget(population)
    if budget is None:
      click.echo(f'{population}: no budget')
      return
    spent = book.spent(population)
  click.echo(
    f'{population}: budget epsilon {budget.epsilon:g} at delta'
    f' {budget.delta:.3g}, spent {guarantee.epsilon_text(spent.epsilon)},'
    f' left {max(0.0, budget.epsilon - spent.epsilon):.4g}'
  )


@click.group()
def certificate() -> None:
  """Privacy certificates: show, verify, keygen, sign.

  \b
  Example:
    dpemb certificate verify runs/quickstart/export/1/certificate.json
  """


@certificate.command('show')
@click.argument('path', required=False)
@click.option(
  '--format',
  'form',
  type=click.Choice(['markdown', 'html', 'json']),
  default='markdown',
  show_default=True,
)
@click.option('--schema', is_flag=True, help='Print the JSON Schema instead.')
def certificate_show(path: str | None, form: str, schema: bool) -> None:
  """Prints a certificate as a page.

  \b
  Example:
    dpemb certificate show certificate.json --format html > certificate.html
  """
  from tff_dpemb.privacy.certificate import build
  from tff_dpemb.privacy.certificate import schema as certificate_schema

  if schema:
    click.echo(json.dumps(certificate_schema.published(), indent=2))
    return
  if path is None:
    raise click.UsageError('PATH must be given.')
  content = build.read(_certificate_path(path))
  problems = certificate_schema.problems(content)
  if problems:
    raise build.CertificateError(problems[0])
  match form:
    case 'markdown':
      click.echo(build.to_markdown(content), nl=False)
    case 'html':
      click.echo(build.to_html(content), nl=False)
    case _:
      click.echo(json.dumps(content, indent=2))


@certificate.command('verify')
@click.argument('path')
@click.option('--ledger', 'url', metavar='URL', help='Check against this too.')
@click.option(
  '--public-key', metavar='FILE', help='It must be signed by this key.'
)
def certificate_verify(
  path: str, url: str | None, public_key: str | None
) -> None:
  """Recomputes a certificate; exit code 5 if anything does not hold.

  Epsilon is recomputed from the mechanism and the sampling alone, the hashes
  of the artefacts beside it are checked, with --ledger that every draw of the
  release is certified, and with --public-key who signed it.

  \b
  Example:
    dpemb certificate verify export/1 --ledger runs/ledger.sqlite
  """
  from tff_dpemb.privacy.certificate import build
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  place = _certificate_path(path)
  with contextlib.ExitStack() as stack:
    book = None
    if url is not None:
      book = stack.enter_context(ledger_lib.Ledger.open(url, create=False))
    problems = build.verify(place, ledger=book, public_key=public_key)
  _fail_on(problems)
  content = build.read(place)
  click.echo(f'holds: {content["statement"]["text"]}')
  if url is None:
    click.echo('not checked against a ledger (give --ledger)')
  if public_key is not None:
    click.echo(f'signed by the key of {public_key}')
  elif 'signature' in content:
    click.echo(
      f'signed by key {content["signature"]["public_key"][:16]}, not checked'
      ' whose it is (give --public-key)'
    )


@certificate.command('keygen')
@click.argument('path')
def certificate_keygen(path: str) -> None:
  """Makes a key to sign with: PATH (keep it secret) and PATH.pub (hand it out).

  \b
  Example:
    dpemb certificate keygen keys/privacy-office
  """
  from tff_dpemb.privacy.certificate import build

  public = build.make_key(path)
  click.echo(f'private key {path} (mode 0600), public key {public}')


@certificate.command('sign')
@click.argument('path')
@click.option('--key', required=True, metavar='FILE', help='Private key.')
@click.option('--ledger', 'url', metavar='URL', help='Check against this too.')
def certificate_sign(path: str, key: str, url: str | None) -> None:
  """Signs a certificate that holds, in its file; replaces a signature.

  What does not verify is not signed (exit code 5). The page and the export's
  manifest beside it are brought in step.

  \b
  Example:
    dpemb certificate sign export/1 --key keys/privacy-office
  """
  from tff_dpemb.artifacts import storage
  from tff_dpemb.privacy.certificate import build
  from tff_dpemb.privacy.ledger import ledger as ledger_lib

  place = _certificate_path(path)
  content = build.read(place)
  content.pop('signature', None)
  with contextlib.ExitStack() as stack:
    book = None
    if url is not None:
      book = stack.enter_context(ledger_lib.Ledger.open(url, create=False))
    problems = build.verify(content, ledger=book, directory=place.parent)
  _fail_on(problems)
  signed = build.sign(content, key)
  build.write(place, signed)
  manifest = place.with_name('manifest.json')
  if manifest.exists():
    # An export is opened only with the certificate that its manifest names.
    listed = storage.read_json(manifest)
    if isinstance(listed, dict) and listed.get('certificate_sha256'):
      listed['certificate_sha256'] = storage.sha256_of(place)
      storage.atomic_write_json(manifest, listed)
  page = place.with_name('certificate.html')
  if page.exists():
    storage.atomic_write_bytes(page, build.to_html(signed).encode())
  click.echo(
    f'signed {place} with key {signed["signature"]["public_key"][:16]}'
  )


def _fail_on(problems: list[str]) -> None:
  for problem in problems:
    click.echo(f'problem: {problem}', err=True)
  if problems:
    raise click.exceptions.Exit(_VERIFICATION_FAILED)


def _certificate_path(path: str) -> pathlib.Path:
  """Returns the file, given it or the directory that it lies in."""
  place = pathlib.Path(path)
  return place / 'certificate.json' if place.is_dir() else place
