"""Verification of a certificate: nothing in it is taken on trust."""

import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.certificate import claims
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import schema
from tff_dpemb.privacy.certificate import signature
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.mechanisms import samplers

_TOLERANCE = against_ledger.TOLERANCE


def verify(
  certificate: Mapping[str, Any] | str | os.PathLike[str],
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
    certificate: The JSON value, or the path of the file.
    ledger: The ledger that was charged.
    directory: Where the artefacts lie.
    public_key: File of the key that must have signed it. Without one, a
      signature must be that of the key that it names.

  Raises:
    CertificateError: The file is no public key.
  """
  if isinstance(certificate, (str, os.PathLike)):
    path = pathlib.Path(certificate)
    try:
      content: Mapping[str, Any] = document.read(path)
    except document.CertificateError as error:
      return [str(error)]
    directory = path.parent if directory is None else directory
  else:
    content = certificate
  problems = schema.problems(content)
  if problems:
    return problems
  try:
    if document.seal(content)['digest'] != content['digest']:
      problems.append(
        'digest must be that of the content; the certificate was altered.'
      )
    problems += _extrapolations(content)
  except document.CertificateError as error:
    return [str(error)]
  except RecursionError:
    return ['certificate must not be nested too deeply.']
  problems += signature.problems(content, public_key=public_key)
  try:
    problems += _accounting_problems(content)
    problems += claims.problems(content)
  except against_ledger.ILLEGAL as error:
    problems.append(f'mechanism and sampling must be legal: {error}')
  if directory is not None:
    problems += _artifact_problems(content, pathlib.Path(directory))
  if ledger is not None:
    try:
      problems += against_ledger.problems(content, ledger)
    except against_ledger.ILLEGAL as error:
      problems.append(f'ledger: the certificate cannot be looked up: {error}')
  return problems


_NUMBERS = (
  'epsilon',
  'cross_check_epsilon',
  'discretisation',
  'mu_gdp',
  'zcdp_rho',
  'unamplified_epsilon',
  'unamplified_mu_gdp',
  'unamplified_zcdp_rho',
)
_TABLES = ('epsilon_at_deltas', 'profile', 'groups')
_TEXTS = ('event', 'accountant', 'statement', 'assumptions', 'warnings')


def _accounting_problems(content: Mapping[str, Any]) -> list[str]:
  """Checks parts 3, 6, 7, 8, 12, 14 and 16 against one another."""
  problems = []
  stated = content['accounting']
  sampling = content['sampling']
  found = document.revealed(content, stated['delta'])
  computed = document.account(found, stated['delta'])
  if not 0 < stated['delta'] < 1 / sampling['population']:
    problems.append('accounting.delta must be in (0, 1 / population).')
  for name in _NUMBERS:
    problems += _differs(f'accounting.{name}', stated[name], computed[name])
  problems += _rows_differ(
    'accounting.mu_gdp_bound',
    [stated['mu_gdp_bound'] or {}],
    [computed['mu_gdp_bound'] or {}],
  )
  for name in _TABLES:
    problems += _rows_differ(f'accounting.{name}', stated[name], computed[name])
  for name in _TEXTS:
    if stated[name] != computed[name]:
      problems.append(
        f'accounting.{name} must follow from mechanism and sampling.'
      )
  problems += _differs(
    'adjacency.sensitivity_multiple',
    content['adjacency']['sensitivity_multiple'],
    found.sensitivity,
  )
  if not content['adjacency']['population_is_public']:
    problems.append(
      'adjacency.population_is_public must be true: delta and sampling are'
      ' stated in terms of it.'
    )
  problems += _differs(
    'sampling.probability',
    sampling['probability'],
    sampling['users_per_round'] / sampling['population'],
  )
  problems += _audit_problems(content, found)
  problems += _composition_problems(content)
  if content['statement'] != document.statement(content):
    problems.append('statement must follow from accounting and composition.')
  if content['kind'] == 'model':
    problems += _model_problems(content)
  else:
    problems += _query_problems(content)
  return problems


def _model_problems(content: Mapping[str, Any]) -> list[str]:
  problems = []
  mechanism = content['mechanism']
  plan = document.plan_of(content, content['accounting']['delta'])
  if content['provenance']['plan_digest'] != plan.digest():
    problems.append(
      'provenance.plan_digest must be that of the plan that mechanism and'
      ' sampling describe.'
    )
  final = mechanism['final_clip_norm']
  if final is not None and not final > 0:
    problems.append(
      f'mechanism.final_clip_norm must be > 0 or null, got {final}.'
    )
  draws, redrawn = mechanism['draws'], mechanism['redrawn']
  if draws < 1:
    problems.append(
      f'mechanism.draws must be at least 1, got {draws}: a model without noise'
      ' drawn for it has no guarantee.'
    )
  completed, replays = mechanism['rounds_completed'], mechanism['replays']
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
  sampling = content['sampling']
  measured = sampling['participation']
  # Without sampling the accounting rests on who took part, so it must be known.
  needed = sampling['sampler'] == samplers.MinSeparationSampler.kind and draws
  if measured == 'outside' or (needed and measured != 'within'):
    problems.append(
      'sampling.participation must be within the limits of the plan, on which'
      f' the accounting rests, got {measured!r}; restore the records of the'
      " run's cohorts, without which nothing may be released."
    )
  return problems


def _audit_problems(
  content: Mapping[str, Any], found: document.Revealed
) -> list[str]:
  """Checks that no audit shows more than the accounting allows."""
  problems = []
  for index, result in enumerate(content['audit']['results']):
    name = f'audit.results[{index}]'
    if 'violation' in result['verdict'].lower():
      problems.append(f'{name}.verdict must not be {result["verdict"]!r}.')
    lower, delta = result['lower_bound'], result['delta']
    if lower is None:
      continue
    if not 0 < delta < 1:
      problems.append(f'{name}.delta must be in (0, 1), got {delta}.')
      continue
    claimed = accountant.guarantee_of_event(
      found.event, delta=delta, adjacency=found.adjacency, cross_check=False
    ).epsilon
    if lower > claimed * (1 + _TOLERANCE):
      problems.append(
        f'{name}.lower_bound must be at most the epsilon'
        f' {guarantee_lib.epsilon_text(claimed)} at delta {delta:.3g} that is'
        f' claimed, got {lower:.4g}: the audit contradicts it.'
      )
  return problems


def _rows_differ(
  name: str,
  stated: Sequence[Mapping[str, Any]],
  computed: Sequence[Mapping[str, Any]],
) -> list[str]:
  if len(stated) != len(computed):
    return [f'{name} must have {len(computed)} entries, got {len(stated)}.']
  problems = []
  for index, (one, other) in enumerate(zip(stated, computed, strict=True)):
    if set(one) != set(other):
      problems.append(f'{name}[{index}] must follow from the accounting.')
      continue
    for key in other:
      problems += _differs(f'{name}[{index}].{key}', one[key], other[key])
  return problems


def _composition_problems(content: Mapping[str, Any]) -> list[str]:
  """Checks that everything together is at least this release alone."""
  problems = []
  composition, own = content['composition'], content['accounting']
  problems += _differs('composition.delta', composition['delta'], own['delta'])
  problems += against_ledger.too_small(
    composition['epsilon'],
    guarantee_lib.epsilon_from_json(own['epsilon']),
    'accounting.epsilon, which is a part of it',
  )
  if content['release'] not in composition['releases']:
    problems.append('composition.releases must contain the release itself.')
  return problems


def _query_problems(content: Mapping[str, Any]) -> list[str]:
  """Checks that the listed queries and the overcharge are the charged draws."""
  mechanism, sampling = content['mechanism'], content['sampling']
  if not mechanism['draws'] or any(d['count'] < 1 for d in mechanism['draws']):
    return ['mechanism.draws must list what was drawn, each at least once.']
  everyone = (
    sampling['sampler'] == 'everyone'
    and sampling['users_per_round'] == sampling['population']
    and sampling['virtual_clients'] == 0
    and not content['adjacency']['shares_virtual_client']
  )
  if not everyone:
    return [
      "sampling must be 'everyone' of the population, without virtual clients:"
      ' nobody is sampled for a synthetic set.'
    ]
  for query in mechanism['queries']:
    if query.get('sensitivity', 1.0) != 1.0:
      return [
        'mechanism.queries must state noise_multiplier in units of the'
        f' sensitivity, which is then 1, got {query["sensitivity"]}.'
      ]
  overcharge = document.overcharge(mechanism['draws'], mechanism['queries'])
  stated = mechanism['overcharge']
  if overcharge is None or stated is None:
    return (
      []
      if overcharge is stated
      else [f'mechanism.overcharge must be {overcharge}, got {stated}.']
    )
  if overcharge < 0:
    return [
      'mechanism.queries must together be at most as revealing as'
      f' mechanism.draws, got {-overcharge:.9g} more (1 / noise multiplier^2).'
    ]
  if not math.isclose(
    stated, overcharge, rel_tol=_TOLERANCE, abs_tol=document.OVERCHARGE_NOISE
  ):
    return [f'mechanism.overcharge must be {overcharge}, got {stated}.']
  return []


def _differs(name: str, stated: Any, computed: Any) -> list[str]:
  if stated is None or computed is None:
    same = stated is None and computed is None
  else:
    same = math.isclose(stated, computed, rel_tol=_TOLERANCE, abs_tol=1e-300)
  return [] if same else [f'{name} must be {computed}, got {stated}.']


def _extrapolations(content: Any, name: str = 'certificate') -> list[str]:
  found = []
  if isinstance(content, Mapping):
    for key, value in content.items():
      if 'extrapolat' in str(key).lower():
        found.append(
          f'{name}.{key} must not be there: nothing like it was run.'
        )
      found += _extrapolations(value, f'{name}.{key}')
  elif isinstance(content, (list, tuple)):
    for value in content:
      found += _extrapolations(value, name)
  return found


# ---- artefacts ----


def _artifact_problems(
  content: Mapping[str, Any], directory: pathlib.Path
) -> list[str]:
  provenance = content['provenance']
  problems = []
  for name, digest in provenance['artifacts'].items():
    problems += _file_problem(directory, name, digest)
  if provenance['artifact_digest']:
    try:
      manifest = storage.read_json(directory / 'manifest.json')
      files = manifest['files']
      names = sorted(files)
    except (storage.ArtifactError, KeyError, TypeError) as error:
      return [
        *problems,
        f"manifest.json must list the certified artefacts' files: {error}",
      ]
    for name in names:
      problems += _file_problem(directory, name, files[name])
    if documents.digest_of_files(files) != provenance['artifact_digest']:
      problems.append(
        'provenance.artifact_digest must be that of the files in'
        ' manifest.json; this certificate belongs to another artefact.'
      )
  return problems


def _file_problem(directory: pathlib.Path, name: str, digest: Any) -> list[str]:
  if '\0' in name:
    return ['an artefact must have the name of a file, got one with a NUL.']
  path = directory / name
  if pathlib.PurePosixPath(name).is_absolute() or '..' in path.parts:
    return [f'artefact {name!r} must lie beside the certificate.']
  try:
    if storage.sha256_of(path) != digest:
      return [f'artefact {name!r} must have the certified SHA-256.']
  except storage.ArtifactError as error:
    return [f'artefact {name!r} must be there: {error}']
  return []
