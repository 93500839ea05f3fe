"""The `dpemb` command: one subcommand a stage, loaded when it is called.

The table below is all that `dpemb --help` reads, so help needs no framework.
`main` is where domain errors end: one line on stderr and an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | a fault of ours or of a library; its traceback is in a log, which is named |
| 2 | wrong input: a config key, a file, a command line, a full disk |
| 3 | nothing to do, or no data |
| 4 | the privacy budget is spent |
| 5 | a gate failed: parity, audit, verification |
| 75 | stopped half-way with its state saved: run the same command again |
| 130, 143 | interrupted (Ctrl-C), terminated |

An error class chooses its code with an `exit_code` attribute; without one a
domain error is wrong input.
"""

import contextlib
import difflib
import importlib
import importlib.metadata
import logging
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from launch import environment
from launch import faults

_DEBUG_VARIABLE = 'DPEMB_DEBUG'  # 1: print tracebacks, too

# Name, module of launch.commands and one line of help, in the order of the way
# through the product.
_TABLE = (
  ('quickstart', 'run', 'Run every stage of one page: data to report.'),
  ('doctor', 'doctor', 'Check this machine; print the remedies.'),
  ('init', 'init', 'Write a page for own images.'),
  ('data', 'data', 'Make, show and verify image stores.'),
  ('plan', 'plan', 'Explain what a page would cost.'),
  ('pretrain', 'run', 'Train on the public store.'),
  ('train', 'run', 'Run the private rounds, or resume.'),
  ('worker', 'worker', 'Train for a coordinator on another machine.'),
  ('evaluate', 'run', 'Measure on held-out identities.'),
  ('export', 'run', 'Publish SavedModel and TFLite.'),
  ('index', 'serving', 'Index images for search.'),
  ('serve', 'serving', 'Answer Embed and Search (gRPC).'),
  ('embed', 'serving', 'Ask a server for embeddings.'),
  ('search', 'serving', 'Ask a server for neighbours.'),
  ('serve-check', 'run', 'Compare served look-ups with exact search.'),
  ('synthesize', 'run', 'Publish private synthetic embeddings.'),
  ('audit', 'audit', 'Attack it: a bound on epsilon.'),
  ('report', 'run', 'Write report.json and .html.'),
  ('ledger', 'ledger', 'Show what was spent, by whom.'),
  ('certificate', 'certificate', 'Show or verify a certificate.'),
)
# By name: ('module:attribute', one line of help). What is not called is not
# imported.
COMMANDS: dict[str, tuple[str, str]] = {
  name: (f'launch.commands.{module}:{name.replace("-", "_")}', text)
  for name, module, text in _TABLE
}


class LazyGroup(click.Group):
  """A group whose commands are imported when they are called."""

  def list_commands(self, ctx: click.Context) -> list[str]:
    return list(COMMANDS)

  def get_command(
    self, ctx: click.Context, cmd_name: str
  ) -> click.Command | None:
    if cmd_name not in COMMANDS:
      return None
    module, _, attribute = COMMANDS[cmd_name][0].partition(':')
    return getattr(importlib.import_module(module), attribute)

  def resolve_command(
    self, ctx: click.Context, args: list[str]
  ) -> tuple[str | None, click.Command | None, list[str]]:
    name = args[0]
    if name not in COMMANDS and not name.startswith('-'):
      near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.0)
      ctx.fail(f'no such command {name!r}; the nearest one is {near[0]!r}.')
    return super().resolve_command(ctx, args)

  def format_commands(
    self, ctx: click.Context, formatter: click.HelpFormatter
  ) -> None:
    with formatter.section('Commands'):
      formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
  cls=LazyGroup,
  context_settings={'help_option_names': ['-h', '--help']},
  help='\b\nImage embeddings with user-level differential privacy.\n'
  'Example: dpemb quickstart launch/configs/quickstart.toml',
)
@click.version_option(package_name='tff-dpemb', prog_name='dpemb')
def cli() -> None:
  """The command; what it does is in its table."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
  """Runs the command line and exits with the code of the table above."""
  environment.open_streams()
  environment.prepare()
  logging.basicConfig(
    level=os.environ.get('DPEMB_LOG', 'ERROR').upper(),
    format='%(levelname)s %(name)s: %(message)s',
  )
  if threading.current_thread() is threading.main_thread():
    # Leave through `finally` and atexit, so that owned processes end too.
    signal.signal(signal.SIGTERM, _terminate)
    # Not where the shell has it ignored, as for a command in the background.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
      signal.signal(signal.SIGINT, _interrupt)
  sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
  """Returns the exit code of a command line; prints its error if any."""
  try:
    result = cli.main(
      args=None if arguments is None else list(arguments),
      prog_name='dpemb',
      standalone_mode=False,
    )
    sys.stdout.flush()
    return result if type(result) is int else 0
  except click.exceptions.Exit as error:
    return error.exit_code
  except (click.Abort, KeyboardInterrupt):
    _print_error('interrupted.')
    return 130
  except click.ClickException as error:
    _print_error(_usage_line(error))
    return error.exit_code
  except BrokenPipeError:
    # The reader has gone (`dpemb ... | head`); keep Python from saying so.
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  except Exception as error:  # noqa: BLE001  (every error ends here)
    if os.environ.get(_DEBUG_VARIABLE, '') not in ('', '0'):
      traceback.print_exc()
    if faults.interrupted.is_set():
      _print_error('interrupted.')
      return 130
    if faults.line_of(error) is None:
      error = faults.kept(error, environment.state_directory())
    _print_error(faults.line_of(error) or '')
    return faults.exit_code_of(error)


def _usage_line(error: click.ClickException) -> str:
  line = ' '.join(error.format_message().split())
  context: Any = getattr(error, 'ctx', None)
  if context is not None:
    line += f' Try: {context.command_path} --help'
  return line


def _print_error(line: str) -> None:
  # stderr may be closed or on the full disk; the exit code still tells.
  with contextlib.suppress(OSError, ValueError):
    print(f'dpemb: error: {line}', file=sys.stderr, flush=True)


def _interrupt(number: int, frame: types.FrameType | None) -> NoReturn:
  del number, frame
  faults.interrupted.set()
  raise KeyboardInterrupt


def _terminate(number: int, frame: types.FrameType | None) -> NoReturn:
  del frame
  sys.exit(128 + number)


if __name__ == '__main__':
  main()
