"""Figures that are stated, held against those that are recomputed."""

import math

import pytest

from tests.privacy.certificate import cases
from tff_dpemb.privacy.certificate import accounting
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import figures

_SAMPLED = accounting.revealed_by_plan(cases.PLAN, draws=7, redrawn=1)
_TREE = accounting.revealed_by_plan(cases.TREE_PLAN, draws=8, redrawn=0)
_FOUND = {'sampled': _SAMPLED, 'tree': _TREE}
_STATED = {
  name: accounting.account(found, cases.PLAN.delta).to_json()
  for name, found in _FOUND.items()
}


def _problems(of, path, value, *, method=None):
  """Returns what is wrong with a figure altered, made by `method`."""
  *parents, last = path
  content = document.Accounting.from_json(_STATED[of]).to_json()
  inner = content
  for key in parents:
    inner = inner[key]
  inner[last] = value(inner[last])
  content['method'] |= method or {}
  return figures.problems(document.Accounting.from_json(content), _FOUND[of])


# Of a sample, and of a schedule, whose noise is one Gaussian.
_BOUNDS = [
  ('sampled', 'epsilon'),
  ('sampled', 'cross_check_epsilon'),
  ('sampled', 'unamplified_epsilon'),
  ('sampled', 'unamplified_mu_gdp'),
  ('sampled', 'unamplified_zcdp_rho'),
  ('sampled', 'epsilon_at_deltas', 1, 'epsilon'),
  ('sampled', 'profile', 3, 'epsilon'),
  ('sampled', 'groups', 1, 'epsilon'),
  ('sampled', 'mu_gdp_bound', 'mu'),
  ('tree', 'epsilon'),
  ('tree', 'mu_gdp'),
  ('tree', 'zcdp_rho'),
  ('tree', 'groups', 0, 'epsilon'),
  ('tree', 'mu_gdp_bound', 'mu'),
]
_METHODS = [
  {'library': 'dp-accounting 99.0'},
  {'version': 99},
  {'grid_points': 12_000},
  {'group_grid_points': 99},
]


@pytest.mark.parametrize('of', _FOUND)
def test_what_is_computed_is_what_is_stated(of):
  for method in (None, *_METHODS):
    assert _problems(of, ('epsilon',), lambda v: v, method=method) == []


@pytest.mark.parametrize(
  ('of', 'path'),
  [(of, path) for of, *path in _BOUNDS],
  ids=['.'.join(map(str, path)) for path in _BOUNDS],
)
def test_another_method_may_give_more_but_not_less(of, path):
  name = 'accounting.' + path[0]
  for more in (lambda v: v + 1e-4, lambda v: 2 * v):
    assert _problems(of, path, more, method=_METHODS[0]) == []
    (problem,) = _problems(of, path, more)  # The same method gives the same.
    assert problem.startswith(name)
  for method in (None, _METHODS[0]):
    (problem,) = _problems(of, path, lambda v: v - 1e-4, method=method)
    assert problem.startswith(name)
  (problem,) = _problems(of, path, lambda v: v - 1e-4, method=_METHODS[0])
  assert "as this release's method computes it" in problem


@pytest.mark.parametrize('method', _METHODS)
def test_any_part_of_a_method_makes_it_another(method):
  more = ('sampled', ('epsilon',), lambda v: v * 1.01)
  assert _problems(*more, method=method) == []
  assert _problems(*more) != []


def test_another_method_may_claim_less_but_nothing_that_is_not_known_here():
  other = _METHODS[0]
  for name in ('epsilon', 'mu_gdp', 'zcdp_rho', 'mu_gdp_bound'):
    assert _problems('tree', (name,), lambda _: None, method=other) == []
  for name in ('mu_gdp', 'zcdp_rho'):  # A sampled Gaussian has none.
    (problem,) = _problems('sampled', (name,), lambda _: 1e6, method=other)
    assert problem.startswith(f'accounting.{name} must be at least')
  (problem,) = _problems(  # Known from a delta on, claimed from 0 on.
    'sampled', ('mu_gdp_bound', 'least_delta'), lambda _: 0.0, method=other
  )
  assert problem.startswith('accounting.mu_gdp_bound.mu')


def test_another_method_may_choose_its_own_rows():
  other = _METHODS[0]
  rows = ('sampled', ('profile',), lambda v: v[2:5])
  assert _problems(*rows, method=other) == []
  (problem,) = _problems(*rows)
  assert 'must have 9 entries, got 3' in problem


@pytest.mark.parametrize(
  ('stated', 'least', 'is_small'),
  [
    (1.0, 1.0, False),
    (1.0 - 1e-7, 1.0, False),  # Rounding.
    (1.0 - 1e-5, 1.0, True),
    (2.0, 1.0, False),
    (None, 1.0, False),  # No guarantee is no lie.
    (None, None, False),
    (1e300, None, True),
  ],
)
def test_too_small(stated, least, is_small):
  found = figures.too_small('x', stated, least, 'why')
  assert bool(found) == is_small
  assert all('x must be at least' in item and '(why)' in item for item in found)


@pytest.mark.parametrize(
  ('stated', 'computed', 'differ'),
  [
    (1.0, 1.0 + 1e-7, False),
    (1.0, 1.0 + 1e-5, True),
    (None, None, False),
    (None, 0.0, True),
    (0.0, None, True),
    (0.0, 1e-12, True),
    (math.inf, 1.0, True),
  ],
)
def test_differs(stated, computed, differ):
  assert bool(figures.differs('x', stated, computed)) == differ


def test_differs_by_less_than_a_slack():
  assert figures.differs('x', 0.0, 1e-12, slack=1e-9) == []
