"""Runs a pipeline: DirectRunner in process by default, any runner by options.

Stages hand each other files (`files`): a runner with workers on other machines
needs them where all of the workers reach them.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import apache_beam as beam
from apache_beam.options import pipeline_options as options_lib

Options: TypeAlias = options_lib.PipelineOptions | Sequence[str] | None

# The in-process direct runner by name: plain 'DirectRunner' may fetch another
# one over the network.
_DEFAULT_RUNNER = 'FnApiRunner'


def pipeline_options(options: Options) -> options_lib.PipelineOptions:
  """Returns options; flags such as `--runner=FlinkRunner` are accepted."""
  if isinstance(options, options_lib.PipelineOptions):
    chosen = options
  else:
    chosen = options_lib.PipelineOptions(list(options or ()))
  standard = chosen.view_as(options_lib.StandardOptions)
  if standard.runner in (None, 'DirectRunner'):
    standard.runner = _DEFAULT_RUNNER
  return chosen


@contextlib.contextmanager
def run(options: Options) -> Iterator[beam.Pipeline]:
  """Yields a pipeline that runs, to its end, when the block ends."""
  beam_log = logging.getLogger('apache_beam')
  level = beam_log.level
  beam_log.setLevel(logging.CRITICAL)  # It raises, too, what it logs as error.
  try:
    with beam.Pipeline(options=pipeline_options(options)) as pipeline:
      yield pipeline
  finally:
    beam_log.setLevel(level)
