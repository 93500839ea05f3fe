"""Certificates: true ones verify, and any altered number is found."""

import contextlib
import copy
import json
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from dp_accounting import dp_event

from benchmarks import runner
from tff_dpemb.artifacts import documents as documents_lib
from tff_dpemb.privacy.accounting import accountant
from tff_dpemb.privacy.accounting import loss_distribution
from tff_dpemb.privacy.accounting import profile
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.certificate import signature
from tff_dpemb.privacy.certificate import statement
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

_POPULATION = 5000
_DELTA = plan_lib.default_delta(_POPULATION)
_PARTS = ('mechanism', 'sampling', 'adjacency', 'accounting', 'statement')
_KEPT = pathlib.Path(__file__).parent.parent / 'tests/privacy/kept'
# Facts that no epsilon depends on, so that only the digest, the signature or
# the artefact itself can show that they were altered.
_NO_PART_OF_EPSILON = {
  ('mechanism', 'final_clip_norm'),
  ('mechanism', 'norm_bound'),
  ('mechanism', 'covariance_floor'),
  ('mechanism', 'thresholds'),
  ('mechanism', 'queries', 'name'),
  ('sampling', 'participation'),
  # Of another method, figures may be larger than today's, never smaller.
  ('accounting', 'method', 'library'),
  ('accounting', 'method', 'version'),
  ('accounting', 'method', 'grid_points'),
  ('accounting', 'method', 'group_grid_points'),
}


def measure() -> list[runner.Measure]:
  """Alters each leaf in turn; once as it is, once with the digest made anew."""
  measures = []
  with tempfile.TemporaryDirectory() as folder:
    key = pathlib.Path(folder) / 'key'
    signature.make_key(key)
    with ledger_lib.Ledger.open(pathlib.Path(folder) / 'ledger.sqlite') as book:
      documents = {
        'model, Poisson': _model(book, _poisson_plan()),
        'model, BLT noise': _model(book, _blt_plan()),
        'synthetic set': _synthetic(book),
      }
      for name, certificate in documents.items():
        problems = verification.verify(certificate, ledger=book)
        measures.append(
          runner.equal_to(f'{name}: problems found', len(problems), target=0)
        )
        altered = resealed = naive = unsigned = 0
        signed = signature.sign(certificate, key).to_json()
        for forged in _alterations(signed):
          altered += 1
          naive += bool(verification.verify(forged))
          forged = _sealed(forged)
          forged['signature'] = None  # A forger without the key drops it.
          resealed += bool(verification.verify(forged))
          unsigned += bool(verification.verify(forged, public_key=f'{key}.pub'))
        measures += [
          runner.noted(f'{name}: alterations tried', altered),
          runner.equal_to(
            f'{name}: found', 100 * naive / altered, target=100, unit='%'
          ),
          runner.equal_to(
            f'{name}: found with the digest made anew',
            100 * resealed / altered,
            target=100,
            unit='%',
          ),
          runner.equal_to(
            f'{name}: found where a signature is asked for',
            100 * unsigned / altered,
            target=100,
            unit='%',
          ),
        ]
  return measures + _measure_kept()


def _measure_kept() -> list[runner.Measure]:
  """Verifies the kept documents as a later release would."""
  measures = []
  for path in sorted(_KEPT.glob('certificate_*.json')):
    content = json.loads(path.read_text())
    lower = copy.deepcopy(content)
    lower['accounting']['epsilon'] -= 1e-4
    lower = _sealed(lower)
    for name, release in (
      ('this release', contextlib.nullcontext()),
      ('a reworded statement', _reworded()),
      ('a finer grid', _finer_grid()),
    ):
      with release:
        measures += [
          runner.equal_to(
            f'{path.stem}, {name}: problems found',
            len(verification.verify(content)),
            target=0,
          ),
          runner.at_least(
            f'{path.stem}, {name}: problems with epsilon 1e-4 lower',
            len(verification.verify(lower)),
            target=1,
          ),
        ]
  return measures


def _reworded() -> contextlib.AbstractContextManager:
  """Returns a release whose statements read differently."""
  stack = contextlib.ExitStack()
  for name, value in (
    ('WORDING', statement.WORDING + 1),
    ('_TRUST', 'Trust whoever runs the job.'),
  ):
    stack.enter_context(mock.patch.object(statement, name, value))
  return stack


