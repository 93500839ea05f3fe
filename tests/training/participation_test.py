"""What drawn cohorts come to, against plans with and without limits."""

import numpy as np
import pytest

from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.privacy.mechanisms import samplers
from tff_dpemb.privacy.planning import plan as plan_lib
from tff_dpemb.training import participation


def _plan(sampler, rounds=4):
  return plan_lib.PrivacyPlan(
    sampler=sampler,
    mechanism=independent.FixedClipGaussian(1.0, 1.0),
    virtual_clients=2,
    rounds=rounds,
    delta=1e-3,
  )


_POISSON = _plan(samplers.PoissonSampler(10, 4))
_APART = _plan(samplers.MinSeparationSampler(10, 2, 2))
_ONCE = _plan(samplers.MinSeparationSampler(10, 4, 1))

# Users of each round; what they come to: most, least, verdict.
_CASES = {
  'nobody': (_POISSON, [[], [], [], []], (0, None, 'within')),
  'once each': (_ONCE, [[0], [1], [2], [9]], (1, None, 'within')),
  'twice, 2 apart': (_APART, [[0, 1], [2], [1, 0], [2]], (2, 2, 'within')),
  'any gap': (_POISSON, [[0], [0], [0], [3]], (3, 1, 'within')),
  'too close': (_APART, [[0], [3], [3], [0]], (2, 1, 'outside')),
  'too often': (_ONCE, [[5], [], [], [5]], (2, 3, 'outside')),
  'twice in a round': (_POISSON, [[4, 4], [], [], []], (1, 0, 'outside')),
}


@pytest.mark.parametrize(
  ('plan', 'rounds', 'expected'), _CASES.values(), ids=_CASES
)
def test_measures(tmp_path, plan, rounds, expected):
  for number, users in enumerate(rounds):
    slots = [np.array(users[:1], np.int64), np.array(users[1:], np.int64)]
    participation.record(tmp_path / 'c', number, attempt=1, slots=slots)
  found = participation.measure(tmp_path / 'c', plan, rounds=4)
  assert (found.rounds, found.draws) == (4, 4)
  assert (
    found.most_participations,
    found.least_separation,
    found.verdict,
  ) == expected


def test_repeated_draws_are_counted_apart(tmp_path):
  for number, attempt in ((0, 1), (1, 1), (1, 2), (2, 1), (3, 1)):
    participation.record(
      tmp_path, number, attempt=attempt, slots=[np.array([number % 2])]
    )
  found = participation.measure(tmp_path, _APART, rounds=4)
  assert (found.rounds, found.draws) == (4, 5)
  assert (found.most_participations, found.verdict) == (2, 'within')
  # A repeat that drew somebody else counts for that one, too.
  participation.record(tmp_path, 1, attempt=3, slots=[np.array([0])])
  found = participation.measure(tmp_path, _APART, rounds=4)
  assert (found.least_separation, found.verdict) == (1, 'outside')


def test_a_missing_record_leaves_no_verdict(tmp_path):
  assert participation.measure(tmp_path, _ONCE, rounds=4).verdict == (
    'incomplete'
  )
  for number in (0, 1, 3):
    participation.record(tmp_path, number, attempt=1, slots=[])
  found = participation.measure(tmp_path, _ONCE, rounds=4)
  assert (found.rounds, found.verdict) == (3, 'incomplete')
  # Records of rounds that are not asked for do not count.
  assert participation.measure(tmp_path, _ONCE, rounds=2).verdict == 'within'


def test_a_damaged_record_is_an_error(tmp_path):
  participation.record(tmp_path, 0, attempt=1, slots=[])
  (tmp_path / 'round-000000-attempt-1.npz').write_bytes(b'cut short')
  with pytest.raises(storage.ArtifactError, match='damaged'):
    participation.measure(tmp_path, _ONCE, rounds=1)
