"""The document that goes with each release, and its verification.

A certificate states, in 16 parts, what was promised about the users of one
released artefact and what that rests on. Its accounting can be recomputed from
its mechanism and sampling alone, so that nobody has to trust the figure.
Extrapolated figures are never part of one.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from tff_dpemb import artifacts as artifacts_lib
from tff_dpemb.privacy import certificate_check
from tff_dpemb.privacy import certificate_document as document
from tff_dpemb.privacy import certificate_page
from tff_dpemb.privacy import certificate_schema
from tff_dpemb.privacy import events
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy import ledger as ledger_lib
from tff_dpemb.privacy import mechanisms
from tff_dpemb.privacy import plan as plan_lib

NOT_RUN = certificate_schema.NOT_RUN
NOT_COVERED = certificate_schema.NOT_COVERED

CertificateError = document.CertificateError
seal = document.seal
read = document.read
write = document.write
digest_of_files = artifacts_lib.digest_of_files
verify = certificate_check.verify
to_markdown = certificate_page.to_markdown
to_html = certificate_page.to_html

# What the training loop really draws from (`training.aggregators`,
# `data.cohorts`): keep these texts and the code the same.
_TRAINING_RANDOMNESS = (
  "Noise: TensorFlow's stateless Philox normal, keyed for each tensor and round"
  ' by 128 fresh bits of the operating system that are never stored. Cohorts:'
  " NumPy's Philox, seeded by the operating system; slots of virtual clients:"
  ' keyed blake2b. Both generators are statistical, not cryptographic.'
)
_FLOAT_NOISE = (
  'The noise is floating-point; attacks on the low bits of floating-point'
  ' Gaussians are not covered.'
)


def build_for_training(
  *,
  plan: plan_lib.PrivacyPlan,
  ledger: ledger_lib.Ledger,
  population: str,
  run: str,
  release: str,
  rounds_completed: int,
  simulation: bool,
  final_clip_norm: float | None = None,
  max_examples_per_user: int | None = None,
  user_definition: str = 'one identity of the private store is one user',
  seen_without_protection: Sequence[str] = (),
  data_accesses: Mapping[str, str] | None = None,
  tuning: str = NOT_COVERED,
  tuning_cost: str = NOT_COVERED,
  pretraining: str = 'none',
  overlap_check: str = NOT_RUN,
  participation: str = 'not measured',
  fixed_seed: bool = False,
  utility: Mapping[str, Any] | None = None,
  audit: Mapping[str, Any] | None = None,
  artifacts: Mapping[str, str] | None = None,
  artifact_digest: str = '',
  config_digest: str = '',
  code_revision: str = '',
  data_digest: str = '',
  lock_digest: str = '',
) -> dict[str, Any]:
  """Returns the certificate of a trained model as a JSON value.

  The number of noise draws is read from the ledger, never from the caller:
  epsilon is that of the run *as executed*, replayed rounds included.

  Args:
    plan: What ran; its round event must be what the ledger was charged.
    ledger: Where the draws were charged.
    population: Name of the population that paid.
    run: Run name in the ledger.
    release: Release name in the ledger, for example 'quickstart/model'.
    rounds_completed: Rounds whose result is in the model.
    simulation: Whether the noise stands for that of a larger population; then
      the certificate says so, and `serve` refuses it unless asked by name.
    final_clip_norm: Clip norm after the last round.
    max_examples_per_user: Cap per user and round.
    user_definition: What a user is.
    seen_without_protection: What engineers see of the private data without
      noise (names of metrics, not values).
    data_accesses: {what: 'covered', 'public' or 'not covered'}; adds to and
      overrides the usual list.
    tuning: How many runs on private data chose the settings, and how.
    tuning_cost: What these runs cost.
    pretraining: Source of public pretraining.
    overlap_check: How private users were looked for in public data.
    participation: Limits on participation measured from the run's log.
    fixed_seed: Whether any noise came from a fixed seed: then there is none.
    utility: Figures on held-out data, JSON values.
    audit: Result of an empirical audit, JSON values.
    artifacts: {relative path: SHA-256 of the file} beside the certificate.
    artifact_digest: Digest over `{path: SHA-256}` of the files that the
      `manifest.json` beside the certificate lists (`digest_of_files`).
    config_digest: Of the run page.
    code_revision: Version of the code.
    data_digest: Of the manifest of the private store.
    lock_digest: Of the lock file.

  Raises:
    CertificateError: The seed was fixed, the ledger holds no draws or other
      events than the plan's, or fewer draws than rounds completed.
  """
  _refuse_fixed_seed(fixed_seed)
  counts = ledger.draw_counts(population=population, run=run, release=release)
  draws = sum(count for _, count in counts)
  is_tree = isinstance(plan.mechanism, mechanisms.TreeGaussian)
  expected = plan.event(plan.rounds) if is_tree else plan.round_event()
  texts = {events.canonical_text(event) for event, _ in counts}
  if texts != {events.canonical_text(expected)}:
    raise CertificateError(
      f'the ledger must hold draws of release {release!r} of run {run!r} with'
      f" the plan's event and no other, got {draws} draws of {len(texts)}"
      ' kinds; the model was trained under another plan.'
    )
  rounds_drawn = draws * plan.rounds if is_tree else draws
  if rounds_drawn < rounds_completed:
    raise CertificateError(
      'the ledger must hold a draw for each of the'
      f' {rounds_completed} rounds, got {draws}.'
    )
  mechanism = {
    **plan.mechanism.to_json(),
    'final_clip_norm': final_clip_norm,
    'rounds_planned': plan.rounds,
    'rounds_completed': rounds_completed,
    'draws': draws,
    'replays': max(0, rounds_drawn - rounds_completed),
  }
  sampling = {
    'sampler': plan.sampler.kind,
    'population': plan.population,
    'users_per_round': plan.users_per_round,
    'probability': plan.sampling_probability,
    'virtual_clients': plan.virtual_clients,
    'participation': participation,
  }
  adjacency = {
    'relation': plan.adjacency.value,
    'sensitivity_multiple': plan.sensitivity,
    'shares_virtual_client': plan.shares_virtual_client,
    'population_is_public': True,
  }
  accesses = {
    'updates of the backbone in each round': 'covered',
    'clip norm of each round': 'covered',
    'choice of settings (tuning)': NOT_COVERED,
    'normalisation of images': 'public',
    'number of users and of identities': 'public',
    'training metrics (loss, cohort sizes)': NOT_COVERED,
    'evaluation on held-out identities': NOT_COVERED,
  }
  return _assemble(
    kind='model',
    ledger=ledger,
    population=population,
    run=run,
    release=release,
    simulation=simulation,
    adjacency=adjacency,
    mechanism=mechanism,
    sampling=sampling,
    delta=plan.delta,
    plan_digest=plan.digest(),
    protected=[
      'the final model and every checkpoint of the backbone',
      'the clip norms of all rounds',
    ],
    accesses={**accesses, **(data_accesses or {})},
    numerics=_FLOAT_NOISE,
    noise_source=_TRAINING_RANDOMNESS,
    max_examples_per_user=max_examples_per_user,
    user_definition=user_definition,
    seen_without_protection=seen_without_protection,
    tuning=tuning,
    tuning_cost=tuning_cost,
    pretraining=pretraining,
    overlap_check=overlap_check,
    utility=utility,
    dropped_classes='not applicable',
    audit=audit,
    artifacts=artifacts,
    artifact_digest=artifact_digest,
    config_digest=config_digest,
    code_revision=code_revision,
    data_digest=data_digest,
    lock_digest=lock_digest,
  )


def build_for_synthesis(
  *,
  ledger: ledger_lib.Ledger,
  population: str,
  run: str,
  release: str,
  population_size: int,
  delta: float,
  simulation: bool,
  queries: Sequence[Mapping[str, Any]],
  adjacency: guarantee_lib.Adjacency = (
    guarantee_lib.Adjacency.ADD_OR_REMOVE_ONE
  ),
  norm_bound: float | None = 1.0,
  covariance_floor: float | None = None,
  thresholds: str = 'none',
  dropped_classes: Sequence[str] | str = (),
  max_examples_per_user: int | None = None,
  user_definition: str = 'one identity of the private store is one user',
  seen_without_protection: Sequence[str] = (),
  data_accesses: Mapping[str, str] | None = None,
  encoder: str = 'a model trained on the same users: see composition',
  overlap_check: str = NOT_RUN,
  noise_source: str = 'OpenDP discrete Gaussian, operating-system randomness',
  numerics: str = 'Noise is drawn on integers (discrete Gaussian).',
  fixed_seed: bool = False,
  tuning: str = NOT_COVERED,
  tuning_cost: str = NOT_COVERED,
  utility: Mapping[str, Any] | None = None,
  audit: Mapping[str, Any] | None = None,
  artifacts: Mapping[str, str] | None = None,
  artifact_digest: str = '',
  plan_digest: str = '',
  config_digest: str = '',
  code_revision: str = '',
  data_digest: str = '',
  lock_digest: str = '',
) -> dict[str, Any]:
  """Returns the certificate of a synthetic set as a JSON value.

  Everybody takes part in every query, so nothing is gained from sampling. The
  events are those that the ledger was charged for this release. The embeddings
  come from an encoder of the same users: so the accounting states what is
  revealed in addition, given the encoder, and the composition with all draws of
  the population what bounds everything together. Further arguments and errors
  as for `build_for_training`.

  Args:
    queries: One mapping a query ('name', 'noise_multiplier', 'sensitivity',
      'times' and what else there is to say). If each has a 'noise_multiplier',
      together they must be at most as revealing as the draws in the ledger;
      what was charged beyond them (after a crash) is stated as overcharge.
    population_size: Users of the population.
    delta: In (0, 1 / population_size).
    norm_bound: L2 bound on one user's contribution.
    covariance_floor: Smallest eigenvalue that covariances were raised to.
    thresholds: Rule by which small classes are dropped.
    dropped_classes: Names of classes that were dropped.
    encoder: Which model embedded the images.
  """
  _refuse_fixed_seed(fixed_seed)
  counts = ledger.draw_counts(population=population, run=run, release=release)
  if not counts:
    raise CertificateError(
      f'the ledger must hold draws of release {release!r} of run {run!r}, got'
      ' none; charge them before the noise is drawn.'
    )
  if population_size < 2 or not 0 < delta < 1 / population_size:
    raise CertificateError(
      'population_size must be at least 2 and delta in (0, 1 /'
      f' population_size), got {population_size} and {delta}.'
    )
  draws = [
    {'event': events.to_json(event), 'count': count} for event, count in counts
  ]
  overcharge = document.overcharge(draws, queries)
  if overcharge is not None and overcharge < 0:
    raise CertificateError(
      'queries must together be at most as revealing as the draws in the'
      f' ledger, got {-overcharge:.9g} more (1 / noise multiplier^2): something'
      ' was drawn that was not charged.'
    )
  mechanism = {
    'kind': 'queries',
    'draws': draws,
    'queries': [dict(query) for query in queries],
    'overcharge': overcharge,
    'norm_bound': norm_bound,
    'covariance_floor': covariance_floor,
    'thresholds': thresholds,
  }
  sampling = {
    'sampler': 'everyone',
    'population': population_size,
    'users_per_round': population_size,
    'probability': 1.0,
    'virtual_clients': 0,
    'participation': 'every user takes part in every query',
  }
  accesses = {
    'sums, counts and second moments of embeddings': 'covered',
    'training of the encoder (bounded by the composition only)': NOT_COVERED,
    'set of classes': 'public',
    'choice of settings (tuning)': NOT_COVERED,
    'evaluation on real held-out data': NOT_COVERED,
  }
  return _assemble(
    kind='synthetic',
    ledger=ledger,
    population=population,
    run=run,
    release=release,
    simulation=simulation,
    adjacency={
      'relation': adjacency.value,
      'sensitivity_multiple': 1.0,
      'shares_virtual_client': False,
      'population_is_public': True,
    },
    mechanism=mechanism,
    sampling=sampling,
    delta=delta,
    plan_digest=plan_digest,
    protected=['the mixture and every set sampled from it'],
    accesses={**accesses, **(data_accesses or {})},
    numerics=numerics,
    noise_source=noise_source,
    max_examples_per_user=max_examples_per_user,
    user_definition=user_definition,
    seen_without_protection=seen_without_protection,
    tuning=tuning,
    tuning_cost=tuning_cost,
    pretraining=encoder,
    overlap_check=overlap_check,
    utility=utility,
    dropped_classes=(
      dropped_classes
      if isinstance(dropped_classes, str)
      else list(dropped_classes)
    ),
    audit=audit,
    artifacts=artifacts,
    artifact_digest=artifact_digest,
    config_digest=config_digest,
    code_revision=code_revision,
    data_digest=data_digest,
    lock_digest=lock_digest,
  )


def _refuse_fixed_seed(fixed_seed: bool) -> None:
  if fixed_seed:
    raise CertificateError(
      'noise must come from a generator seeded by the operating system; a run'
      ' with a fixed seed is for tests and gets no certificate.'
    )


def _assemble(
  *,
  kind: str,
  ledger: ledger_lib.Ledger,
  population: str,
  run: str,
  release: str,
  simulation: bool,
  adjacency: dict[str, Any],
  mechanism: dict[str, Any],
  sampling: dict[str, Any],
  delta: float,
  plan_digest: str,
  protected: list[str],
  accesses: Mapping[str, str],
  numerics: str,
  noise_source: str,
  max_examples_per_user: int | None,
  user_definition: str,
  seen_without_protection: Sequence[str],
  tuning: str,
  tuning_cost: str,
  pretraining: str,
  overlap_check: str,
  utility: Mapping[str, Any] | None,
  dropped_classes: list[str] | str,
  audit: Mapping[str, Any] | None,
  artifacts: Mapping[str, str] | None,
  artifact_digest: str,
  config_digest: str,
  code_revision: str,
  data_digest: str,
  lock_digest: str,
) -> dict[str, Any]:
  count, ledger_digest = ledger.head()
  content: dict[str, Any] = {
    'schema': certificate_schema.SCHEMA_NAME,
    'kind': kind,
    'run': run,
    'release': release,
    'created_at': datetime.datetime.now(datetime.UTC).isoformat(
      timespec='seconds'
    ),
    'simulation': bool(simulation),
    'setting': {
      'model': 'central differential privacy',
      'trust': (
        'Whoever runs the job holds the raw images and is trusted; whoever'
        ' gets the released artefact is not.'
      ),
    },
    'unit': {
      'unit': guarantee_lib.PrivacyUnit.USER.value,
      'user_definition': user_definition,
      'duplicate_ids': 'a user id that turns up twice is one user',
      'max_examples_per_user': max_examples_per_user,
    },
    'adjacency': adjacency,
    'released': {
      'protected': protected,
      'seen_without_protection': list(seen_without_protection),
    },
    'data_accesses': [
      {'what': what, 'status': status} for what, status in accesses.items()
    ],
    'mechanism': mechanism,
    'sampling': sampling,
    'accounting': {},
    'tuning': {'private_runs': tuning, 'cost': tuning_cost},
    'public_data': {
      'pretraining': pretraining,
      'overlap_check': overlap_check,
    },
    'randomness': {
      'source': noise_source,
      'seed': 'none fixed, none stored',
      'numerics': numerics,
    },
    'audit': (
      {'status': NOT_RUN}
      if audit is None
      else {'status': 'run', 'result': dict(audit)}
    ),
    'utility': {
      'status': NOT_RUN if utility is None else 'measured',
      'measures': dict(utility or {}),
      'dropped_classes': dropped_classes,
    },
    'composition': {},
    'provenance': {
      'plan_digest': plan_digest,
      'config_digest': config_digest,
      'code_revision': code_revision or 'unknown',
      'data_digest': data_digest or 'unknown',
      'lock_digest': lock_digest or 'unknown',
      'artifacts': dict(artifacts or {}),
      'artifact_digest': artifact_digest,
      'ledger_entries': count,
      'ledger_digest': ledger_digest,
    },
  }
  content['accounting'], _ = document.account(content, delta)
  content['composition'] = _composition(
    ledger, population, content['accounting'], until=count
  )
  content['statement'] = document.statement(content)
  content = document.seal(content)
  problems = verify(content)
  if problems:
    raise CertificateError(' '.join(problems))
  return content


def _composition(
  ledger: ledger_lib.Ledger,
  population: str,
  accounting: Mapping[str, Any],
  *,
  until: int,
) -> dict[str, Any]:
  """Returns part 14: all draws of a population up to an entry of the ledger.

  At the release's own delta, so that both figures can be compared.
  """
  delta = accounting['delta']
  spent = ledger.spent(population, delta, until=until)
  own = guarantee_lib.epsilon_from_json(accounting['epsilon'])
  budget = ledger.budget(population)
  remaining = None
  if budget is not None:
    of_budget = ledger.spent(population, budget.delta, until=until)
    remaining = max(0.0, budget.epsilon - of_budget.epsilon)
  return {
    'population': population,
    # Two accountants' grids may differ: never below the release's own figure.
    'epsilon': guarantee_lib.epsilon_to_json(max(spent.epsilon, own)),
    'delta': delta,
    'releases': ledger.releases(population, until=until),
    'budget_epsilon': None if budget is None else budget.epsilon,
    'budget_delta': None if budget is None else budget.delta,
    'remaining_epsilon': remaining,
  }
