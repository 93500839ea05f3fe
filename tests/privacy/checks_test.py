import math

import pytest

from tff_dpemb.privacy import checks
from tff_dpemb.privacy import guarantee


@pytest.mark.parametrize(
  ('check', 'legal', 'illegal', 'rule'),
  [
    (
      lambda x: checks.at_least('a', x, 0),
      [0, 0.5, 7],
      [-1],
      'finite and >= 0',
    ),
    (lambda x: checks.above('a', x, 1), [1.01, 7], [1, 0], 'finite and > 1'),
    (lambda x: checks.inside('a', x, 0, 1), [0.5], [0, 1, 2], r'in \(0, 1\)'),
    (
      lambda x: checks.whole('a', x, 2),
      [2, 9],
      [1, 2.0, 2.5],
      'whole and >= 2',
    ),
    (lambda x: checks.whole('a', x, 2, 4), [2, 4], [1, 5], r'whole and in \[2'),
  ],
)
def test_numbers_are_checked_in_words(check, legal, illegal, rule):
  for value in legal:
    check(value)
  for value in (
    *illegal,
    math.nan,
    math.inf,
    -math.inf,
    None,
    '3',
    True,
    [3],
    10**400,
  ):
    with pytest.raises(guarantee.PlanError, match=f'a must be {rule}.*got'):
      check(value)
