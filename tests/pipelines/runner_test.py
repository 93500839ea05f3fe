"""Which runner runs, and that Beam keeps quiet about it."""

import logging

import apache_beam as beam
import pytest
from apache_beam.options import pipeline_options as options_lib

from tff_dpemb.pipelines import runner


@pytest.mark.parametrize(
  ('options', 'name'),
  [
    (None, 'FnApiRunner'),
    ((), 'FnApiRunner'),
    (['--runner=DirectRunner'], 'FnApiRunner'),
    (['--runner=FlinkRunner'], 'FlinkRunner'),
    (options_lib.PipelineOptions(['--runner=FlinkRunner']), 'FlinkRunner'),
  ],
)
def test_the_runner_in_this_process_unless_asked(options, name):
  found = runner.pipeline_options(options)
  assert found.view_as(options_lib.StandardOptions).runner == name


def test_runs_to_its_end_and_raises_what_a_stage_raised(caplog):
  seen = []
  log = logging.getLogger('apache_beam')
  level = log.level
  with runner.run(None) as pipeline:
    _ = pipeline | beam.Create([1, 2]) | beam.Map(lambda x: 1 / (x - 3))
    assert log.level == logging.CRITICAL  # What is an error is raised.
    seen.append('built')
  assert seen == ['built'] and log.level == level
  with pytest.raises(Exception, match='division by zero'):
    with runner.run(None) as pipeline:
      _ = pipeline | beam.Create([3]) | beam.Map(lambda x: 1 / (x - 3))
  assert log.level == level
