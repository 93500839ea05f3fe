"""The certificate of a release, built from its plan and the ledger.

A certificate states, in 16 parts, what was promised about the users of one
released artefact and what that rests on. Its accounting can be recomputed from
its mechanism and sampling alone, so that nobody has to trust the figure; a
signature says who vouches for it. Extrapolated figures are never part of one.
"""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import events
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.certificate import claims
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.certificate import statement
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

# What the training loop really draws from (`training.aggregators`,
# `data.cohorts`): keep these texts and the code the same.
_NOISE_RANDOMNESS = (
  'Noise: Box-Muller normals in float64, two pairs to a value, from 64-bit'
  ' uniforms of stateless Philox, added there and rounded once, keyed for each'
  ' tensor and round by 128 fresh bits of the operating system that are never'
  ' stored.'
)
_SLOT_RANDOMNESS = (
  'Slots of virtual clients: keyed blake2b. The generators are statistical, not'
  ' cryptographic.'
)
_COHORT_RANDOMNESS = "Cohorts: NumPy's Philox, seeded by the operating system."
_PHASE_RANDOMNESS = (
  "Phases of users: Philox, keyed for the run, at the user's index; nothing"
  ' rests on their secrecy.'
)
_FLOAT_NOISE = (
  'The noise is floating-point; attacks on the low bits of floating-point'
  ' Gaussians are not covered.'
)


def for_training(
  plan: plan_lib.PrivacyPlan,
  *,
  charged: facts.Charged,
  context: facts.Context,
  provenance: facts.Provenance,
  rounds_completed: int,
  final_clip_norm: float | None = None,
  pretraining: str = 'none',
  participation: str = document.NOT_MEASURED,
  fixed_seed: bool = False,
) -> document.Certificate:
  """Returns the certificate of a trained model.

  The noise draws are read from the ledger, never from the caller: epsilon is
  that of the run *as executed*, repeated rounds included.

  Args:
    plan: What ran; each draw in the ledger must be what it charges.
    charged: Where the draws were charged.
    context: What is known about the data and their use.
    provenance: From what the model was made.
    rounds_completed: Rounds whose result is in the model.
    final_clip_norm: Clip norm after the last round.
    pretraining: Source of public pretraining.
    participation: Verdict on the plan's limits, measured on the cohorts that
      were drawn: 'within', 'outside', 'incomplete' or 'not measured'.
    fixed_seed: Whether any noise came from a fixed seed: then there is none.

  Raises:
    LedgerDamagedError: Something is wrong with the ledger.
    CertificateError: The seed was fixed, the ledger holds no draws or others
      than the plan's, fewer draws than rounds completed, or users took part
      beyond the plan's limits.
  """
  _refuse_unsafe(charged, fixed_seed)
  entries = charged.draws()
  problems = against_ledger.draw_problems(entries, plan)
  if problems or not entries:
    raise document.CertificateError(
      f'the ledger must hold draws of release {charged.release!r} of run'
      f" {charged.run!r} with the plan's events and no other, got"
      f' {len(entries)} draws; the model was trained under another plan.'
      f' {" ".join(problems[:1])}'.rstrip()
    )
  draws = len(entries)
  drawn = len({entry.round_number for entry in entries})
  if drawn < rounds_completed:
    raise document.CertificateError(
      'the ledger must hold a draw for each of the'
      f' {rounds_completed} rounds, got {drawn}.'
    )
  return _assemble(
    kind='model',
    charged=charged,
    context=context,
    provenance=provenance,
    plan=plan,
    found=accounting.revealed_by_plan(plan, draws=draws, redrawn=draws - drawn),
    delta=plan.delta,
    parts={
      'adjacency': {
        'relation': plan.adjacency.value,
        'sensitivity_multiple': plan.sensitivity,
        'shares_virtual_client': plan.shares_virtual_client,
        'population_is_public': True,
      },
      'mechanism': {
        **plan.mechanism.to_json(),
        'final_clip_norm': final_clip_norm,
        'rounds_planned': plan.rounds,
        'rounds_completed': rounds_completed,
        'draws': draws,
        'replays': draws - rounds_completed,
        'redrawn': draws - drawn,
      },
      'sampling': {
        **plan.sampler.to_json(),
        'probability': plan.sampling_probability,
        'virtual_clients': plan.virtual_clients,
        'participation': participation,
      },
      'randomness': {
        'source': ' '.join(
          (
            _NOISE_RANDOMNESS,
            _PHASE_RANDOMNESS
            if isinstance(plan.sampler, samplers.MinSeparationSampler)
            else _COHORT_RANDOMNESS,
            _SLOT_RANDOMNESS,
          )
        ),
        'numerics': _FLOAT_NOISE,
      },
    },
    public=pretraining,
    dropped_classes=None,
  )


