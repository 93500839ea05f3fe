"""Part 6: each mechanism has its own fields, and no other."""

import pydantic
import pytest

from tff_dpemb.artifacts import documents
from tff_dpemb.privacy.certificate import noise
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent

_TREE = correlated.Tree()
_RUN = {
  'final_clip_norm': None,
  'rounds_planned': 4,
  'rounds_completed': 4,
  'draws': 4,
  'replays': 0,
  'redrawn': 0,
}
_QUERIES = {
  'kind': 'queries',
  'draws': [],
  'queries': [],
  'overcharge': None,
  'norm_bound': 1.0,
  'covariance_floor': None,
  'thresholds': 'none',
}


class _Part(documents.Value):
  mechanism: noise.Mechanism


def _part(mechanism, **changes):
  return _Part.from_json({'mechanism': mechanism | changes}).mechanism


@pytest.mark.parametrize(
  ('mechanism', 'kind'),
  [
    (independent.FixedClipGaussian(1.0, 2.0), noise.FixedMechanism),
    (independent.AdaptiveClipGaussian(1.0, 2.0, 40), noise.AdaptiveMechanism),
    (
      correlated_gaussian.CorrelatedGaussian(1.0, 2.0, _TREE),
      noise.CorrelatedMechanism,
    ),
    (
      correlated_gaussian.CorrelatedGaussian(
        1.0,
        2.0,
        _TREE,
        restart_every=2,
        clipping='adaptive',
        virtual_clients=40,
      ),
      noise.CorrelatedAdaptiveMechanism,
    ),
  ],
)
def test_a_mechanism_has_the_part_of_its_kind(mechanism, kind):
  content = mechanism.to_json() | _RUN
  found = _part(content)
  assert type(found) is kind
  assert found.to_json() == content
  with pytest.raises(documents.DocumentError, match='more is not part'):
    _part(content, more=1)
  for name in content:
    less = {key: value for key, value in content.items() if key != name}
    with pytest.raises(documents.DocumentError):
      _part(less)


def test_queries_have_theirs():
  found = _part(_QUERIES)
  assert isinstance(found, noise.QueriesMechanism)
  assert found.to_json() == _QUERIES


@pytest.mark.parametrize(
  'change',
  [
    {'kind': 'laplace'},
    {'kind': 'fixed'},
    {'overcharge': -0.1},
    {'queries': [{'name': 'sums', 'times': 0}]},
    {'draws': [{'event': {}, 'count': 0}]},
  ],
)
def test_what_is_no_mechanism_is_refused(change):
  with pytest.raises(documents.DocumentError, match='mechanism'):
    _part(_QUERIES, **change)


def test_a_query_need_not_state_its_noise():
  query = noise.Query(name='sums')
  assert query.noise_multiplier is None
  assert query.times == 1
  with pytest.raises(pydantic.ValidationError):
    noise.Query(name='sums', times=0)
