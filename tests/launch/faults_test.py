"""Each error is a line and a code; a fault keeps its traceback in a file."""

import errno
import pathlib

import pytest

from launch import faults
from tff_dpemb import config

_TENSORFLOW = """Graph execution error:

Detected at node 'lenet/conv/Conv2D' defined at (most recent call last):
    File "/usr/lib/python3.11/runpy.py", line 196, in _run_module_as_main
Node: 'lenet/conv/Conv2D'
Computed output size would be negative: -3
\t [[{{node lenet/conv/Conv2D}}]] [Op:__inference_9]
"""


class InvalidArgumentError(Exception):
  """Stands for TensorFlow's."""


def test_the_cause_is_told_without_the_graph():
  assert faults.cause_of(InvalidArgumentError(_TENSORFLOW)) == (
    'InvalidArgumentError: Graph execution error: Computed output size would be'
    ' negative: -3'
  )
  assert faults.cause_of(KeyError()) == 'KeyError'
  assert len(faults.cause_of(ValueError('x' * 5000))) == 300


def test_a_fault_names_its_log_and_the_log_holds_the_traceback(tmp_path):
  folder = tmp_path / 'new' / 'restricted'
  for word in ('first', 'second'):
    try:
      raise KeyError(word)
    except KeyError as error:
      fault = faults.kept(error, folder)
  log = folder / 'faults.log'
  assert faults.line_of(fault).startswith("KeyError: 'second'")
  assert repr(str(log)) in faults.line_of(fault)
  assert faults.exit_code_of(fault) == 1
  text = log.read_text()
  assert text.count('Traceback') == 2 and "KeyError: 'first'" in text
  assert log.stat().st_mode & 0o777 == 0o600


def test_where_no_log_can_be_written_the_variable_is_named():
  fault = faults.kept(KeyError('lost'), pathlib.Path('/proc/none'))
  assert 'DPEMB_DEBUG=1' in faults.line_of(fault)


@pytest.mark.parametrize(
  'error',
  [
    MemoryError(),
    OSError(errno.ENOMEM, 'Cannot allocate memory'),
    RuntimeError("can't start new thread"),
    ImportError('libx.so: failed to map segment from shared object'),
    InvalidArgumentError('OOM when allocating tensor with shape[9,9]'),
  ],
)
def test_short_memory_is_wrong_input_with_a_remedy(error):
  assert 'memory is short' in faults.line_of(error)
  assert faults.exit_code_of(error) == 2


def test_an_error_of_ours_is_its_own_line():
  assert faults.line_of(config.ConfigError('a\n  b')) == 'a b'
  assert faults.line_of(KeyError('lost')) is None
