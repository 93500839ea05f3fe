"""From a clean clone to the first figure on own images, as the docs print it."""

import pathlib
import re
import shlex
import sys
import tempfile

from benchmarks import commands
from benchmarks import icons
from benchmarks import runner

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DPEMB = '.venv/bin/dpemb'
_FIGURE = r'^evaluate: recall@1 '
# Of the identities that the printed command holds out: a tenth and a fifth.
_IDENTITIES, _PUBLIC = 300, 300


def measure() -> list[runner.Measure]:
  """Gives the first commands of docs/own-images.md in a fresh clone."""
  with tempfile.TemporaryDirectory() as name:
    clone = pathlib.Path(name) / 'clone'
    given = [
      commands.run(['git', 'clone', '--quiet', str(_ROOT), str(clone)], _ROOT)
    ]
    icons.make(clone, identities=_IDENTITIES, public=_PUBLIC)
    for words in printed(clone / 'docs' / 'own-images.md'):
      ran = commands.run(words, clone)
      print(
        f'{shlex.join(words)[:100]}: {ran.code}, {ran.seconds:.0f} s',
        file=sys.stderr,
      )
      given.append(ran)
      if ran.code or ran.first(_FIGURE) is not None:
        break
    last = given[-1]
    figure = last.first(_FIGURE)
    if figure is None:
      print(last.text[-2000:], file=sys.stderr)
    setup = sum(ran.seconds for ran in given if ran.words[0] != _DPEMB)
    before = sum(ran.seconds for ran in given[:-1])
    seconds = before + (last.seconds if figure is None else figure)
  return [
    runner.equal_to('a figure was printed', figure is not None, target=1),
    runner.equal_to(
      'commands that failed', sum(ran.code != 0 for ran in given), target=0
    ),
    runner.at_most('commands to the first figure', len(given), target=6),
    runner.at_most(
      'most lines of output of a command',
      max(len(ran.lines) for ran in given),
      target=60,
    ),
    runner.noted('time to the first figure', seconds, unit='s'),
    runner.noted('time of it for clone and set-up', setup, unit='s'),
  ]


def printed(page: pathlib.Path) -> list[list[str]]:
  """Returns the commands of a page's first fenced block, as words."""
  block = re.search(r'^```[a-z]*\n(.*?)^```', page.read_text(), re.M | re.S)
  if block is None:
    raise runner.BenchmarkError(f'{str(page)!r} must print commands.')
  lines = block[1].replace('\\\n', ' ').splitlines()
  return [
    words for line in lines if (words := shlex.split(line, comments=True))
  ]
