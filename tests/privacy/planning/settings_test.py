"""From a run page to a plan: what is set, and what does not match."""

import pytest

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import correlated
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import settings as settings_lib


def _plan(population=3000, rounds=30, **settings):
  settings = {'users_per_round': 256, 'virtual_clients': 8} | settings
  return settings_lib.plan_from_config(
    config.PrivacyConfig(**settings), population=population, rounds=rounds
  )


def _schedule(noise='tree', population=3000, rounds=24, **settings):
  settings = {
    'users_per_round': 500,
    'virtual_clients': 40,
    'sampler': 'min-separation',
    'noise': noise,
    'clipping': 'fixed',
    'noise_multiplier': 5.0,
  } | settings
  return _plan(population, rounds, **settings)


@pytest.mark.parametrize(
  ('settings', 'match'),
  [
    ({'noise': 'tree'}, "got poisson; set sampler = 'min-separation'"),
    ({'noise': 'blt', 'sampler': 'fixed-size'}, 'must be min-separation for'),
    ({'min_separation': 5}, 'min_separation must be left out with poisson'),
    ({'max_participations': 5}, 'max_participations must be left out'),
    ({'restart_every': 5}, 'restart_every must be 0 with independent noise'),
    (
      {'sampler': 'min-separation', 'max_participations': 2},
      'rounds must be at most min_separation x max_participations = 11 x 2',
    ),
    (
      {'sampler': 'min-separation', 'min_separation': 3001},
      r'min_separation must be in \[1, population = 3000\]',
    ),
    (
      {'sampler': 'min-separation', 'users_per_round': 3001},
      r'users_per_round must be in \(0, population = 3000\]',
    ),
    (
      {'sampler': 'min-separation', 'noise': 'tree'},
      'restart_every must be > 0 for adaptive clipping',
    ),
    (
      {'adjacency': 'replace-one-user'},
      'adjacency must be add-or-remove-one-user for poisson',
    ),
    (
      {'sampler': 'fixed-size', 'adjacency': 'add-or-remove-one-user'},
      'adjacency must be replace-one-user for fixed-size',
    ),
  ],
)
def test_pages_that_do_not_match_are_refused(settings, match):
  with pytest.raises(guarantee.PlanError, match=match):
    _plan(**settings)


def test_a_page_sets_what_it_says():
  plan = _schedule('blt', min_separation=7, max_participations=9, blt_buffers=2)
  assert plan.sampler == samplers.MinSeparationSampler(3000, 7, 9)
  assert isinstance(plan.mechanism.strategy, correlated.Blt)
  assert len(plan.mechanism.strategy.decays) <= 2
  banded = _schedule('banded', bands=3, restart_every=6)
  assert banded.mechanism.strategy == correlated.Banded(3)
  assert banded.mechanism.restart_every == 6
