"""The least noise for a budget, against figures found independently."""

import pytest
from dp_accounting import gaussian_mechanism

from tff_dpemb import config
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import calibration
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.privacy.planning import settings as settings_lib


def _everyone(delta, *, rounds=16, clip_norm=2.0):
  """Returns a plan of unsampled Gaussians, one user a virtual client."""
  return plan_lib.PrivacyPlan(
    sampler=samplers.PoissonSampler(100, 100),
    mechanism=independent.FixedClipGaussian(clip_norm, 0.0),
    virtual_clients=100,
    rounds=rounds,
    delta=delta,
    shares_virtual_client=False,
  )


def test_golden_calibration():
  # Shared research, section 6: N 19,547, everyone, T 8, epsilon 4 -> z 5.92.
  plan = settings_lib.plan_from_config(
    config.PrivacyConfig(
      users_per_round=19_547, virtual_clients=610, clipping='fixed'
    ),
    population=19_547,
    rounds=8,
  )
  found = calibration.calibrate(plan, 4.0).mechanism
  assert found.noise_multiplier == pytest.approx(5.92, abs=2e-2)


def test_the_event_decides():
  # 16 Gaussians of noise z are one of z / 4.
  found = calibration.calibrate(_everyone(1e-5), 1.0).mechanism
  # dp_accounting's own inverse of the analytic Gaussian.
  sigma = gaussian_mechanism.get_sigma_gaussian(1.0, 1e-5)
  assert found.noise_multiplier == pytest.approx(4 * sigma, rel=1e-3)
  assert found.clip_norm == 2.0


@pytest.mark.parametrize('epsilon', [1e-12, 1e308])
def test_a_budget_that_nobody_can_mean_is_refused(epsilon):
  with pytest.raises(guarantee.PlanError, match='epsilon must be in .1e-06'):
    calibration.calibrate(_everyone(1e-6, rounds=1), epsilon)
