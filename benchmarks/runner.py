"""Runs a benchmark and keeps what it measured: `make bench NAME=quickstart`.

A benchmark is a module of this folder with a one-line docstring and

    def measure() -> list[runner.Measure]: ...

Its result goes to `results/<name>.json`: the measures, and the machine,
versions, commit and command that they hold for; then docs/benchmarks.md is
written anew from all results. Without a name the benchmarks are listed.

A benchmark against peers runs all of them or fails, unless one is left out by
name: it then has `MAY_BE_LEFT_OUT` and takes `measure(without=...)`, and the
command that the result names says so.

Exit codes: 0 every target holds, 2 no such benchmark or one that cannot run
here, 5 a target is missed.
"""

import argparse
import ast
import dataclasses
import datetime
import difflib
import importlib
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from launch import environment
from tff_dpemb.artifacts import storage

_FOLDER = pathlib.Path(__file__).resolve().parent
_RESULTS = _FOLDER / 'results'
_DOCS = _FOLDER.parent / 'docs' / 'benchmarks.md'
_BEGIN, _END = '<!-- results: begin -->', '<!-- results: end -->'
_VERSIONS = (
  'tff-dpemb',
  'tensorflow',
  'tensorflow-federated',
  'dp-accounting',
  'numpy',
  'apache-beam',
  'grpcio',
  'faiss-cpu',
)


class BenchmarkError(ValueError):
  """No such benchmark, or one that measures nothing."""


@dataclasses.dataclass(frozen=True)
class Measure:
  """One measured number and the claim about it.

  Attributes:
    measure: What was measured.
    value: The number.
    unit: Its unit; empty for a share or a ratio.
    target: The claim, for example '>= 0.45'; empty if none is made.
    holds: Whether the claim holds; None if none is made.
  """

  measure: str
  value: float
  unit: str = ''
  target: str = ''
  holds: bool | None = None

  def __post_init__(self):
    if bool(self.target) != (self.holds is not None):
      raise BenchmarkError(
        f'{self.measure}: holds must be given if and only if target is.'
      )


def at_least(measure: str, value: float, *, target: float, unit: str = ''):
  """Returns a measure that claims value >= target."""
  value = float(value)
  return Measure(measure, value, unit, f'>= {target:g}', value >= target)


def at_most(measure: str, value: float, *, target: float, unit: str = ''):
  """Returns a measure that claims value <= target."""
  value = float(value)
  return Measure(measure, value, unit, f'<= {target:g}', value <= target)


def equal_to(measure: str, value: float, *, target: float, unit: str = ''):
  """Returns a measure that claims value == target, exactly."""
  value = float(value)
  return Measure(measure, value, unit, f'= {target:g}', value == target)


def noted(measure: str, value: float, *, unit: str = ''):
  """Returns a measure without a claim."""
  return Measure(measure, float(value), unit)


def names() -> dict[str, str]:
  """Returns the benchmarks and the first line of what each says it does.

  A module without `measure` is a part that benchmarks share.
  """
  found = {}
  for path in sorted(_FOLDER.glob('*.py')):
    tree = ast.parse(path.read_text())
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    if 'measure' in defined:
      found[path.stem] = (ast.get_docstring(tree) or '').partition('\n')[0]
  return found


def run(name: str, *, without: Sequence[str] = ()) -> dict[str, Any]:
  """Returns the result of a benchmark, and writes it to its file.

  Args:
    name: Of the benchmark.
    without: Peers that are left out.

  Raises:
    BenchmarkError: No such benchmark or peer, or it returned no measure.
    ArtifactError: The result could not be written.
  """
  known = names()
  if name not in known:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    hint = f'; the nearest one is {near[0]!r}' if near else ''
    raise BenchmarkError(f'no benchmark {name!r}{hint}.')
  module = importlib.import_module(f'benchmarks.{name}')
  peers = getattr(module, 'MAY_BE_LEFT_OUT', ())
  if not set(without) <= set(peers):
    raise BenchmarkError(
      f'--without must name peers of benchmark {name!r} ('
      f'{", ".join(peers) or "it has none"}), got {", ".join(without)}.'
    )
  options = {'without': tuple(without)} if without else {}
  load = os.getloadavg()[0]
  start = time.monotonic()
  measures = module.measure(**options)
  seconds = time.monotonic() - start
  if not measures:
    raise BenchmarkError(f'benchmark {name!r} measured nothing.')
  command = f'make bench NAME={name}'
  if without:
    left_out = ' '.join(f'--without {peer}' for peer in without)
    command += f" ARGS='{left_out}'"
  result = {
    'benchmark': name,
    'description': known[name],
    'measures': [dataclasses.asdict(measure) for measure in measures],
    'seconds': round(seconds, 1),
    'machine': {**_machine(), 'load_before': round(load, 2)},
    'versions': _versions(),
    'commit': _commit(),
    'command': command,
    'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
  }
  storage.atomic_write_json(_RESULTS / f'{name}.json', result)
  return result