@contextlib.contextmanager
def _finer_grid() -> Iterator[None]:
  """Is a release whose loss distributions have four times as many points."""
  choose = loss_distribution.choose_grid

  def finer(counts, grid_points=loss_distribution.FINE_GRID_POINTS):
    return choose(counts, 4 * grid_points)

  points = 4 * loss_distribution.FINE_GRID_POINTS
  with (
    mock.patch.object(loss_distribution, 'choose_grid', finer),
    mock.patch.object(loss_distribution, 'FINE_GRID_POINTS', points),
  ):
    _forget_answers()
    yield
  _forget_answers()


def _forget_answers() -> None:
  accountant._answer.cache_clear()
  profile._gdp_bound.cache_clear()


def _sealed(content: dict[str, Any]) -> dict[str, Any]:
  """Returns an altered certificate with its digest made anew."""
  body = {
    key: value
    for key, value in content.items()
    if key not in ('digest', 'signature')
  }
  return {**content, 'digest': documents_lib.digest_of(body)}


def _poisson_plan() -> plan_lib.PrivacyPlan:
  return plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(_POPULATION, 256),
    mechanism=independent.AdaptiveClipGaussian(0.5, 2.0, 40),
    virtual_clients=40,
    rounds=6,
    delta=_DELTA,
  )


def _blt_plan() -> plan_lib.PrivacyPlan:
  strategy = correlated.Blt(decays=(0.9, 0.5), weights=(0.3, 0.2))
  return plan_lib.PrivacyPlan(
    sampler=samplers.MinSeparationSampler(_POPULATION, 4, 3),
    mechanism=correlated_gaussian.CorrelatedGaussian(
      0.5,
      3.0,
      strategy,
      restart_every=6,
      clipping='adaptive',
      virtual_clients=40,
    ),
    virtual_clients=40,
    rounds=12,
    delta=_DELTA,
  )


def _model(
  book: ledger_lib.Ledger, plan: plan_lib.PrivacyPlan
) -> document.Certificate:
  """Returns the certificate of a run that drew one round twice."""
  name = plan.mechanism.kind
  attempts: dict[int, int] = {}
  for number in (*range(plan.rounds), 2):
    attempts[number] = attempts.get(number, 0) + 1
    book.charge(
      population=name,
      release=f'{name}/model',
      run=name,
      event=plan.charge_event(number, attempts[number]),
      round_number=number,
      plan_digest=plan.digest(),
    )
  return build.for_training(
    plan,
    charged=facts.Charged(book, name, name, f'{name}/model'),
    context=facts.Context(simulation=False, max_examples_per_user=8),
    provenance=facts.Provenance(),
    rounds_completed=plan.rounds,
    final_clip_norm=0.41,
    participation='within',
  )


def _synthetic(book: ledger_lib.Ledger) -> document.Certificate:
  asked = (('counts', 8.0, 1), ('sums', 4.0, 2))
  queries = []
  for name, noise_multiplier, times in asked:
    queries.append(
      noise.Query(name=name, noise_multiplier=noise_multiplier, times=times)
    )
    for _ in range(times):
      book.charge(
        population='glyphs',
        release='glyphs/synthetic',
        run='glyphs',
        event=dp_event.GaussianDpEvent(noise_multiplier),
      )
  return build.for_synthesis(
    charged=facts.Charged(book, 'glyphs', 'glyphs', 'glyphs/synthetic'),
    context=facts.Context(simulation=False),
    provenance=facts.Provenance(),
    population_size=_POPULATION,
    delta=_DELTA,
    queries=queries,
    covariance_floor=1e-4,
  )


def _alterations(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
  for part in _PARTS:
    for path in _leaves(content[part], (part,)):
      names = tuple(item for item in path if isinstance(item, str))
      if names in _NO_PART_OF_EPSILON:
        continue
      value = _at(content, path)
      for other in _others(value):
        forged = copy.deepcopy(content)
        _at(forged, path[:-1])[path[-1]] = other
        yield forged


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from _leaves(inner, (*path, key))
  elif isinstance(value, list):
    for index, inner in enumerate(value):
      yield from _leaves(inner, (*path, index))
  else:
    yield path


def _others(value: Any) -> list[Any]:
  """Returns other values that a forger might put in a leaf's place."""
  if isinstance(value, bool):
    return [not value]
  if isinstance(value, int):
    return [value + 1, value - 1]
  if isinstance(value, float):
    return [1.01 * value, 0.99 * value] if value else [0.01]
  if value is None:
    return [1.0]
  return [f'{value}!']


def _at(content: Any, path: tuple[Any, ...]) -> Any:
  for key in path:
    content = content[key]
  return content
