"""One frozen value from which sampler, mechanism, event and adjacency come.

What runs is what is accounted: training takes its cohorts, noise and ledger
entries from the same `PrivacyPlan`. A mismatch (a sampler whose event the
adjacency does not admit, a cohort too small for adaptive clipping, delta not
below 1 / population) is refused when the plan is built.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from dp_accounting import dp_event

from tff_dpemb import config
from tff_dpemb.privacy import accounting
from tff_dpemb.privacy import calibration
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy import mechanisms

ZERO_NOISE_WARNING = 'noise_multiplier is 0: no guarantee.'


def default_delta(population: int) -> float:
  """Returns population ** -1.1, which is below 1 / population."""
  return float(population) ** -1.1


@dataclasses.dataclass(frozen=True)
class PoissonSampler:
  """Each user enters each round independently, with one probability.

  Attributes:
    population: N, the number of users, at least 2.
    users_per_round: Expected cohort, a public constant in (0, N].
  """

  population: int
  users_per_round: float

  kind = 'poisson'

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


@dataclasses.dataclass(frozen=True)
class FixedSizeSampler:
  """Exactly users_per_round distinct users a round, drawn afresh each round.

  Only for replace-one adjacency, with a public population size; accounting
  only: no runtime draws it yet.
  """

  population: int
  users_per_round: int

  kind = 'fixed-size'

  def __post_init__(self):
    _check_cohort(self.population, self.users_per_round)
    if self.users_per_round != int(self.users_per_round):
      raise guarantee_lib.PlanError(
        'users_per_round of fixed-size sampling must be whole, got'
        f' {self.users_per_round}.'
      )

  @property
  def probability(self) -> float:
    """Share of the users in a round."""
    return self.users_per_round / self.population

  def event(self, inner: dp_event.DpEvent) -> dp_event.DpEvent:
    """Returns the event of `inner` on a sample without replacement."""
    if isinstance(inner, dp_event.NonPrivateDpEvent):
      return inner
    return dp_event.SampledWithoutReplacementDpEvent(
      source_dataset_size=self.population,
      sample_size=int(self.users_per_round),
      event=inner,
    )


@dataclasses.dataclass(frozen=True)
class OncePerTreeSampler:
  """Each user takes part in at most one round of the whole run; no sampling.

  Accounting only: no runtime draws it yet.
  """

  population: int
  users_per_round: int

  kind = 'once-per-tree'

  def __post_init__(self):
    _check_cohort(self.population, self.users_per_round)

  @property
  def probability(self) -> float:
    """Share of the users in a round; nothing is amplified by it."""
    return self.users_per_round / self.population


Sampler = PoissonSampler | FixedSizeSampler | OncePerTreeSampler
_SAMPLERS = {
  cls.kind: cls
  for cls in (PoissonSampler, FixedSizeSampler, OncePerTreeSampler)
}


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
  """What will run and how it is accounted.

  Guarantee: user level, under `adjacency`, for everything that the noisy sums
  (and counts) of all rounds reveal: every checkpoint, not only the last.
  Not covered: metrics computed without noise, and anything outside the rounds.

  Attributes:
    sampler: How users enter a round.
    mechanism: How a round's sum is clipped and noised.
    virtual_clients: V: each sampled user is hashed into one of V slots,
      independently. A public constant; the denominator of the mean.
    rounds: Rounds planned, at least 1.
    delta: In (0, 1 / population).
    adjacency: Relation of the guarantee.
    shares_virtual_client: Whether a virtual client may hold several users.
  """

  sampler: Sampler
  mechanism: mechanisms.Mechanism
  virtual_clients: int
  rounds: int
  delta: float
  adjacency: guarantee_lib.Adjacency = guarantee_lib.Adjacency.ADD_OR_REMOVE_ONE
  shares_virtual_client: bool = True

  def __post_init__(self):
    if self.virtual_clients < 1:
      raise guarantee_lib.PlanError(
        f'virtual_clients must be >= 1, got {self.virtual_clients}.'
      )
    if self.rounds < 1:
      raise guarantee_lib.PlanError(f'rounds must be >= 1, got {self.rounds}.')
    if not 0 < self.delta < 1 / self.population:
      raise guarantee_lib.PlanError(
        f'delta must be in (0, 1 / population = {1 / self.population:.3g}),'
        f' got {self.delta}; leave it out for population ** -1.1.'
      )
    _check_match(self)

  @property
  def population(self) -> int:
    """N, the number of users."""
    return self.sampler.population

  @property
  def users_per_round(self) -> float:
    """Expected users a round, a public constant."""
    return self.sampler.users_per_round

  @property
  def sampling_probability(self) -> float:
    """q = users_per_round / population."""
    return self.sampler.probability

  @property
  def sensitivity(self) -> float:
    """By how many clip norms one user can move a round's sum."""
    return self.mechanism.sensitivity(
      self.adjacency, shares_virtual_client=self.shares_virtual_client
    )

  def round_event(self) -> dp_event.DpEvent:
    """Returns the event of one round, to be charged before each draw.

    Raises:
      PlanError: The mechanism is a tree, which is charged once as a whole:
        `event(rounds)`.
    """
    if isinstance(self.mechanism, mechanisms.TreeGaussian) or isinstance(
      self.sampler, OncePerTreeSampler
    ):
      raise guarantee_lib.PlanError(
        'a tree is charged once for all its rounds, not a round at a time; use'
        ' plan.event(rounds).'
      )
    return self.sampler.event(
      self.mechanism.event(
        self.adjacency, shares_virtual_client=self.shares_virtual_client
      )
    )

  def event(self, rounds: int) -> dp_event.DpEvent:
    """Returns the event of `rounds` rounds, replayed ones counted again."""
    if rounds < 0:
      raise guarantee_lib.PlanError(f'rounds must be >= 0, got {rounds}.')
    if rounds == 0:
      return dp_event.NoOpDpEvent()
    if isinstance(self.mechanism, mechanisms.TreeGaussian):
      return self.mechanism.event(
        self.adjacency,
        steps=rounds,
        shares_virtual_client=self.shares_virtual_client,
      )
    return dp_event.SelfComposedDpEvent(self.round_event(), rounds)

  def guarantee(
    self, rounds_executed: int, *, delta: float | None = None
  ) -> guarantee_lib.Guarantee:
    """Returns the guarantee of the rounds that drew noise, replays included."""
    return accounting.guarantee_of_event(
      self.event(rounds_executed),
      delta=self.delta if delta is None else delta,
      adjacency=self.adjacency,
      assumptions=self.assumptions(),
    )

  def naive_epsilon(self, rounds: int | None = None) -> float:
    """Returns epsilon as if one user moved the sum by C only: *not valid*.

    The figure that a noise multiplier fed straight into an accountant gives;
    shown for comparison with published ones. Equal to the honest one where
    virtual clients never share.
    """
    if not self.shares_virtual_client:
      return self.guarantee(self._rounds(rounds)).epsilon
    clip, noise = self.mechanism.clip_norm, self.mechanism.noise_multiplier
    alone: mechanisms.Mechanism = mechanisms.FixedClipGaussian(clip, 2 * noise)
    if isinstance(self.mechanism, mechanisms.TreeGaussian):
      alone = mechanisms.TreeGaussian(clip, 2 * noise)
    other = dataclasses.replace(self, mechanism=alone)
    return other.guarantee(self._rounds(rounds)).epsilon

  def unamplified_epsilon(self, rounds: int | None = None) -> float:
    """Returns epsilon if nothing is gained from secret sampling."""
    return self.unamplified_guarantee(rounds).epsilon

  def unamplified_guarantee(
    self, rounds: int | None = None
  ) -> guarantee_lib.Guarantee:
    """Returns the conservative guarantee: every user in every round."""
    number = self._rounds(rounds)
    if isinstance(self.mechanism, mechanisms.TreeGaussian):
      return self.guarantee(number)
    inner = self.mechanism.event(
      self.adjacency, shares_virtual_client=self.shares_virtual_client
    )
    return accounting.guarantee_of_event(
      dp_event.SelfComposedDpEvent(inner, number),
      delta=self.delta,
      adjacency=self.adjacency,
      assumptions=('Every user is taken to be in every round.',),
    )

  def extrapolate(
    self,
    populations: Sequence[int],
    *,
    target_epsilon: float = calibration.DEFAULT_TARGET,
  ) -> list[calibration.Extrapolation]:
    """Returns what larger populations would need and get; never certified."""
    return calibration.extrapolate(
      self, populations, target_epsilon=target_epsilon
    )

  def assumptions(self) -> tuple[str, ...]:
    """Returns the sentences that the guarantee rests on."""
    shared = (
      'Users share virtual clients'
      if self.shares_virtual_client
      else 'No virtual client holds more than one user'
    )
    if isinstance(self.sampler, PoissonSampler):
      sampling = (
        'Each user enters each round independently with probability'
        f' {self.sampling_probability:.6g}, and who did is not published.'
      )
    elif isinstance(self.sampler, FixedSizeSampler):
      sampling = (
        f'Each round draws {self.users_per_round:g} distinct users of'
        f' {self.population}, and who was drawn is not published.'
      )
    else:
      sampling = 'Each user takes part in at most one round of the tree.'
    return (
      sampling,
      f'{shared}: one user moves the sum by at most {self.sensitivity:g} x'
      ' clip_norm.',
    )

  def explain(self) -> list[str]:
    """Returns lines for people: noise split, signal, what is released."""
    mechanism = self.mechanism
    ratio = mechanism.value_noise_multiplier / self.virtual_clients
    lines = [
      f'population {self.population}, {self.users_per_round:g} users a round'
      f' (q = {self.sampling_probability:.4g}) in {self.virtual_clients}'
      f' virtual clients, {self.rounds} rounds',
      f'{mechanism.kind} clip {mechanism.clip_norm:g}; one user moves the sum'
      f' by at most {self.sensitivity:g} x clip',
      f'noise multiplier: total {mechanism.noise_multiplier:.6g}, on the value'
      f' {mechanism.value_noise_multiplier:.6g}, clipped count stddev'
      f' {mechanism.clipped_count_stddev:.6g}',
      f'noise of the mean per coordinate: {ratio:.4g} x clip',
    ]
    if mechanism.noise_multiplier == 0:
      lines.append(ZERO_NOISE_WARNING)
    if getattr(mechanism, 'learning_rate', 1.0) == 0:
      lines.append('warning: clip_learning_rate is 0: the clip never adapts.')
    return lines

  def to_json(self) -> dict[str, Any]:
    """Returns the whole plan as a JSON value."""
    return {
      'sampler': self.sampler.kind,
      'population': self.population,
      'users_per_round': self.users_per_round,
      'virtual_clients': self.virtual_clients,
      'rounds': self.rounds,
      'delta': self.delta,
      'adjacency': self.adjacency.value,
      'shares_virtual_client': self.shares_virtual_client,
      'mechanism': self.mechanism.to_json(),
    }

  @classmethod
  def from_json(cls, content: dict[str, Any]) -> 'PrivacyPlan':
    """Inverse of `to_json`; a value that breaks a rule raises PlanError."""
    try:
      sampler = _SAMPLERS[content['sampler']](
        content['population'], content['users_per_round']
      )
      return cls(
        sampler=sampler,
        mechanism=mechanisms.from_json(content['mechanism']),
        virtual_clients=content['virtual_clients'],
        rounds=content['rounds'],
        delta=content['delta'],
        adjacency=guarantee_lib.Adjacency(content['adjacency']),
        shares_virtual_client=content['shares_virtual_client'],
      )
    except KeyError as error:
      raise guarantee_lib.PlanError(f'a plan must have {error}.') from error

  def digest(self) -> str:
    """Returns the SHA-256 hex digest of the canonical JSON of the plan."""
    text = json.dumps(self.to_json(), sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()

  def _rounds(self, rounds: int | None) -> int:
    return self.rounds if rounds is None else rounds


def plan_from_config(
  privacy: config.PrivacyConfig,
  *,
  population: int,
  rounds: int,
  shares_virtual_client: bool = True,
) -> PrivacyPlan:
  """Returns the plan of a run page for a population of users.

  Args:
    privacy: The `[privacy]` section.
    population: Users in the private store.
    rounds: Rounds planned.
    shares_virtual_client: False only if no virtual client ever holds more than
      one user.

  Raises:
    PlanError: A value breaks a rule; the message says which and the remedy.
  """
  if population < 2:
    raise guarantee_lib.PlanError(
      f'population must be at least 2 users, got {population}; one user cannot'
      ' hide among others.'
    )
  if (
    not shares_virtual_client
    and privacy.virtual_clients != privacy.users_per_round
  ):
    raise guarantee_lib.PlanError(
      'virtual_clients must equal users_per_round where virtual clients are'
      f' not shared (each sampled user is one), got {privacy.virtual_clients}'
      f' and {privacy.users_per_round}; set virtual_clients ='
      f' {privacy.users_per_round}, or share virtual clients.'
    )
  if privacy.clipping == 'adaptive':
    mechanism: mechanisms.Mechanism = mechanisms.AdaptiveClipGaussian(
      privacy.clip_norm,
      privacy.noise_multiplier,
      virtual_clients=privacy.virtual_clients,
      target_unclipped_quantile=privacy.target_unclipped_quantile,
      learning_rate=privacy.clip_learning_rate,
    )
  else:
    mechanism = mechanisms.FixedClipGaussian(
      privacy.clip_norm, privacy.noise_multiplier
    )
  delta = privacy.delta
  return PrivacyPlan(
    sampler=PoissonSampler(population, privacy.users_per_round),
    mechanism=mechanism,
    virtual_clients=privacy.virtual_clients,
    rounds=rounds,
    delta=default_delta(population) if delta is None else delta,
    shares_virtual_client=shares_virtual_client,
  )


def _check_cohort(population: int, users_per_round: float) -> None:
  if population < 2:
    raise guarantee_lib.PlanError(
      f'population must be at least 2 users, got {population}.'
    )
  if not (math.isfinite(users_per_round) and 0 < users_per_round <= population):
    raise guarantee_lib.PlanError(
      f'users_per_round must be in (0, population = {population}], got'
      f' {users_per_round}.'
    )


def _check_match(plan: PrivacyPlan) -> None:
  tree = isinstance(plan.mechanism, mechanisms.TreeGaussian)
  match plan.sampler:
    case PoissonSampler():
      legal = guarantee_lib.Adjacency.ADD_OR_REMOVE_ONE
    case FixedSizeSampler():
      legal = guarantee_lib.Adjacency.REPLACE_ONE
    case OncePerTreeSampler():
      legal = guarantee_lib.Adjacency.ZERO_OUT
      if plan.rounds * plan.users_per_round > plan.population:
        raise guarantee_lib.PlanError(
          'rounds x users_per_round must be at most the population'
          f' {plan.population} when each user takes part once, got'
          f' {plan.rounds} x {plan.users_per_round:g}.'
        )
  if tree != isinstance(plan.sampler, OncePerTreeSampler):
    raise guarantee_lib.PlanError(
      'sampler and mechanism must belong together: a tree goes with'
      f' once-per-tree, got {plan.sampler.kind} with {plan.mechanism.kind}.'
    )
  if plan.adjacency is not legal:
    raise guarantee_lib.PlanError(
      f'adjacency must be {legal.value} for {plan.sampler.kind} sampling, got'
      f' {plan.adjacency.value}.'
    )
  if (
    isinstance(plan.mechanism, mechanisms.AdaptiveClipGaussian)
    and plan.mechanism.virtual_clients != plan.virtual_clients
  ):
    raise guarantee_lib.PlanError(
      'virtual_clients of plan and mechanism must be equal, got'
      f' {plan.virtual_clients} and {plan.mechanism.virtual_clients}.'
    )
