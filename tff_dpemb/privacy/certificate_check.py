"""Verification of a certificate: nothing in it is taken on trust."""

import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_dpemb import artifacts as artifacts_lib
from tff_dpemb.privacy import certificate_document as document
from tff_dpemb.privacy import certificate_schema
from tff_dpemb.privacy import events
from tff_dpemb.privacy import guarantee as guarantee_lib
from tff_dpemb.privacy import ledger as ledger_lib
from tff_dpemb.privacy import mechanisms

_TOLERANCE = 1e-6  # Relative; the accounting is deterministic.


def verify(
  certificate: Mapping[str, Any] | str | os.PathLike[str],
  *,
  ledger: ledger_lib.Ledger | None = None,
  directory: str | os.PathLike[str] | None = None,
) -> list[str]:
  """Returns what is wrong with a certificate; an empty list if nothing is.

  Recomputes the accounting from mechanism and sampling alone. With a directory
  (that of the file by default) the artefacts' hashes are checked; with a
  ledger its chain, and that it holds exactly the draws that are certified.

  Args:
    certificate: The JSON value, or the path of the file.
    ledger: The ledger that was charged.
    directory: Where the artefacts lie.
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
  problems = certificate_schema.problems(content)
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
  try:
    problems += _accounting_problems(content)
  except (guarantee_lib.PrivacyError, KeyError, TypeError, ValueError) as error:
    problems.append(f'mechanism and sampling must be legal: {error}')
  if directory is not None:
    problems += _artifact_problems(content, pathlib.Path(directory))
  if ledger is not None:
    problems += _ledger_problems(content, ledger)
  return problems


def _accounting_problems(content: Mapping[str, Any]) -> list[str]:
  problems = []
  stated = content['accounting']
  mechanism, sampling = content['mechanism'], content['sampling']
  computed, relation = document.account(content, stated['delta'])
  if not 0 < stated['delta'] < 1 / sampling['population']:
    problems.append('accounting.delta must be in (0, 1 / population).')
  for name in (
    'epsilon',
    'cross_check_epsilon',
    'discretisation',
    'unamplified_epsilon',
    'unamplified_mu_gdp',
    'zcdp_rho',
  ):
    problems += _differs(f'accounting.{name}', stated[name], computed[name])
  if len(stated['epsilon_at_deltas']) != 3:
    problems.append('accounting.epsilon_at_deltas must have three entries.')
  for index, (one, other) in enumerate(
    zip(
      stated['epsilon_at_deltas'],
      computed['epsilon_at_deltas'],
      strict=False,
    )
  ):
    for name in ('delta', 'epsilon'):
      problems += _differs(
        f'accounting.epsilon_at_deltas[{index}].{name}', one[name], other[name]
      )
  for name in ('event', 'accountant', 'statement', 'assumptions', 'warnings'):
    if stated[name] != computed[name]:
      problems.append(
        f'accounting.{name} must follow from mechanism and sampling.'
      )
  problems += _differs(
    'adjacency.sensitivity_multiple',
    content['adjacency']['sensitivity_multiple'],
    relation['sensitivity_multiple'],
  )
  problems += _differs(
    'sampling.probability',
    sampling['probability'],
    sampling['users_per_round'] / sampling['population'],
  )
  problems += _composition_problems(content)
  if content['statement'] != document.statement(content):
    problems.append('statement must follow from accounting and composition.')
  if content['kind'] == 'model':
    plan = document.plan_of(content, stated['delta'])
    if content['provenance']['plan_digest'] != plan.digest():
      problems.append(
        'provenance.plan_digest must be that of the plan that mechanism and'
        ' sampling describe.'
      )
    is_tree = isinstance(plan.mechanism, mechanisms.TreeGaussian)
    drawn = mechanism['draws'] * (plan.rounds if is_tree else 1)
    if mechanism['rounds_completed'] + mechanism['replays'] != drawn:
      problems.append(
        'mechanism.draws must be rounds_completed + replays, got'
        f' {drawn} and {mechanism["rounds_completed"]} +'
        f' {mechanism["replays"]}.'
      )
  else:
    problems += _query_problems(mechanism)
  return problems


def _composition_problems(content: Mapping[str, Any]) -> list[str]:
  """Checks that everything together is at least this release alone."""
  problems = []
  composition, own = content['composition'], content['accounting']
  problems += _differs('composition.delta', composition['delta'], own['delta'])
  problems += _too_small(
    composition['epsilon'],
    guarantee_lib.epsilon_from_json(own['epsilon']),
    'accounting.epsilon, which is a part of it',
  )
  if content['release'] not in composition['releases']:
    problems.append('composition.releases must contain the release itself.')
  return problems


def _too_small(stated: Any, least: float, reason: str) -> list[str]:
  """Checks composition.epsilon; null is no guarantee: infinite."""
  epsilon = guarantee_lib.epsilon_from_json(stated)
  if epsilon >= least or math.isclose(epsilon, least, rel_tol=_TOLERANCE):
    return []
  return [
    'composition.epsilon must be at least'
    f' {guarantee_lib.epsilon_text(least)} ({reason}), got {stated}.'
  ]


def _query_problems(mechanism: Mapping[str, Any]) -> list[str]:
  """Checks that the listed queries and the overcharge are the charged draws."""
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


# ---- artefacts and ledger ----


def _artifact_problems(
  content: Mapping[str, Any], directory: pathlib.Path
) -> list[str]:
  provenance = content['provenance']
  problems = []
  for name, digest in provenance['artifacts'].items():
    problems += _file_problem(directory, name, digest)
  if provenance['artifact_digest']:
    try:
      manifest = artifacts_lib.read_json(directory / 'manifest.json')
      files = manifest['files']
      names = sorted(files)
    except (artifacts_lib.ArtifactError, KeyError, TypeError) as error:
      return [
        *problems,
        f"manifest.json must list the certified artefacts' files: {error}",
      ]
    for name in names:
      problems += _file_problem(directory, name, files[name])
    if artifacts_lib.digest_of_files(files) != provenance['artifact_digest']:
      problems.append(
        'provenance.artifact_digest must be that of the files in'
        ' manifest.json; this certificate belongs to another artefact.'
      )
  return problems


def _file_problem(directory: pathlib.Path, name: str, digest: Any) -> list[str]:
  path = directory / name
  if pathlib.PurePosixPath(name).is_absolute() or '..' in path.parts:
    return [f'artefact {name!r} must lie beside the certificate.']
  try:
    if artifacts_lib.sha256_of(path) != digest:
      return [f'artefact {name!r} must have the certified SHA-256.']
  except artifacts_lib.ArtifactError as error:
    return [f'artefact {name!r} must be there: {error}']
  return []


def _ledger_problems(
  content: Mapping[str, Any], ledger: ledger_lib.Ledger
) -> list[str]:
  problems = [f'ledger: {problem}' for problem in ledger.verify()]
  provenance = content['provenance']
  count = provenance['ledger_entries']
  if count < 1 or ledger.digest_at(count) != provenance['ledger_digest']:
    problems.append(
      f'ledger: entry {count} must have the certified digest; this is another'
      ' ledger, or it was rewritten.'
    )
  problems += _composition_in_ledger(content, ledger)
  drawn = ledger.draw_counts(
    population=content['composition']['population'],
    run=content['run'],
    release=content['release'],
  )
  in_ledger = {events.canonical_text(event): times for event, times in drawn}
  mechanism = content['mechanism']
  certified: dict[str, int] = {}
  try:
    if content['kind'] == 'model':
      plan = document.plan_of(content, content['accounting']['delta'])
      is_tree = isinstance(plan.mechanism, mechanisms.TreeGaussian)
      event = plan.event(plan.rounds) if is_tree else plan.round_event()
      certified[events.canonical_text(event)] = mechanism['draws']
    else:
      for draw in mechanism['draws']:
        text = events.canonical_text(events.from_json(draw['event']))
        certified[text] = certified.get(text, 0) + draw['count']
  except (guarantee_lib.PrivacyError, KeyError, TypeError, ValueError):
    return problems  # Reported with the accounting.
  one, other = sum(certified.values()), sum(in_ledger.values())
  if one < other:
    problems.append(
      f'ledger: it holds {other} draws of this release, the certificate only'
      f' {one}: it claims less than was spent.'
    )
  elif one > other:
    problems.append(
      f'ledger: it holds {other} draws of this release, the certificate {one}.'
    )
  elif certified != in_ledger:
    problems.append('ledger: the draws of this release are other events.')
  return problems


def _composition_in_ledger(
  content: Mapping[str, Any], ledger: ledger_lib.Ledger
) -> list[str]:
  """Checks part 14 against the entries up to the certified head."""
  composition = content['composition']
  population, delta = composition['population'], composition['delta']
  until = content['provenance']['ledger_entries']
  whole, known = (
    sum(
      count
      for _, count in ledger.draw_counts(
        population=population,
        run=content['run'],
        release=content['release'],
        until=last,
      )
    )
    for last in (None, until)
  )
  problems = []
  if known < min(whole, _certified_draws(content)):
    problems.append(
      f'ledger: entry {until} must lie after the draws of this release; what'
      ' was drawn before them is left out of the composition.'
    )
  missing = set(ledger.releases(population, until=until)) - set(
    composition['releases']
  )
  if missing:
    problems.append(
      f'composition.releases must contain {sorted(missing)}, as the ledger up'
      f' to entry {until} does.'
    )
  if not 0 < delta < 1:
    return problems  # Reported with the accounting.
  return problems + _too_small(
    composition['epsilon'],
    ledger.spent(population, delta, until=until).epsilon,
    f'all draws of population {population!r} up to entry {until}',
  )


def _certified_draws(content: Mapping[str, Any]) -> int:
  draws = content['mechanism']['draws']
  if content['kind'] == 'model':
    return draws
  return sum(draw['count'] for draw in draws)