def for_synthesis(
  *,
  charged: facts.Charged,
  context: facts.Context,
  provenance: facts.Provenance,
  population_size: int,
  delta: float,
  queries: Sequence[noise.Query],
  adjacency: guarantee_lib.Adjacency = (
    guarantee_lib.Adjacency.ADD_OR_REMOVE_ONE
  ),
  norm_bound: float | None = 1.0,
  covariance_floor: float | None = None,
  thresholds: str = 'none',
  dropped_classes: Sequence[str] = (),
  encoder: str = 'a model trained on the same users: see composition',
  noise_source: str = 'OpenDP discrete Gaussian, operating-system randomness',
  numerics: str = 'Noise is drawn on integers (discrete Gaussian).',
  fixed_seed: bool = False,
) -> document.Certificate:
  """Returns the certificate of a synthetic set.

  Everybody takes part in every query, so nothing is gained from sampling. The
  events are those that the ledger was charged for this release. The embeddings
  come from an encoder of the same users: so the accounting states what is
  revealed in addition, given the encoder, and the composition with all draws of
  the population what bounds everything together.

  Args:
    charged: Where the draws were charged.
    context: What is known about the data and their use.
    provenance: From what the set was made.
    population_size: Users of the population.
    delta: In (0, 1 / population_size).
    queries: What was asked. If each has a noise multiplier, together they must
      be at most as revealing as the draws in the ledger; what was charged
      beyond them (after a crash) is stated as overcharge.
    adjacency: Relation that the charged events refer to.
    norm_bound: L2 bound on one user's contribution.
    covariance_floor: Smallest eigenvalue that covariances were raised to.
    thresholds: Rule by which small classes are dropped.
    dropped_classes: Names of classes that were dropped.
    encoder: Which model embedded the images.
    noise_source: Generator of the noise.
    numerics: How the noise is represented.
    fixed_seed: Whether any noise came from a fixed seed: then there is none.

  Raises:
    LedgerDamagedError: Something is wrong with the ledger.
    CertificateError: The seed was fixed, the ledger holds no draws, the queries
      reveal more than was charged, or delta is out of range.
  """
  _refuse_unsafe(charged, fixed_seed)
  counts = charged.ledger.draw_counts(
    population=charged.population, run=charged.run, release=charged.release
  )
  if adjacency is not guarantee_lib.Adjacency.ADD_OR_REMOVE_ONE:
    raise document.CertificateError(
      'adjacency must be add-or-remove-one for a synthetic set, whose noise is'
      f' made for that relation, got {adjacency.value}.'
    )
  if not counts:
    raise document.CertificateError(
      f'the ledger must hold draws of release {charged.release!r} of run'
      f' {charged.run!r}, got none; charge them before the noise is drawn.'
    )
  entries = charged.ledger.entries(
    population=charged.population,
    run=charged.run,
    release=charged.release,
    kind='draw',
  )
  if found := against_ledger.rounds_among(entries):
    raise document.CertificateError(found[0])
  if population_size < 2 or not 0 < delta < 1 / population_size:
    raise document.CertificateError(
      'population_size must be at least 2 and delta in (0, 1 /'
      f' population_size), got {population_size} and {delta}.'
    )
  draws = tuple(
    noise.Draws(event=events.to_json(event), count=count)
    for event, count in counts
  )
  overcharge = accounting.overcharge(draws, queries)
  if overcharge is not None and overcharge < 0:
    raise document.CertificateError(
      'queries must together be at most as revealing as the draws in the'
      f' ledger, got {-overcharge:.9g} more (1 / noise multiplier^2): something'
      ' was drawn that was not charged.'
    )
  return _assemble(
    kind='synthetic',
    charged=charged,
    context=context,
    provenance=provenance,
    plan=None,
    found=accounting.revealed_by_queries(
      draws, delta=delta, adjacency=adjacency
    ),
    delta=delta,
    parts={
      'adjacency': {
        'relation': adjacency.value,
        'sensitivity_multiple': 1.0,
        'shares_virtual_client': False,
        'population_is_public': True,
      },
      'mechanism': {
        'kind': 'queries',
        'draws': [draw.to_json() for draw in draws],
        'queries': [query.to_json() for query in queries],
        'overcharge': overcharge,
        'norm_bound': norm_bound,
        'covariance_floor': covariance_floor,
        'thresholds': thresholds,
      },
      'sampling': {
        'sampler': document.EVERYONE,
        'population': population_size,
        'users_per_round': population_size,
        'probability': 1.0,
        'virtual_clients': 0,
        'participation': document.EVERYONE,
      },
      'randomness': {'source': noise_source, 'numerics': numerics},
    },
    public=encoder,
    dropped_classes=list(dropped_classes),
  )


