"""What a plan says to people: splits, noise to signal, warnings."""

import pytest

from tff_dpemb import config
from tff_dpemb.privacy.planning import explanation
from tff_dpemb.privacy.planning import settings as settings_lib

_ADAPTIVE = {'clipping': 'adaptive', 'restart_every': 8}


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


def test_explain_shows_the_split_and_a_clip_that_never_adapts():
  # Field reports: m 500, z 1 -> z_value 1.0002, sigma_b 25.
  lines = '\n'.join(
    explanation.explain(_plan(virtual_clients=500, noise_multiplier=1.0))
  )
  assert 'on the value 1.0002, clipped count stddev 25' in lines
  assert 'never adapts' not in lines
  assert 'never adapts' in '\n'.join(
    explanation.explain(_plan(clip_learning_rate=0.0))
  )


def test_explain_shows_noise_and_signal_and_the_gain():
  # Noise 5 / 40 of the clip in each of 10^4 coordinates: norm 12.5 clips.
  lines = '\n'.join(explanation.explain(_schedule('blt'), parameters=10**4))
  assert 'noise to signal of a round: 12.5 ' in lines
  own, independent = explanation.strategy_errors(_schedule('blt'))
  ratio = own.largest / independent.largest
  assert ratio < 0.6
  assert f'{ratio:.3g} x that of independent noise' in lines
  assert 'the same in every round' in lines
  adaptive = '\n'.join(explanation.explain(_schedule('tree', **_ADAPTIVE)))
  assert 'every 8 rounds, as the noise restarts' in adaptive
  assert 'noise to signal' not in adaptive
  assert explanation.strategy_errors(_plan()) is None


@pytest.mark.parametrize(
  ('settings', 'match'),
  [
    ({'clipping': 'adaptive', 'restart_every': 24}, 'is not below rounds 24'),
    ({'noise': 'tree', 'restart_every': 2}, 'worse than independent noise'),
    ({'users_per_round': 30}, 'fewer users a round than virtual clients'),
  ],
)
def test_explain_warns(settings, match):
  assert not explanation.warnings(_schedule('blt'))
  assert match in '\n'.join(explanation.explain(_schedule(**settings)))
