"""What an error of a command comes to: a line, an exit code, a log.

A domain error, and what the machine refuses, is one line and a code. All else
is a fault of ours or of a library: one line with its cause, and the traceback
in a file, for whoever mends it.
"""

import datetime
import errno
import os
import pathlib
import threading
import traceback

_PACKAGES = ('tff_dpemb', 'serving', 'protos', 'launch')
_LOG = 'faults.log'
_WRONG_INPUT = 2
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_CHARACTERS = 300  # of a cause: libraries print whole graphs
# Lines of TensorFlow that say where and not what.
_WHERE = ('[[', 'File ', 'Detected at', 'Traceback', 'Original stack', 'at ')
_SHORT_OF_MEMORY = (
  'cannot allocate memory',
  'failed to map segment',
  "can't start new thread",
  'std::bad_alloc',
  'OOM when allocating',
)

# Ctrl-C was pressed. A library may hide the KeyboardInterrupt behind an error
# of its own, so that the error alone does not tell.
interrupted = threading.Event()


class Fault(RuntimeError):
  """A fault of ours or of a library, whose traceback has been kept."""

  exit_code = 1


def line_of(error: BaseException) -> str | None:
  """Returns the line that explains an error, or None for a fault."""
  known = _domain_error(error)
  if known is not None:
    return ' '.join(str(known).split()) or type(known).__name__
  if _is_short_of_memory(error):
    return (
      f'memory is short ({cause_of(error)}); free some or raise the limit'
      ' (ulimit -v, cgroup), then run the same command again.'
    )
  if isinstance(error, OSError):
    name = f' {error.filename!r}' if error.filename else ''
    if error.errno in _DISK_FULL:
      return (
        f'the disk is full{name}; free space, then run the same command again.'
      )
    if error.errno == errno.EADDRINUSE:
      return (
        f'the port is in use{name}; stop what listens there or choose another,'
        ' 0 for any free one.'
      )
    if error.filename and error.strerror:
      return f'{error.strerror}:{name}.'
  return None


def exit_code_of(error: BaseException) -> int:
  """Returns the exit code of an error that `line_of` explains."""
  return int(getattr(_domain_error(error), 'exit_code', _WRONG_INPUT))


def cause_of(error: BaseException) -> str:
  """Returns the kind of an error and what it says, without where."""
  lines = [line.strip() for line in str(error).splitlines()]
  lines = [line for line in lines if line and not line.startswith(_WHERE)]
  said = lines[0] if lines else ''
  if said.endswith(':') and len(lines) > 1:
    said = f'{said} {lines[-1]}'
  name = type(error).__name__
  text = f'{name}: {said}' if said else name
  if len(text) > _MOST_CHARACTERS:
    text = text[: _MOST_CHARACTERS - 3] + '...'
  return text


def kept(error: BaseException, folder: pathlib.Path) -> Fault:
  """Returns the fault of an error, its traceback appended to a log in a folder.

  The log is its owner's alone: a traceback may quote what was worked on.
  """
  path = folder / _LOG
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  text = ''.join(traceback.format_exception(error))
  try:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with open(number, 'a', encoding='utf-8', errors='replace') as file:
      file.write(f'{now}\n{text}\n')
    where = f'the traceback is in {str(path)!r}'
  except OSError:
    where = 'its traceback could not be written; see it with DPEMB_DEBUG=1'
  return Fault(f'{cause_of(error)} (a fault of dpemb or a library); {where}.')


def _domain_error(error: BaseException) -> BaseException | None:
  """Returns the error of ours that this is, or was raised from, if any.

  Beam raises again, from the original, what a worker raised.
  """
  seen: BaseException | None = error
  while seen is not None:
    if type(seen).__module__.partition('.')[0] in _PACKAGES:
      return seen
    seen = seen.__cause__
  return None


def _is_short_of_memory(error: BaseException) -> bool:
  if isinstance(error, MemoryError):
    return True
  if isinstance(error, OSError) and error.errno == errno.ENOMEM:
    return True
  text = str(error)
  return any(sign.lower() in text.lower() for sign in _SHORT_OF_MEMORY)
