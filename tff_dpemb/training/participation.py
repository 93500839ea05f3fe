"""Who took part in which round, as drawn: restricted; only a verdict leaves.

A guarantee without sampling rests on how often one user takes part and how far
apart. The plan says so, the schedule follows it, and what is kept here is the
measurement: the users of every draw, written after the draw is charged and
before its noise is drawn.
"""

import dataclasses
import pathlib
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as privacy_plan

_NAME = re.compile(r'^round-(\d{6})-attempt-(\d+)\.npz$')
_KEY = 'users'

Verdict = Literal['within', 'outside', 'incomplete']


@dataclasses.dataclass(frozen=True)
class Participation:
  """What the drawn cohorts of a run come to. Private: it counts real users.

  Attributes:
    rounds: Rounds with a record.
    draws: Records, repeated rounds counted again.
    most_participations: Most rounds of one user, repeats of a round not
      counted again: those are accounted by themselves.
    least_separation: Fewest rounds from one participation of a user to the
      user's next one; None if nobody took part twice.
    verdict: 'within' the plan's limits, 'outside' them, or 'incomplete' if
      the record of a round is missing. This alone may leave.
  """

  rounds: int
  draws: int
  most_participations: int
  least_separation: int | None
  verdict: Verdict


def record(
  directory: pathlib.Path,
  number: int,
  *,
  attempt: int,
  slots: Sequence[np.ndarray],
) -> None:
  """Keeps the users of one draw, before its noise is drawn.

  Args:
    directory: Inside the restricted folder; made if missing.
    number: Round, from 0.
    attempt: Of the round, from 1.
    slots: The users of each virtual client.

  Raises:
    ArtifactError: The disk refused.
  """
  users = np.concatenate([np.empty(0, np.int64), *slots])
  storage.atomic_write_npz(
    directory / f'round-{number:06d}-attempt-{attempt}.npz',
    {_KEY: users.astype(np.int64)},
    is_private=True,
  )


def measure(
  directory: pathlib.Path, plan: privacy_plan.PrivacyPlan, *, rounds: int
) -> Participation:
  """Returns what the records of the first `rounds` rounds come to.

  The limits are those of `plan.sampler`; a sampler without limits still never
  draws a user twice into one round. Every draw of a round is held to them with
  every draw of every other round: which attempt the weights come from does not
  matter to what was seen.

  Raises:
    ArtifactError: A record is damaged.
  """
  draws = _read(directory, rounds)
  times = np.zeros(plan.population, np.int64)
  last = np.full(plan.population, -1, np.int64)
  gaps: list[int] = []
  for cohorts in draws.values():
    if any(len(np.unique(users)) < len(users) for users in cohorts):
      gaps.append(0)
  for number in sorted(draws):
    users = np.unique(np.concatenate(draws[number]))
    times[users] += 1
    again = users[last[users] >= 0]
    if len(again):
      gaps.append(int(number - last[again].max()))
    last[users] = number
  most = int(times.max(initial=0))
  least = min(gaps) if gaps else None
  sampler = plan.sampler
  limits = (rounds, 1)
  if isinstance(sampler, samplers.MinSeparationSampler):
    limits = (sampler.max_participations, sampler.min_separation)
  verdict: Verdict = 'within'
  if most > limits[0] or (least is not None and least < limits[1]):
    verdict = 'outside'
  elif len(draws) < rounds:
    verdict = 'incomplete'
  return Participation(
    rounds=len(draws),
    draws=sum(len(cohorts) for cohorts in draws.values()),
    most_participations=most,
    least_separation=least,
    verdict=verdict,
  )


def _read(directory: pathlib.Path, rounds: int) -> dict[int, list[np.ndarray]]:
  """Returns the cohorts drawn for each round before `rounds`."""
  draws: dict[int, list[np.ndarray]] = {}
  if not directory.is_dir():
    return draws
  for path in sorted(directory.iterdir()):
    match = _NAME.match(path.name)
    if match and int(match[1]) < rounds:
      users = storage.read_npz(path)[_KEY]
      draws.setdefault(int(match[1]), []).append(users)
  return draws