def write_docs() -> None:
  """Writes the kept results into docs/benchmarks.md."""
  page = docs_with_results(_DOCS.read_text(), kept_results())
  storage.atomic_write_bytes(_DOCS, page.encode())


def table(result: dict[str, Any]) -> str:
  """Returns a Markdown table of a result's measures."""
  lines = ['| measure | value | target | holds |', '|---|---|---|---|']
  for measure in result['measures']:
    value = f'{measure["value"]:.4g} {measure["unit"]}'.strip()
    holds = {True: 'yes', False: '**no**', None: ''}[measure['holds']]
    lines.append(
      f'| {measure["measure"]} | {value} | {measure["target"]} | {holds} |'
    )
  return '\n'.join(lines)


def docs_of(results: Sequence[dict[str, Any]]) -> str:
  """Returns the Markdown of kept results, with where each comes from."""
  parts = []
  for result in results:
    machine, versions = result['machine'], result['versions']
    parts.append(
      f'### {result["benchmark"]}\n\n{result["description"]}\n\n'
      f'{table(result)}\n\n`{result["command"]}`, {result["date"][:10]}, commit'
      f' {result["commit"][:12]}, {result["seconds"]:.0f} s on'
      f' {machine["cores"]} cores ({machine["cpu"]}, load'
      f' {machine["load_before"]:g} before), TensorFlow'
      f' {versions["tensorflow"]}, TFF {versions["tensorflow-federated"]}.\n'
    )
  return '\n'.join(parts)


def kept_results() -> list[dict[str, Any]]:
  """Returns the results on disk, by name."""
  return [storage.read_json(path) for path in sorted(_RESULTS.glob('*.json'))]


def docs_with_results(page: str, results: Sequence[dict[str, Any]]) -> str:
  """Returns the page with what stands between its markers replaced.

  Raises:
    BenchmarkError: The page has no markers.
  """
  if _BEGIN not in page or _END not in page:
    raise BenchmarkError(f'the page must hold {_BEGIN} and {_END}.')
  before, _, rest = page.partition(_BEGIN)
  after = rest.partition(_END)[2]
  return f'{before}{_BEGIN}\n{docs_of(results)}{_END}{after}'


def main(arguments: Sequence[str] | None = None) -> int:
  """Runs the command line and returns its exit code."""
  parser = argparse.ArgumentParser(
    prog='make bench', description='Run a benchmark, or list them.'
  )
  parser.add_argument('name', nargs='?', default='')
  parser.add_argument(
    '--docs', action='store_true', help='only write docs/benchmarks.md'
  )
  parser.add_argument(
    '--without',
    action='append',
    default=[],
    metavar='PEER',
    help='leave a peer out; may be given often',
  )
  options = parser.parse_args(arguments)
  environment.prepare()
  try:
    if options.docs:
      write_docs()
      return 0
    if not options.name:
      for name, text in names().items():
        print(f'make bench NAME={name:16}{text}')
      return 0
    result = run(options.name, without=options.without)
    write_docs()
  except (BenchmarkError, storage.ArtifactError) as error:
    print(f'make bench: error: {error}', file=sys.stderr)
    return 2
  print(table(result))
  missed = [m['measure'] for m in result['measures'] if m['holds'] is False]
  if missed:
    print(f'make bench: error: missed: {"; ".join(missed)}', file=sys.stderr)
    return 5
  return 0


def _machine() -> dict[str, Any]:
  cpu = re.search(r'model name\s*:\s*(.+)', _read('/proc/cpuinfo'))
  memory = re.search(r'MemTotal:\s+(\d+) kB', _read('/proc/meminfo'))
  return {
    'cpu': cpu[1].strip() if cpu else platform.processor(),
    'cores': len(os.sched_getaffinity(0)),
    'memory_gib': round(int(memory[1]) / 2**20, 1) if memory else None,
    'platform': platform.platform(),
    'python': platform.python_version(),
  }


def _versions() -> dict[str, str]:
  versions = {}
  for name in _VERSIONS:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = 'missing'
  return versions


def _commit() -> str:
  """Returns the commit measured; `+changes` if the tree differs from it."""

  def git(*arguments: str) -> str:
    process = subprocess.run(
      ['git', *arguments],
      cwd=_FOLDER.parent,
      capture_output=True,
      text=True,
      check=True,
    )
    return process.stdout.strip()

  try:
    commit = git('rev-parse', 'HEAD')
    # A result that is being written is no change to what was measured.
    changes = git(
      'status',
      '--porcelain',
      '--',
      ':!benchmarks/results',
      ':!docs/benchmarks.md',
    )
  except (OSError, subprocess.CalledProcessError):
    return 'unknown'
  return f'{commit}+changes' if changes else commit


def _read(path: str) -> str:
  try:
    return pathlib.Path(path).read_text()
  except OSError:
    return ''


if __name__ == '__main__':
  sys.exit(main())
