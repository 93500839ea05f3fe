"""A synthetic set's manifest: its form, what it refuses, one that is kept."""

import pathlib

import pytest

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.pipelines import manifest as manifest_lib

# Made once: later releases must go on to read it, to the same digests.
_KEPT = pathlib.Path(__file__).parent / 'kept' / 'synthetic' / 'manifest.json'
_DIGEST = 'dc5560e4bd6c196796df1b403efc2892197562316bcd0bff9fc5077226b04a65'
_PLAN_DIGEST = (
  'c6ccf842bac79b2c9806cde8f1f9dc7d531d9581ced3f034f14c7ea67e501a2c'
)


def _content():
  return storage.read_json(_KEPT)


def test_the_kept_manifest_is_read():
  found = manifest_lib.Manifest.read(_KEPT)
  assert found.digest == _DIGEST
  assert found.plan_digest == _PLAN_DIGEST
  assert found.file_problems(_KEPT.parent) == []
  assert found.to_json() == _content()


def test_the_plan_is_the_one_that_was_drawn():
  found = manifest_lib.Manifest.read(_KEPT)
  again = plan_lib.build(
    found.plan.classes,
    epsilon=found.plan.epsilon,
    delta=found.delta,
    projection_dim=found.projection.dim,
  )
  assert again == found.plan
  spent = plan_lib.epsilon_of_event(
    found.plan.event_of(found.charges), found.delta
  )
  assert spent == pytest.approx(found.epsilon, abs=1e-6)


def test_prose_is_no_fact():
  """A set of other words is read, too; its facts are the same."""
  content = _content()
  content['notes'].update(version=2, covered='all of it')
  content['classes'][2]['reason'] = 'too few'
  found = manifest_lib.Manifest.from_json(content)
  assert found.plan_digest == _PLAN_DIGEST


def _set(path, value):
  def change(content):
    *parents, last = path
    for name in parents:
      content = content[name]
    content[last] = value

  return change


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (_set(['schema'], 'dpemb.synthetic/1'), "'dpemb.synthetic/2'.*publish it"),
    (_set(['plan', 'adjacency'], 'replace_one'), 'plan.adjacency must be one'),
    (_set(['plan', 'unit'], 'image'), 'plan.unit must be one of'),
    (_set(['plan', 'split', 'counts'], 0.5), 'shares must sum to 1'),
    (_set(['plan', 'split', 'more'], 0.5), 'split.more is not part'),
    (_set(['plan', 'passes', 0, 'more'], 1), r'passes\[0\].more is not part'),
    (_set(['given'], 'nothing'), 'given must be one of'),
    (_set(['noise', 'certifiable'], 1), 'certifiable must be true or false'),
    (_set(['classes', 0, 'outcome'], 'lost'), r'classes\[0\].outcome must be'),
    (_set(['covariance', 0], {}), r'covariance\[0\].* must be there'),
    (_set(['examples'], 0), 'examples must be >= 1'),
    (_set(['export_digest'], 'abc'), 'export_digest must match'),
    (_set(['store_digest'], 'a' * 64), 'store_digest is not part'),
  ],
)
def test_what_breaks_the_form_is_named(change, message):
  content = _content()
  change(content)
  with pytest.raises(documents.DocumentError, match=message):
    manifest_lib.Manifest.from_json(content)
