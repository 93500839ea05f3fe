"""What an audit holds a run to."""

import math
import types

import pytest

from launch.steps.audit import claims
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.audit import bounds

_CLAIM = bounds.Claim(epsilon=3.0, delta=1e-5)


@pytest.mark.parametrize(
  ('accounting', 'epsilon', 'by'),
  [
    ({'epsilon': 2.0, 'delta': 1e-5}, 2.0, 'certificate'),
    ({'epsilon': None, 'delta': 1e-5}, math.inf, 'certificate'),
    ({'epsilon': 2.0, 'delta': 1e-6}, 3.0, 'plan'),  # Of another delta.
    (None, 3.0, 'plan'),
  ],
)
def test_a_certificate_of_the_same_delta_goes_before_the_plan(
  tmp_path, accounting, epsilon, by
):
  path = tmp_path / 'certificate.json'
  if accounting is not None:
    storage.atomic_write_json(path, {'accounting': accounting})
  claim, found = claims.certified(_CLAIM, path)
  assert (claim.epsilon, claim.delta, found) == (epsilon, 1e-5, by)


def test_without_an_export_the_plan_is_the_claim():
  assert claims.certified(_CLAIM, None) == (_CLAIM, 'plan')


@pytest.mark.parametrize('simulation', [True, False])
@pytest.mark.parametrize('trivial', [True, False])
def test_only_a_simulation_that_cannot_fail_says_so(
  capsys, simulation, trivial
):
  run = types.SimpleNamespace(
    config=types.SimpleNamespace(
      privacy=types.SimpleNamespace(simulation=simulation)
    )
  )
  claims.echo_simulation(run, types.SimpleNamespace(is_trivial=trivial))
  said = 'simulation' in capsys.readouterr().out
  assert said == (simulation and trivial)