def _refuse_unsafe(charged: facts.Charged, fixed_seed: bool) -> None:
  if fixed_seed:
    raise document.CertificateError(
      'noise must come from a generator seeded by the operating system; a run'
      ' with a fixed seed is for tests and gets no certificate.'
    )
  against_ledger.refuse_damaged(charged.ledger)


def _assemble(
  *,
  kind: str,
  charged: facts.Charged,
  context: facts.Context,
  provenance: facts.Provenance,
  plan: plan_lib.PrivacyPlan | None,
  found: accounting.Revealed,
  delta: float,
  parts: Mapping[str, Any],
  public: str,
  dropped_classes: list[str] | None,
) -> document.Certificate:
  """Returns the sealed certificate; what can be derived is derived here."""
  ledger, population = charged.ledger, charged.population
  count, ledger_digest = ledger.head()
  accesses = {**context.data_accesses, **claims.ACCESSES[kind]}
  own = accounting.account(found, delta)
  content = {
    **parts,
    'schema': document.Certificate.schema_of_class(),
    'kind': kind,
    'run': charged.run,
    'release': charged.release,
    'created_at': datetime.datetime.now(datetime.UTC).isoformat(
      timespec='seconds'
    ),
    'simulation': bool(context.simulation),
    'setting': {},
    'unit': {
      'user_definition': context.user_definition,
      'max_examples_per_user': context.max_examples_per_user,
    },
    'released': {
      'protected': claims.PROTECTED[kind],
      'seen_without_protection': list(context.seen_without_protection),
    },
    'data_accesses': [
      {'what': what, 'status': status} for what, status in accesses.items()
    ],
    'accounting': own.to_json(),
    'tuning': {
      'private_runs': context.tuning,
      'cost': context.tuning_cost,
      'runs_in_ledger': len(ledger.runs(population, until=count)),
    },
    'public_data': {
      'pretraining': public,
      'overlap_check': context.overlap_check,
    },
    'audit': {
      'status': 'run' if context.audits else document.NOT_RUN,
      'results': [dict(result) for result in context.audits],
    },
    'utility': {
      'status': document.NOT_RUN if context.utility is None else 'measured',
      'measures': dict(context.utility or {}),
      'dropped_classes': dropped_classes,
    },
    'composition': against_ledger.composition(
      ledger, population, own, until=count
    ).to_json(),
    'provenance': {
      **dataclasses.asdict(provenance),
      'plan_digest': provenance.plan_digest if plan is None else plan.digest(),
      'ledger_entries': count,
      'ledger_digest': ledger_digest,
    },
    'statement': {'wording': statement.WORDING},
  }
  try:
    draft = document.Certificate.from_json(content, name='certificate')
  except documents.DocumentError as error:
    raise document.CertificateError(str(error)) from error
  certificate = draft.model_copy(
    update={'statement': statement.of(draft)}
  ).sealed()
  problems = verification.verify(certificate)
  problems += against_ledger.charges_differ(
    certificate,
    charged.draws(),
  )
  if problems:
    raise document.CertificateError(' '.join(problems))
  return certificate
