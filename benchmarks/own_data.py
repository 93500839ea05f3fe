"""Own images, from a folder with bad files to a search that finds them."""

import json
import pathlib
import shlex
import sys
import tempfile
from collections.abc import Sequence

from benchmarks import commands
from benchmarks import icons
from benchmarks import runner

_IDENTITIES, _PUBLIC, _BAD = 400, 300, 20
_DPEMB = (sys.executable, '-m', 'launch.cli')
_ROOT = str(pathlib.Path(__file__).resolve().parents[1])
_PAGE = 'own/page.toml'
_LEDGER = 'runs/ledger.sqlite'


class _Way:
  """The commands as they are given, and which ended as they should not."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.wrong: list[commands.Ran] = []
    self.given: list[commands.Ran] = []

  def __call__(self, *words: str, code: int = 0) -> commands.Ran:
    ran = commands.run([*_DPEMB, *words], self.folder, PYTHONPATH=_ROOT)
    self.given.append(ran)
    shown = f'{shlex.join(["dpemb", *words])[:100]}: {ran.code}'
    print(f'{shown}, {ran.seconds:.0f} s', file=sys.stderr)
    if ran.code != code or 'Traceback' in ran.text:
      self.wrong.append(ran)
      print(ran.text[-2000:], file=sys.stderr)
    return ran


def measure() -> list[runner.Measure]:
  """Goes the way of docs/own-images.md on icons with damaged files."""
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    made = icons.make(folder, identities=_IDENTITIES, public=_PUBLIC, bad=_BAD)
    return _measure(_Way(folder), made)


def _measure(way: _Way, made: icons.Folders) -> list[runner.Measure]:
  found = way('init', 'own', '--images', 'photos', '--public', 'public_photos')
  printed = found.text.partition('next:')[2].strip().splitlines()
  if not printed:
    raise runner.BenchmarkError(f'init must print what is next: {found.text}')
  importing = [*shlex.split(printed[0])[1:], '--categories', 'categories.csv']
  refused = way(*importing, code=2)
  listed = sum(file.name in refused.text for file in made.bad)
  way(*importing, '--skip-bad')
  way('data', 'verify', 'own/data')
  way('plan', _PAGE)
  names = json.dumps(list(icons.categories()))
  whole = way('quickstart', _PAGE, '--set', f'synthesis.class_names={names}')
  again = way('train', _PAGE, '--set', f'synthesis.class_names={names}')
  for certificate in sorted(
    (way.folder / 'runs/own').rglob('certificate.json')
  ):
    way('certificate', 'verify', str(certificate), '--ledger', _LEDGER)
  way('ledger', 'verify', '--ledger', _LEDGER)
  export, index = 'runs/own/export', 'runs/own/index/test'
  way('index', export, 'own/data/test', index, '--replace')
  answers = _search(way, made, export=export, index=index)
  report = json.loads((way.folder / 'runs/own/report.json').read_text())
  pairs, synthetic = report['verification'], report['synthetic']
  return [
    runner.equal_to('commands that ended otherwise', len(way.wrong), target=0),
    runner.equal_to('bad files listed at once', listed, target=_BAD),
    runner.at_least(
      'identities, private and held out', _IDENTITIES, target=300
    ),
    runner.at_least('pictures looked up', len(answers), target=300),
    runner.equal_to(
      'pictures that find themselves first',
      _share(answer[0] for answer in answers),
      target=1.0,
    ),
    runner.at_least(
      'pictures whose nearest other one is of their identity',
      _share(answer[1] for answer in answers),
      target=0.75,
    ),
    runner.noted(
      'recall@FAR 0.001 on held-out identities', pairs['recall_at_far']['0.001']
    ),
    runner.noted(
      'recall@FAR 0.001, pretraining only', pairs['pretraining_only']['0.001']
    ),
    runner.noted('recall@FAR 0.001, raw pixels', pairs['pixels']['0.001']),
    runner.noted('recall@1', report['retrieval']['recall_at_1']),
    runner.equal_to(
      'agreement of served look-ups with exact search',
      report['serving']['agreement_with_exact'],
      target=1.0,
    ),
    runner.noted(
      'accuracy of the net trained on synthetic embeddings',
      synthetic['accuracy'],
    ),
    runner.noted(
      'accuracy of the same net trained on real ones',
      synthetic['accuracy_on_real'],
    ),
    runner.noted('chance', synthetic['chance']),
    runner.noted('honest epsilon of the run', report['privacy']['epsilon']),
    runner.noted('time of the whole run', whole.seconds, unit='s'),
    runner.at_most(
      'time of a command whose steps are finished', again.seconds, target=3,
      unit='s',
    ),
  ]  # fmt: skip


def _search(
  way: _Way, made: icons.Folders, *, export: str, index: str
) -> Sequence[tuple[bool, bool]]:
  """Returns of each held-out picture whether it finds itself, and its kin."""
  from tff_dpemb.data import user_store

  store = user_store.UserStore.open(way.folder / 'own/data/test')
  files = [
    file
    for user in range(store.num_users)
    for file in sorted((made.private / store.user_id(user)).iterdir())
    if file not in made.bad
  ]
  serve = ['serve', export, '--index', index, '--allow-unprotected']
  answers = []
  with commands.serving([*_DPEMB, *serve], way.folder) as address:
    for start in range(0, len(files), 64):
      names = [str(file) for file in files[start : start + 64]]
      ran = way('search', *names, '--server', address, '-k', '2')
      for line in ran.text.splitlines():
        if not line.startswith('{'):
          continue
        answer = json.loads(line)
        identity = pathlib.Path(answer['file']).parent.name
        itself, kin = answer['neighbours']
        answers.append(
          (
            itself['label'] == identity and itself['score'] > 0.9999,
            kin['label'] == identity,
          )
        )
  return answers


def _share(values) -> float:
  values = list(values)
  return sum(values) / max(1, len(values))
