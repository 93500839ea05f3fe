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
