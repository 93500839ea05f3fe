"""Certificates to test with: a run of six rounds, a synthetic set, a tree."""

import collections
import copy
import dataclasses

from dp_accounting import dp_event

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.certificate import statement
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib

PLAN = plan_lib.PrivacyPlan(
  sampler=samplers.PoissonSampler(5000, 256),
  mechanism=independent.AdaptiveClipGaussian(0.5, 2.0, 40),
  virtual_clients=40,
  rounds=6,
  delta=5000**-1.1,
)


QUERIES = (
  noise.Query(name='counts', noise_multiplier=8.0),
  noise.Query(name='sums', noise_multiplier=4.0, times=2),
)


RELEASE_EVENT = dp_event.ComposedDpEvent(
  [
    dp_event.GaussianDpEvent(8.0),
    dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 2),
  ]
)


def charge(book, number, **changes):
  values = {
    'population': 'glyphs',
    'release': 'quick/model',
    'run': 'quick',
    'event': PLAN.round_event(),
    'round_number': number,
  }
  return book.charge(**(values | changes))


_CONTEXT = {field.name for field in dataclasses.fields(facts.Context)}


_PROVENANCE = {field.name for field in dataclasses.fields(facts.Provenance)}


def _arguments(book, values):
  """Sorts flat values into what the builders take."""
  charged = {
    name: values.pop(name) for name in ('population', 'run', 'release')
  }
  context = {name: values.pop(name) for name in _CONTEXT & set(values)}
  provenance = {name: values.pop(name) for name in _PROVENANCE & set(values)}
  return values | {
    'charged': facts.Charged(book, **charged),
    'context': facts.Context(**context),
    'provenance': facts.Provenance(**provenance),
  }


def for_training(book, plan=PLAN, **changes):
  values = {
    'population': 'glyphs',
    'run': 'quick',
    'release': 'quick/model',
    'rounds_completed': 6,
    'simulation': False,
    'final_clip_norm': 0.41,
    'max_examples_per_user': 8,
    'seen_without_protection': ('training loss', 'cohort sizes'),
    'config_digest': 'b' * 64,
    'code_revision': 'c0ffee',
  }
  return build.for_training(
    plan, **_arguments(book, values | changes)
  ).to_json()


def for_synthesis(book, **changes):
  values = {
    'population': 'glyphs',
    'run': 'quick',
    'release': 'quick/synthetic',
    'population_size': 5000,
    'delta': PLAN.delta,
    'simulation': False,
    'queries': QUERIES,
    'covariance_floor': 1e-4,
    'dropped_classes': ('radical 9',),
    'utility': {'accuracy': 0.7},
  }
  return build.for_synthesis(**_arguments(book, values | changes)).to_json()


def sealed(content):
  """Returns an altered certificate with its digest made anew."""
  body = {
    key: value
    for key, value in content.items()
    if key not in ('digest', 'signature')
  }
  return {**content, 'digest': documents.digest_of(body)}


def stated(content):
  """Returns the statement that follows from an altered certificate."""
  return statement.of(document.Certificate.from_json(content)).to_json()


def alter(content, path, value):
  *parents, last = path
  for key in parents:
    content = content[key]
  assert content[last] != value
  content[last] = value


TREE_PLAN = plan_lib.PrivacyPlan(
  sampler=samplers.MinSeparationSampler(5000, 4, 2),
  mechanism=correlated_gaussian.CorrelatedGaussian(
    0.5, 8.0, correlated.Tree(), restart_every=4
  ),
  virtual_clients=40,
  rounds=8,
  delta=5000**-1.1,
)


TREE = {
  'population': 'trees',
  'run': 'tree',
  'release': 'tree/model',
  'rounds_completed': 8,
  'participation': 'within',
}


def charge_tree(book, rounds):
  """Charges rounds as training does: each by its attempt."""
  attempts = collections.Counter()
  for number in rounds:
    attempts[number] += 1
    charge(
      book,
      number,
      population='trees',
      run='tree',
      release='tree/model',
      event=TREE_PLAN.charge_event(number, attempts[number]),
      plan_digest=TREE_PLAN.digest(),
    )


def forged(content, **parts):
  content = copy.deepcopy(content)
  for name, changes in parts.items():
    content[name].update(changes)
  content['statement'] = stated(content)
  return sealed(content)


def audit(lower_bound, *, delta=PLAN.delta, verdict='consistent'):
  return {
    'method': 'one-shot canaries',
    'mode': 'all iterates',
    'canaries': 200,
    'confidence': 0.95,
    'delta': delta,
    'lower_bound': lower_bound,
    'estimate': 1.0,
    'verdict': verdict,
  }
