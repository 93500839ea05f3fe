"""The command `plan`: which noise each cohort size needs for a budget.

Accounting libraries take seconds to import, so it imports what it needs when
it runs.
"""

import json
import math
from typing import Any

import click

from tff_dpemb.privacy import guarantee


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
  delta: float | None,
  noise: tuple[str, ...],
  runs: int | None,
  as_json: bool,
  **settings: Any,
) -> None:
  """Shows which noise each cohort size needs for a budget.

  User level, add-or-remove-one-user. Independent noise is for Poisson samples,
  the other kinds for a schedule. The less noise of the total, the better.

  \b
  Example:
    dpemb plan --population 1000000 --epsilon 4 --noise independent --noise blt
  """
  from launch.pages import jinja
  from tff_dpemb.privacy.planning import cohort_table
  from tff_dpemb.privacy.planning import plan as plan_lib

  if delta is None:
    delta = plan_lib.default_delta(population)
  rows = [
    row
    for kind in dict.fromkeys(noise)
    for row in cohort_table.cohort_table(
      population, delta=delta, noise=kind, **settings
    )
  ]
  tuning = [_tuning_costs(row, runs) for row in rows] if runs else None
  if as_json:
    content = [row.to_json() for row in rows]
    for item, cost in zip(content, tuning or [], strict=False):
      item['tuning'] = {'mean_runs': runs, 'epsilon': cost}
    click.echo(json.dumps(content, indent=2))
    return
  text = jinja.render(
    'cohorts.txt.j2',
    rows=[(row, row.to_json()) for row in rows],
    tuning=tuning,
    infinity=math.inf,
    population=population,
    delta=delta,
    runs=runs,
    **settings,
  )
  click.echo(text, nl=False)


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
