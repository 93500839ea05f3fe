"""How users enter the rounds, as frozen values.

`plan` refuses a sampler with a mechanism or an adjacency that it does not go
with; `data.cohorts` draws what is said here.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np
from dp_accounting import dp_event

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee

_Adjacency = guarantee.Adjacency


@dataclasses.dataclass(frozen=True)
class Participation:
  """When one user takes part: rounds phase, phase + b, ..., at most k of them.

  The phase is in [0, b) and the same for the whole run.

  Attributes:
    min_separation: b >= 1; 1 is every round.
    max_participations: k >= 1.
  """

  min_separation: int
  max_participations: int

  def __post_init__(self):
    for name in ('min_separation', 'max_participations'):
      checks.whole(name, getattr(self, name), 1)

  def pattern(self, phase: int, rounds: int) -> np.ndarray:
    """Returns the rounds of a user of `phase`, int64 ascending."""
    found = np.arange(phase, rounds, self.min_separation)
    return found[: self.max_participations]

  def most(self, rounds: int) -> int:
    """Returns how often any user takes part in `rounds` rounds at most."""
    return min(self.max_participations, -(-rounds // self.min_separation))


class _Sampler:
  kind: ClassVar[str]

  def to_json(self) -> dict[str, Any]:
    """Returns the fields of a plan's JSON that are the sampler's."""
    names = ('population', 'users_per_round')
    return {'sampler': self.kind} | {n: getattr(self, n) for n in names}


@dataclasses.dataclass(frozen=True)
class PoissonSampler(_Sampler):
  """Each user enters each round independently, with one probability.

  Attributes:
    population: N, the number of users, at least 2.
    users_per_round: Expected cohort, a public constant in (0, N].
  """

  population: int
  users_per_round: float

  kind = 'poisson'
  adjacencies = (_Adjacency.ADD_OR_REMOVE_ONE,)

  def __post_init__(self):
    _check_cohort(self.population, self.users_per_round)

  @property
  def probability(self) -> float:
    """q = users_per_round / population: of a *user*, not a virtual client."""
    return self.users_per_round / self.population

  def event(self, inner: dp_event.DpEvent) -> dp_event.DpEvent:
    """Returns the event of `inner` on a Poisson sample."""
    if self.probability == 1 or isinstance(inner, dp_event.NonPrivateDpEvent):
      return inner
    return dp_event.PoissonSampledDpEvent(self.probability, inner)

  def assumption(self) -> str:
    """Returns what the guarantee rests on, for people."""
    return (
      'Each user enters each round independently with probability'
      f' {self.probability:.6g}, and who did is not published.'
    )


@dataclasses.dataclass(frozen=True)
class FixedSizeSampler(_Sampler):
  """Exactly users_per_round distinct users a round, drawn afresh each round.

  Every such set is equally likely. Only for replace-one adjacency (both
  neighbours have N users, a public number), under which one user moves a
  round's sum by up to 2 clip norms, shared virtual clients or not.

  Attributes:
    population: N, the number of users, at least 2.
    users_per_round: Whole, in [1, N].
  """

  population: int
  users_per_round: int

  kind = 'fixed-size'
  adjacencies = (_Adjacency.REPLACE_ONE,)

  def __post_init__(self):
    _check_cohort(self.population, self.users_per_round)
    if self.users_per_round != int(self.users_per_round):
      raise guarantee.PlanError(
        'users_per_round of fixed-size sampling must be whole, got'
        f' {self.users_per_round}.'
      )

  @property
  def probability(self) -> float:
    """Share of the users in a round."""
    return self.users_per_round / self.population

  def event(self, inner: dp_event.DpEvent) -> dp_event.DpEvent:
    """Returns the event of `inner` on a sample without replacement."""
    everyone = self.users_per_round == self.population
    if everyone or isinstance(inner, dp_event.NonPrivateDpEvent):
      return inner
    return dp_event.SampledWithoutReplacementDpEvent(
      source_dataset_size=self.population,
      sample_size=int(self.users_per_round),
      event=inner,
    )

  def assumption(self) -> str:
    """Returns what the guarantee rests on, for people."""
    return (
      f'Each round draws {self.users_per_round:g} distinct users of'
      f' {self.population}, and who was drawn is not published.'
    )


@dataclasses.dataclass(frozen=True)
class MinSeparationSampler(_Sampler):
  """Each user has one phase and takes part every min_separation rounds.

  The phase, in [0, min_separation), is a hash of the user's index under a key
  that is drawn at random for the run and kept for all of it: phases are uniform
  and independent of all other users. The user takes part in the rounds t with
  t % min_separation == phase, the first max_participations of them. Nothing is
  gained from secrecy. Removing a user changes no other user's rounds, so
  add-or-remove-one is legal (the constant `population` is public), as are
  zero-out and replace-one.

  Attributes:
    population: N, the number of users, at least 2.
    min_separation: b, whole, in [1, N].
    max_participations: k, whole, at least 1.
  """

  population: int
  min_separation: int
  max_participations: int

  kind = 'min-separation'
  adjacencies = (
    _Adjacency.ADD_OR_REMOVE_ONE,
    _Adjacency.ZERO_OUT,
    _Adjacency.REPLACE_ONE,
  )

  def __post_init__(self):
    _check_population(self.population)
    participation = self.participation  # Checks that both are whole, >= 1.
    if participation.min_separation > self.population:
      raise guarantee.PlanError(
        f'min_separation must be in [1, population = {self.population}], got'
        f' {self.min_separation}; raise users_per_round or lower it.'
      )

  @property
  def users_per_round(self) -> float:
    """Expected users of a round, a public constant: N / min_separation."""
    return self.population / self.min_separation

  @property
  def probability(self) -> float:
    """Share of the users in a round; nothing is amplified by it."""
    return 1 / self.min_separation

  @property
  def participation(self) -> Participation:
    """When one user takes part."""
    return Participation(self.min_separation, self.max_participations)

  def assumption(self) -> str:
    """Returns what the guarantee rests on, for people."""
    return (
      f'Each user takes part at most {self.max_participations} times, every'
      f' {self.min_separation} rounds, by a hash of its own index; nothing is'
      ' gained from sampling.'
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the fields of a plan's JSON that are the sampler's."""
    return super().to_json() | {
      'min_separation': self.min_separation,
      'max_participations': self.max_participations,
    }


