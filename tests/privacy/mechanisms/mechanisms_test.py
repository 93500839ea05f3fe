"""Mechanisms as JSON, and back."""

import pytest

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import mechanisms


def _adaptive_tree(**changes):
  values = {'restart_every': 4, 'virtual_clients': 40} | changes
  return correlated_gaussian.CorrelatedGaussian(
    1.0, 0.5, correlated.Tree(), clipping='adaptive', **values
  )


@pytest.mark.parametrize(
  'mechanism',
  [
    independent.FixedClipGaussian(1.0, 0.5),
    independent.AdaptiveClipGaussian(1.0, 0.5, 100, learning_rate=0.1),
    correlated_gaussian.CorrelatedGaussian(1.0, 0.5, correlated.Tree()),
    correlated_gaussian.CorrelatedGaussian(
      1.0, 0.5, correlated.Banded(4), restart_every=7
    ),
    correlated_gaussian.CorrelatedGaussian(
      1.0,
      0.5,
      correlated.Blt((0.5, 0.9), (0.2, 0.1)),
      restart_every=5,
      clipping='adaptive',
      virtual_clients=100,
      learning_rate=0.1,
      target_unclipped_quantile=0.8,
    ),
  ],
)
def test_json_gives_the_mechanism_back(mechanism):
  assert mechanisms.from_json(mechanism.to_json()) == mechanism


@pytest.mark.parametrize(
  'name', ['value_noise_multiplier', 'clipped_count_stddev', 'noise_multiplier']
)
def test_json_with_a_split_that_does_not_add_up_is_refused(name):
  content = independent.AdaptiveClipGaussian(1.0, 0.5, 100).to_json()
  content[name] *= 1.01
  with pytest.raises(guarantee.PlanError, match='must be'):
    mechanisms.from_json(content)


@pytest.mark.parametrize(
  ('changes', 'match'),
  [
    ({'kind': 'blt'}, "strategy must be 'blt' as the mechanism, got 'tree'"),
    ({'kind': 'white'}, "mechanism kind must be 'fixed', 'adaptive', 'tree'"),
    ({'strategy': None}, 'a strategy must hold numbers'),
    ({'noise_multiplier': '1'}, 'noise_multiplier must be finite'),
    ({'noise_multiplier': True}, 'noise_multiplier must be finite'),
    ({'value_noise_multiplier': 'x'}, 'value_noise_multiplier must be 0.5'),
    ({'value_noise_multiplier': 0.51}, 'value_noise_multiplier must be 0.5'),
    ({'restart_every': '4'}, 'restart_every must be whole'),
    ({'virtual_clients': None}, 'virtual_clients must be whole'),
  ],
)
def test_json_that_breaks_a_rule_is_refused(changes, match):
  content = _adaptive_tree().to_json()
  assert mechanisms.from_json(content) == _adaptive_tree()
  with pytest.raises(guarantee.PlanError, match=match):
    mechanisms.from_json(content | changes)


@pytest.mark.parametrize(
  'mechanism',
  [
    independent.FixedClipGaussian(1.0, 0.5),
    independent.AdaptiveClipGaussian(1.0, 0.5, 100),
    _adaptive_tree(),
  ],
)
def test_json_with_a_field_missing_is_refused(mechanism):
  content = mechanism.to_json()
  for name in content:
    less = {key: value for key, value in content.items() if key != name}
    with pytest.raises(
      guarantee.PlanError, match=f'{name}.* must|must .*{name}'
    ):
      mechanisms.from_json(less)
