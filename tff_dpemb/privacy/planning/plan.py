"""One frozen value from which sampler, mechanism, event and adjacency come.

What runs is what is accounted: training takes its cohorts, noise and ledger
entries from the same `PrivacyPlan`. A mismatch (a sampler whose event the
adjacency does not admit, correlated noise without a schedule, a cohort too
small for adaptive clipping, delta not below 1 / population) is refused when the
plan is built.
"""

import dataclasses
from typing import Any

from dp_accounting import dp_event

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.mechanisms import clipped_sum
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import mechanisms
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import matching


def default_delta(population: int) -> float:
  """Returns population ** -1.1, which is below 1 / population."""
  return float(population) ** -1.1


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

  sampler: samplers.Sampler
  mechanism: mechanisms.Mechanism
  virtual_clients: int
  rounds: int
  delta: float
  adjacency: guarantee_lib.Adjacency = guarantee_lib.Adjacency.ADD_OR_REMOVE_ONE
  shares_virtual_client: bool = True

  def __post_init__(self):
    checks.whole('virtual_clients', self.virtual_clients, 1)
    checks.whole('rounds', self.rounds, 1)
    if not (
      checks.is_number(self.delta) and 0 < self.delta < 1 / self.population
    ):
      raise guarantee_lib.PlanError(
        f'delta must be in (0, 1 / population = {1 / self.population:.3g}),'
        f' got {self.delta}; leave it out for population ** -1.1.'
      )
    matching.check(
      self.sampler,
      self.mechanism,
      virtual_clients=self.virtual_clients,
      rounds=self.rounds,
      adjacency=self.adjacency,
    )

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
    return clipped_sum.sensitivity_multiple(
      self.adjacency, shares_virtual_client=self.shares_virtual_client
    )

  @property
  def is_charged_at_start(self) -> bool:
    """Whether the first round's entry pays for the whole run.

    So it is where a schedule, not chance, says who takes part: a user's rounds
    are known beforehand, and no round has an event of its own.
    """
    return isinstance(self.sampler, samplers.MinSeparationSampler)

  def round_event(self) -> dp_event.DpEvent:
    """Returns the event of one round, to be charged before each draw.

    Raises:
      PlanError: The plan is charged once for all rounds: see `charge_event`.
    """
    if isinstance(self.sampler, samplers.MinSeparationSampler):
      raise guarantee_lib.PlanError(
        'a plan with a schedule is charged once for all its rounds, not a round'
        ' at a time; use plan.charge_event or plan.event.'
      )
    return self.sampler.event(self.mechanism.event(self.sensitivity))

  def event(self, rounds: int, replays: int = 0) -> dp_event.DpEvent:
    """Returns the event of all that a run reveals.

    Args:
      rounds: Different rounds that drew noise.
      replays: Draws of a round that had been drawn before.

    Raises:
      PlanError: A number is negative, or the plan is charged at its start and
        has fewer rounds.
    """
    checks.whole('rounds', rounds, 0)
    checks.whole('replays', replays, 0)
    if not self.is_charged_at_start:
      return self.event_with(self.mechanism, rounds + replays)
    if rounds > self.rounds:
      raise guarantee_lib.PlanError(
        f'rounds must be at most the {self.rounds} planned, got {rounds}; count'
        ' rounds that were drawn again as replays.'
      )
    whole = self.event_with(self.mechanism, rounds)
    if replays == 0:
      return whole
    again = dp_event.SelfComposedDpEvent(self.replay_event(), replays)
    return dp_event.ComposedDpEvent([whole, again])

  def replay_event(self) -> dp_event.DpEvent:
    """Returns what one repeated draw of a round reveals besides the run.

    With first attempts of rounds 0 .. t seen and some drawn again with fresh
    noise, the rows that were seen are those of C x for one legal sequence x
    (that of the last attempts), and one more for each repeated draw, whose
    sensitivity is at most the largest row's.
    """
    mechanism = self.mechanism
    if not isinstance(self.sampler, samplers.MinSeparationSampler):
      return self.round_event()
    if not isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
      return mechanism.event(self.sensitivity)
    return mechanism.replay_event(
      self.sensitivity,
      rounds=self.rounds,
      participation=self.sampler.participation,
    )

  def charge_event(self, round_number: int, attempt: int) -> dp_event.DpEvent:
    """Returns what the ledger is charged before a draw.

    Where chance says who takes part, every draw is charged the round's event.
    Where a schedule does, the first draw of round 0 pays for the whole run,
    first draws of later rounds are listed at no cost, and every repeated draw
    pays `replay_event`.

    Args:
      round_number: From 0.
      attempt: 1 for the first draw of the round.
    """
    checks.whole('round_number', round_number, 0)
    checks.whole('attempt', attempt, 1)
    if not self.is_charged_at_start:
      return self.round_event()
    if attempt > 1:
      return self.replay_event()
    if round_number > 0:
      return dp_event.NoOpDpEvent()
    return self.event(self.rounds)

  def guarantee(
    self,
    rounds_executed: int,
    *,
    replays: int = 0,
    delta: float | None = None,
  ) -> guarantee_lib.Guarantee:
    """Returns the guarantee of the rounds that drew noise.

    Args:
      rounds_executed: Different rounds; where every draw is charged alike,
        replays may be counted among them.
      replays: Repeated draws.
      delta: Default: the plan's.
    """
    return accountant.guarantee_of_event(
      self.event(rounds_executed, replays),
      delta=self.delta if delta is None else delta,
      adjacency=self.adjacency,
      assumptions=self.assumptions(),
    )

  def naive_epsilon(self, rounds: int | None = None, replays: int = 0) -> float:
    """Returns epsilon as if one user moved the sum by C only: *not valid*.

    The figure that a noise multiplier fed straight into an accountant gives;
    shown for comparison with published ones. Equal to the honest one where
    virtual clients never share.
    """
    rounds = self.rounds if rounds is None else rounds
    mechanism = self.mechanism
    if self.shares_virtual_client:
      mechanism = mechanisms.with_noise(
        mechanism,
        2 * mechanism.noise_multiplier,
        count_stddev=2 * mechanism.count_stddev,
      )
    plan = dataclasses.replace(self, mechanism=mechanism)
    return plan.guarantee(rounds, replays=replays).epsilon

  def unamplified_epsilon(
    self, rounds: int | None = None, replays: int = 0
  ) -> float:
    """Returns epsilon if nothing is gained from secret sampling."""
    return self.unamplified_guarantee(rounds, replays).epsilon

  def unamplified_guarantee(
    self, rounds: int | None = None, replays: int = 0
  ) -> guarantee_lib.Guarantee:
    """Returns the guarantee without gain from secrecy: everyone, every round.

    With a schedule there is no such gain: it is `guarantee`.
    """
    number = self.rounds if rounds is None else rounds
    if self.is_charged_at_start:
      return self.guarantee(number, replays=replays)
    return accountant.guarantee_of_event(
      dp_event.SelfComposedDpEvent(
        self.mechanism.event(self.sensitivity), number + replays
      ),
      delta=self.delta,
      adjacency=self.adjacency,
      assumptions=('Every user is taken to be in every round.',),
    )

  def assumptions(self) -> tuple[str, ...]:
    """Returns the sentences that the guarantee rests on."""
    shared = (
      'Users share virtual clients'
      if self.shares_virtual_client
      else 'No virtual client holds more than one user'
    )
    return (
      self.sampler.assumption(),
      f'{shared}: one user moves the sum by at most {self.sensitivity:g} x'
      ' clip_norm.',
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the whole plan as a JSON value."""
    return {
      **self.sampler.to_json(),
      'virtual_clients': self.virtual_clients,
      'rounds': self.rounds,
      'delta': self.delta,
      'adjacency': self.adjacency.value,
      'shares_virtual_client': self.shares_virtual_client,
      'mechanism': self.mechanism.to_json(),
    }

  @classmethod
  def from_json(cls, content: dict[str, Any]) -> 'PrivacyPlan':
    """Inverse of `to_json`; a value that breaks a rule raises PlanError.

    Sensitivities are computed from the values, never read.
    """
    try:
      relation = content['adjacency']
      if relation not in list(guarantee_lib.Adjacency):
        raise guarantee_lib.PlanError(
          'adjacency must be one of'
          f' {", ".join(guarantee_lib.Adjacency)}, got {relation!r}.'
        )
      shares = content['shares_virtual_client']
      if not isinstance(shares, bool):
        raise guarantee_lib.PlanError(
          f'shares_virtual_client must be true or false, got {shares!r}.'
        )
      return cls(
        sampler=samplers.from_json(content),
        mechanism=mechanisms.from_json(content['mechanism']),
        virtual_clients=content['virtual_clients'],
        rounds=content['rounds'],
        delta=content['delta'],
        adjacency=guarantee_lib.Adjacency(relation),
        shares_virtual_client=shares,
      )
    except KeyError as error:
      raise guarantee_lib.PlanError(f'a plan must have {error}.') from error

  def digest(self) -> str:
    """Returns the SHA-256 hex digest of the canonical JSON of the plan."""
    return documents.digest_of(self.to_json())

  def event_with(
    self, mechanism: mechanisms.Mechanism, rounds: int
  ) -> dp_event.DpEvent:
    """Returns the event of the first `rounds` rounds with another mechanism."""
    if rounds == 0:
      return dp_event.NoOpDpEvent()
    if not isinstance(self.sampler, samplers.MinSeparationSampler):
      one = self.sampler.event(mechanism.event(self.sensitivity))
      return dp_event.SelfComposedDpEvent(one, rounds)
    participation = self.sampler.participation
    if isinstance(mechanism, correlated_gaussian.CorrelatedGaussian):
      return mechanism.run_event(
        self.sensitivity, rounds=rounds, participation=participation
      )
    return dp_event.SelfComposedDpEvent(
      mechanism.event(self.sensitivity), participation.most(rounds)
    )
