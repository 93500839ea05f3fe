"""Parts of a plan that do not go together are refused."""

import math

import pytest

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import correlated_gaussian
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib


def _values(**changes):
  values = {
    'sampler': samplers.PoissonSampler(1000, 10),
    'mechanism': independent.FixedClipGaussian(1.0, 1.0),
    'virtual_clients': 4,
    'rounds': 5,
    'delta': 1e-5,
    'adjacency': guarantee.Adjacency.ADD_OR_REMOVE_ONE,
  }
  return values | changes


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      {'adjacency': guarantee.Adjacency.REPLACE_ONE},
      'adjacency must be add-or-remove',
    ),
    (
      {'sampler': samplers.FixedSizeSampler(1000, 10)},
      'adjacency must be replace-one',
    ),
    (
      {
        'mechanism': correlated_gaussian.CorrelatedGaussian(
          1.0, 1.0, correlated.Tree()
        )
      },
      'sampler must be min-separation for tree noise',
    ),
    (
      {
        'sampler': samplers.FixedSizeSampler(1000, 10),
        'mechanism': correlated_gaussian.CorrelatedGaussian(
          1.0, 1.0, correlated.Tree()
        ),
        'adjacency': guarantee.Adjacency.REPLACE_ONE,
      },
      'sampler must be min-separation for tree noise',
    ),
    (
      {'sampler': samplers.MinSeparationSampler(1000, 2, 2)},
      r'rounds must be at most min_separation x max_participations = 2 x 2',
    ),
    (
      {
        'sampler': samplers.MinSeparationSampler(1000, 2, 3),
        'mechanism': correlated_gaussian.CorrelatedGaussian(
          1.0,
          1.0,
          correlated.Tree(),
          clipping='adaptive',
          restart_every=2,
          virtual_clients=4,
        ),
      },
      # A user of 3 rounds is in 2 + 2 + 1 nodes: sqrt(3) / 2 / sqrt(5).
      'clipped_count_stddev must be at least 0.3873 .*got 0.2.*clients to 8',
    ),
    (
      {
        'sampler': samplers.MinSeparationSampler(10**4, 5000, 1),
        'mechanism': correlated_gaussian.CorrelatedGaussian(
          1.0, 1.0, correlated.Tree()
        ),
        'rounds': 4097,
      },
      r'rounds must be in \[1, 4096\]',
    ),
    (
      {'mechanism': independent.AdaptiveClipGaussian(1.0, 0.1, 5)},
      'virtual_clients of plan and mechanism must be equal',
    ),
    ({'virtual_clients': 0}, 'virtual_clients must be whole and >= 1'),
    ({'virtual_clients': 2.5}, 'virtual_clients must be whole and >= 1'),
    ({'rounds': 2.5}, 'rounds must be whole and >= 1'),
    ({'delta': math.nan}, 'delta must be in'),
  ],
)
def test_mismatches_are_refused(changes, message):
  plan_lib.PrivacyPlan(**_values())
  with pytest.raises(guarantee.PlanError, match=message):
    plan_lib.PrivacyPlan(**_values(**changes))
