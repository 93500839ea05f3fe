"""The commands `ledger`: what was spent, by whom, and is it as it was written.

Domain errors end in `launch.cli`, which prints one line.
"""

import json
import re
from typing import Any

import click

from launch.commands import ledgers
from tff_dpemb.privacy import guarantee

_DEFAULT_LEDGER = 'runs/ledger.sqlite'


def _ledger_option(command: Any) -> Any:
  return click.option(
    '--ledger',
    'url',
    default=_DEFAULT_LEDGER,
    show_default=True,
    metavar='URL',
    help='SQLite file or SQLAlchemy URL.',
  )(command)


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
  with ledgers.open_ledger(url) as book:
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
    found = book.verify()
  ledgers.fail_on(found[:1])


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
  head = None if noted is None else _parse_head(noted)
  with ledgers.open_ledger(url) as book:
    found = book.verify(head=head)
    count, digest = book.head() if not found else (0, '')
  ledgers.fail_on(found)
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

  with ledgers.open_ledger(url) as book:
    if composed:
      names = _populations(book, population)
      lines: list[dict[str, Any]] = [
        {'population': name, 'event': events.to_json(book.composed_event(name))}
        for name in names
      ]
    else:
      entries = book.entries(population=population)
      lines = [entry.to_json() for entry in entries]
    found = book.verify()
  for line in lines:
    click.echo(json.dumps(line, sort_keys=True))
  ledgers.fail_on(found[:1])


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
  if (epsilon is None) != (delta is None):
    raise click.UsageError('--epsilon and --delta must be given together.')
  with ledgers.open_ledger(url, create=epsilon is not None) as book:
    ledgers.fail_on(book.verify()[:1])
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
