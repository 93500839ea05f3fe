"""The quick start's page, every stage: time and the figures of its report."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import glyph_runs
from benchmarks import runner


def measure() -> list[runner.Measure]:
  """Runs `dpemb quickstart` in a fresh directory, as `make quickstart` does."""
  with tempfile.TemporaryDirectory() as folder:
    start = time.monotonic()
    subprocess.run(
      [
        sys.executable,
        '-m',
        'launch.cli',
        'quickstart',
        str(glyph_runs.PAGE),
        '--runs',
        folder,
      ],
      check=True,
    )
    seconds = time.monotonic() - start
    path = pathlib.Path(folder) / 'quickstart' / 'report.json'
    report = json.loads(path.read_text())
  pairs, synthetic = report['verification'], report['synthetic']
  halfway = (synthetic['chance'] + synthetic['accuracy_on_real']) / 2
  million = next(
    item
    for item in report['privacy']['extrapolated']
    if item['population'] == 10**6
  )
  return [
    runner.at_most('time of the whole run', seconds, target=300, unit='s'),
    runner.at_least(
      'recall@FAR 0.001', pairs['recall_at_far']['0.001'], target=0.45
    ),
    runner.at_least(
      'recall@FAR 0.1', pairs['recall_at_far']['0.1'], target=0.93
    ),
    runner.at_least(
      'recall@1', report['retrieval']['recall_at_1'], target=0.70
    ),
    runner.at_least(
      'held-out identities', pairs['held_out_identities'], target=500
    ),
    runner.noted(
      'recall@FAR 0.001, pretraining only', pairs['pretraining_only']['0.001']
    ),
    runner.noted('recall@FAR 0.001, raw pixels', pairs['pixels']['0.001']),
    runner.at_least(
      'smallest cosine of the exports with the live model',
      report['export']['min_cosine'],
      target=0.9999,
    ),
    runner.equal_to(
      'agreement of served look-ups with exact search',
      report['serving']['agreement_with_exact'],
      target=1.0,
    ),
    runner.at_least(
      'accuracy of the net trained on synthetic embeddings',
      synthetic['accuracy'],
      target=halfway,
    ),
    runner.noted(
      'accuracy of the same net trained on real ones',
      synthetic['accuracy_on_real'],
    ),
    runner.noted('chance', synthetic['chance']),
    runner.at_most(
      'user-level epsilon of the synthetic set',
      synthetic['epsilon'],
      target=8,
    ),
    runner.noted('honest epsilon of the run', report['privacy']['epsilon']),
    runner.at_most(
      'honest epsilon extrapolated to 1e6 users', million['epsilon'], target=4
    ),
    runner.noted(
      'training speed',
      report['training']['examples_per_second'],
      unit='examples/s',
    ),
  ]
