"""Verification of a certificate: nothing in it is taken on trust.

It rests on facts. Sentences of another wording are passed over, and numbers
that another method made (a newer dp-accounting, another grid) may be larger
than what is recomputed, never smaller.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.certificate import claims
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import figures
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.certificate import signature
from tff_dpemb.privacy.certificate import statement
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib


def verify(
  certificate: document.Certificate
  | Mapping[str, Any]
  | str
  | os.PathLike[str],
  *,
  ledger: ledger_lib.Ledger | None = None,
  directory: str | os.PathLike[str] | None = None,
  public_key: str | os.PathLike[str] | None = None,
) -> list[str]:
  """Returns what is wrong with a certificate; an empty list if nothing is.

  Recomputes the accounting from mechanism and sampling alone. With a directory
  (that of the file by default) the artefacts' hashes are checked; with a
  ledger its chain, and that it holds exactly the draws that are certified.

  Args:
    certificate: The certificate, its JSON value, or the path of the file.
    ledger: The ledger that was charged.
    directory: Where the artefacts lie.
    public_key: File of the key that must have signed it. Without one, a
      signature must be that of the key that it names.

  Raises:
    CertificateError: The file is no public key.
  """
  try:
    if isinstance(certificate, (str, os.PathLike)):
      path = pathlib.Path(certificate)
      directory = path.parent if directory is None else directory
      certificate = document.Certificate.read(path)
    elif isinstance(certificate, Mapping):
      certificate = document.Certificate.from_json(
        certificate, name='certificate'
      )
  except documents.DocumentError as error:
    return list(error.problems)
  except storage.ArtifactError as error:
    return [str(error)]
  problems = []
  if certificate.digest != certificate.sealed_digest:
    problems.append(
      'digest must be that of the content; the certificate was altered.'
    )
  problems += _extrapolations(certificate.to_json())
  problems += signature.problems(certificate, public_key=public_key)
  try:
    problems += _accounting_problems(certificate)
    problems += claims.problems(certificate)
  except against_ledger.ILLEGAL as error:
    problems.append(f'mechanism and sampling must be legal: {error}')
  if directory is not None:
    problems += _artifact_problems(
      certificate.provenance, pathlib.Path(directory)
    )
  if ledger is not None:
    try:
      problems += against_ledger.problems(certificate, ledger)
    except against_ledger.ILLEGAL as error:
      problems.append(f'ledger: the certificate cannot be looked up: {error}')
  return problems


def _accounting_problems(certificate: document.Certificate) -> list[str]:
  """Checks parts 3, 6, 7, 8, 12, 14 and 16 against one another."""
  problems = []
  stated, sampling = certificate.accounting, certificate.sampling
  mechanism = certificate.mechanism
  if isinstance(mechanism, noise.QueriesMechanism):
    found = accounting.revealed_by_queries(
      mechanism.draws,
      delta=stated.delta,
      adjacency=certificate.adjacency.relation,
    )
    problems += _query_problems(certificate, mechanism)
  else:
    plan = accounting.plan_of(certificate, mechanism)
    found = accounting.revealed_by_plan(
      plan, draws=mechanism.draws, redrawn=mechanism.redrawn
    )
    problems += _model_problems(certificate, mechanism, plan)
  if not 0 < stated.delta < 1 / sampling.population:
    problems.append('accounting.delta must be in (0, 1 / population).')
  problems += figures.problems(stated, found)
  problems += figures.differs(
    'adjacency.sensitivity_multiple',
    certificate.adjacency.sensitivity_multiple,
    found.sensitivity,
  )
  if not certificate.adjacency.population_is_public:
    problems.append(
      'adjacency.population_is_public must be true: delta and sampling are'
      ' stated in terms of it.'
    )
  problems += figures.differs(
    'sampling.probability',
    sampling.probability,
    sampling.users_per_round / sampling.population,
  )
  problems += _audit_problems(certificate, found)
  problems += _composition_problems(certificate)
  problems += _statement_problems(certificate)
  return problems


def _statement_problems(certificate: document.Certificate) -> list[str]:
  """Checks the sentences, if they are of the wording that is known here."""
  wording = certificate.statement.wording
  if wording > statement.WORDING:
    return [
      f'statement.wording must be at most {statement.WORDING}, got {wording};'
      ' the certificate is of a newer release: verify it with that.'
    ]
  if wording < statement.WORDING:
    return []
  if certificate.statement != statement.of(certificate):
    return ['statement must follow from accounting and composition.']
  return []


def _model_problems(
  certificate: document.Certificate,
  mechanism: noise.ModelMechanism,
  plan: plan_lib.PrivacyPlan,
) -> list[str]:
  problems = []
  if certificate.provenance.plan_digest != plan.digest():
    problems.append(
      'provenance.plan_digest must be that of the plan that mechanism and'
      ' sampling describe.'
    )
  final = mechanism.final_clip_norm
  if final is not None and not final > 0:
    problems.append(
      f'mechanism.final_clip_norm must be > 0 or null, got {final}.'
    )
  draws, redrawn = mechanism.draws, mechanism.redrawn
  if draws < 1:
    problems.append(
      f'mechanism.draws must be at least 1, got {draws}: a model without noise'
      ' drawn for it has no guarantee.'
    )
  completed, replays = mechanism.rounds_completed, mechanism.replays
  if completed + replays != draws:
    problems.append(
      f'mechanism.draws must be rounds_completed + replays, got {draws} and'
      f' {completed} + {replays}.'
    )
  if not completed <= draws - redrawn <= plan.rounds:
    problems.append(
      'mechanism.redrawn must leave a first draw for each completed round and'
      f' none beyond the {plan.rounds} planned, got {redrawn} of {draws} draws.'
    )
  sampling = certificate.sampling
  for name in ('min_separation', 'max_participations'):
    problems += figures.differs(
      f'sampling.{name}',
      getattr(sampling, name),
      getattr(plan.sampler, name, None),
    )
  measured = sampling.participation
  # Without sampling the accounting rests on who took part, so it must be known.
  needed = sampling.sampler == samplers.MinSeparationSampler.kind and draws
  if measured == 'outside' or (needed and measured != 'within'):
    problems.append(
      'sampling.participation must be within the limits of the plan, on which'
      f' the accounting rests, got {measured!r}; restore the records of the'
      " run's cohorts, without which nothing may be released."
    )
  return problems


def _audit_problems(
  certificate: document.Certificate, found: accounting.Revealed
) -> list[str]:
  """Checks that no audit shows more than the accounting allows."""
  problems = []
  for index, result in enumerate(certificate.audit.results):
    name = f'audit.results[{index}]'
    if 'violation' in result.verdict.lower():
      problems.append(f'{name}.verdict must not be {result.verdict!r}.')
    lower, delta = result.lower_bound, result.delta
    if lower is None:
      continue
    if not 0 < delta < 1:
      problems.append(f'{name}.delta must be in (0, 1), got {delta}.')
      continue
    claimed = accountant.guarantee_of_event(
      found.event, delta=delta, adjacency=found.adjacency, cross_check=False
    ).epsilon
    if lower > claimed * (1 + figures.TOLERANCE):
      problems.append(
        f'{name}.lower_bound must be at most the epsilon'
        f' {guarantee_lib.epsilon_text(claimed)} at delta {delta:.3g} that is'
        f' claimed, got {lower:.4g}: the audit contradicts it.'
      )
  return problems


def _composition_problems(certificate: document.Certificate) -> list[str]:
  """Checks that everything together is at least this release alone."""
  composition, own = certificate.composition, certificate.accounting
  problems = figures.differs('composition.delta', composition.delta, own.delta)
  problems += figures.too_small(
    'composition.epsilon',
    composition.epsilon,
    own.epsilon,
    'accounting.epsilon, which is a part of it',
  )
  if certificate.release not in composition.releases:
    problems.append('composition.releases must contain the release itself.')
  return problems


def _query_problems(
  certificate: document.Certificate, mechanism: noise.QueriesMechanism
) -> list[str]:
  """Checks that the listed queries and the overcharge are the charged draws."""
  sampling = certificate.sampling
  if not mechanism.draws:
    return ['mechanism.draws must list what was drawn, each at least once.']
  everyone = (
    sampling.sampler == document.EVERYONE
    and sampling.users_per_round == sampling.population
    and sampling.virtual_clients == 0
    and sampling.min_separation is None
    and sampling.max_participations is None
    and not certificate.adjacency.shares_virtual_client
  )
  if not everyone:
    return [
      "sampling must be 'everyone' of the population, without virtual clients:"
      ' nobody is sampled for a synthetic set.'
    ]
  for query in mechanism.queries:
    if query.sensitivity != 1.0:
      return [
        'mechanism.queries must state noise_multiplier in units of the'
        f' sensitivity, which is then 1, got {query.sensitivity}.'
      ]
  overcharge = accounting.overcharge(mechanism.draws, mechanism.queries)
  stated = mechanism.overcharge
  if overcharge is not None and overcharge < 0:
    return [
      'mechanism.queries must together be at most as revealing as'
      f' mechanism.draws, got {-overcharge:.9g} more (1 / noise multiplier^2).'
    ]
  return figures.differs(
    'mechanism.overcharge',
    stated,
    overcharge,
    slack=accounting.OVERCHARGE_NOISE,
  )


def _extrapolations(content: Any, name: str = 'certificate') -> list[str]:
  found = []
  if isinstance(content, Mapping):
    for key, value in content.items():
      if 'extrapolat' in str(key).lower():
        found.append(
          f'{name}.{key} must not be there: nothing like it was run.'
        )
      found += _extrapolations(value, f'{name}.{key}')
  elif isinstance(content, Sequence) and not isinstance(content, str):
    for value in content:
      found += _extrapolations(value, name)
  return found


# ---- artefacts ----


def _artifact_problems(
  provenance: document.Provenance, directory: pathlib.Path
) -> list[str]:
  problems = []
  for name, digest in provenance.artifacts.items():
    problems += _file_problem(directory, name, digest)
  if provenance.artifact_digest:
    try:
      manifest = storage.read_json(directory / 'manifest.json')
      files = dict(manifest['files'])
      digest = documents.digest_of_files(files)
    except (storage.ArtifactError, KeyError, TypeError, ValueError) as error:
      return [
        *problems,
        f"manifest.json must list the certified artefacts' files: {error}",
      ]
    for name in sorted(files):
      problems += _file_problem(directory, name, files[name])
    if digest != provenance.artifact_digest:
      problems.append(
        'provenance.artifact_digest must be that of the files in'
        ' manifest.json; this certificate belongs to another artefact.'
      )
  return problems


def _file_problem(directory: pathlib.Path, name: str, digest: Any) -> list[str]:
  if '\0' in name:
    return ['an artefact must have the name of a file, got one with a NUL.']
  parts = pathlib.PurePosixPath(name)
  if parts.is_absolute() or '..' in parts.parts:
    return [f'artefact {name!r} must lie beside the certificate.']
  try:
    if storage.sha256_of(directory / name) != digest:
      return [f'artefact {name!r} must have the certified SHA-256.']
  except storage.ArtifactError as error:
    return [f'artefact {name!r} must be there: {error}']
  return []
