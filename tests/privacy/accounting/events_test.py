"""Events survive JSON, and their short form is equivalent."""

import json
import math

import dp_accounting
import pytest
from dp_accounting import dp_event

from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.accounting import events

_GAUSSIAN = dp_event.GaussianDpEvent(1.5)


@pytest.mark.parametrize(
  'event',
  [
    _GAUSSIAN,
    dp_event.NoOpDpEvent(),
    dp_event.NonPrivateDpEvent(),
    dp_event.UnsupportedDpEvent(),
    dp_event.PoissonSampledDpEvent(0.25, _GAUSSIAN),
    dp_event.SampledWithoutReplacementDpEvent(100, 10, _GAUSSIAN),
    dp_event.SelfComposedDpEvent(
      dp_event.ComposedDpEvent([_GAUSSIAN, dp_event.LaplaceDpEvent(2.0)]), 7
    ),
    dp_event.SingleEpochTreeAggregationDpEvent(
      noise_multiplier=2.0, step_counts=[3, 4]
    ),
    dp_event.RepeatAndSelectDpEvent(_GAUSSIAN, mean=3.0, shape=math.inf),
    dp_event.ZCDpEvent(rho=0.1),
  ],
  ids=lambda event: type(event).__name__,
)
def test_json_gives_the_event_back(event):
  text = json.dumps(events.to_json(event), allow_nan=False)
  assert events.from_json(json.loads(text)) == event


def test_json_is_the_named_tuple_form():
  assert events.to_json(dp_event.PoissonSampledDpEvent(0.5, _GAUSSIAN)) == {
    'module_name': 'dp_accounting.dp_event',
    'class_name': 'PoissonSampledDpEvent',
    'sampling_probability': 0.5,
    'event': {
      'module_name': 'dp_accounting.dp_event',
      'class_name': 'GaussianDpEvent',
      'noise_multiplier': 1.5,
    },
  }


@pytest.mark.parametrize(
  'content',
  [
    {'module_name': 'os', 'class_name': 'system', 'command': 'true'},
    {'module_name': 'dp_accounting.dp_event', 'class_name': 'importlib'},
    {'module_name': 'dp_accounting.dp_event', 'class_name': 'NoSuchEvent'},
    {},
  ],
)
def test_only_events_are_rebuilt(content):
  with pytest.raises(guarantee.AccountingError, match='must be a class'):
    events.from_json(content)


def test_wrong_fields_are_refused():
  content = events.to_json(_GAUSSIAN)
  content['spread'] = content.pop('noise_multiplier')
  with pytest.raises(guarantee.AccountingError, match='wrong fields'):
    events.from_json(content)


def test_equal_rounds_are_counted_once():
  round_event = dp_event.PoissonSampledDpEvent(0.1, _GAUSSIAN)
  nested = dp_event.ComposedDpEvent(
    [
      round_event,
      dp_event.SelfComposedDpEvent(
        dp_event.ComposedDpEvent([round_event, _GAUSSIAN]), 5
      ),
      dp_event.NoOpDpEvent(),
    ]
  )
  assert dict(events.flatten(nested, count=2)) == {
    round_event: 12,
    _GAUSSIAN: 10,
  }


def test_gaussians_of_one_sample_become_one():
  # 1 / z^2 = 1 / 2^2 + 2 / 4^2, arXiv 1812.06210 section 3.
  inner = dp_event.ComposedDpEvent(
    [
      dp_event.GaussianDpEvent(2.0),
      dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(4.0), 2),
    ]
  )
  ((leaf, count),) = events.flatten(dp_event.PoissonSampledDpEvent(0.1, inner))
  assert count == 1
  assert leaf.event.noise_multiplier == pytest.approx(0.375**-0.5, rel=1e-12)
  # The same by dp_accounting's own RDP accountant.
  by_rdp = [
    dp_accounting.rdp.RdpAccountant().compose(event, 10).get_epsilon(1e-5)
    for event in (dp_event.PoissonSampledDpEvent(0.1, inner), leaf)
  ]
  assert by_rdp[0] == pytest.approx(by_rdp[1], rel=1e-9)


@pytest.mark.parametrize(
  ('event', 'expected'),
  [
    (dp_event.GaussianDpEvent(0.0), dp_event.NonPrivateDpEvent()),
    (
      dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(0.0)),
      dp_event.NonPrivateDpEvent(),
    ),
    (dp_event.PoissonSampledDpEvent(1.0, _GAUSSIAN), _GAUSSIAN),
  ],
)
def test_edges_are_simplified(event, expected):
  assert events.flatten(event) == ((expected, 1),)


def test_a_sample_of_nobody_reveals_nothing():
  assert events.flatten(dp_event.PoissonSampledDpEvent(0.0, _GAUSSIAN)) == ()


@pytest.mark.parametrize(
  'event',
  [
    dp_event.GaussianDpEvent(-1.0),
    dp_event.GaussianDpEvent(math.nan),
    dp_event.PoissonSampledDpEvent(1.1, _GAUSSIAN),
    dp_event.PoissonSampledDpEvent(math.nan, _GAUSSIAN),
  ],
)
def test_illegal_parameters_are_refused(event):
  with pytest.raises(guarantee.AccountingError, match='must be'):
    events.flatten(event)