Sampler = PoissonSampler | FixedSizeSampler | MinSeparationSampler


def default_adjacency(sampler: Sampler) -> guarantee.Adjacency:
  """Returns the adjacency that goes with a sampler."""
  return sampler.adjacencies[0]


def from_json(content: dict[str, Any]) -> Sampler:
  """Returns the sampler of a plan's JSON; a missing field is a KeyError.

  Raises:
    PlanError: The kind is unknown, or a value breaks a rule.
  """
  population = content['population']
  match content['sampler']:
    case PoissonSampler.kind:
      return PoissonSampler(population, content['users_per_round'])
    case FixedSizeSampler.kind:
      return FixedSizeSampler(population, content['users_per_round'])
    case MinSeparationSampler.kind:
      found = MinSeparationSampler(
        population, content['min_separation'], content['max_participations']
      )
      stated = content['users_per_round']
      if stated != found.users_per_round:
        raise guarantee.PlanError(
          'users_per_round must be population / min_separation ='
          f' {found.users_per_round!r}, got {stated!r}.'
        )
      return found
    case kind:
      raise guarantee.PlanError(
        "sampler must be 'poisson', 'fixed-size' or 'min-separation', got"
        f' {kind!r}.'
      )


def _check_population(population: int) -> None:
  if not checks.is_number(population) or population != int(population):
    raise guarantee.PlanError(
      f'population must be a whole number, got {population!r}.'
    )
  if population < 2:
    raise guarantee.PlanError(
      f'population must be at least 2 users, got {population}; one user cannot'
      ' hide among others.'
    )


def _check_cohort(population: int, users_per_round: float) -> None:
  _check_population(population)
  if not (
    checks.is_number(users_per_round) and 0 < users_per_round <= population
  ):
    raise guarantee.PlanError(
      f'users_per_round must be in (0, population = {population}], got'
      f' {users_per_round}.'
    )
