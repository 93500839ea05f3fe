"""The accelerator executor: devices used, right results, speed of a raw loop."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from benchmarks import runner
from benchmarks.peers import race

_ROUNDS = 5
_LOGICAL_DEVICES = 2


def measure() -> list[runner.Measure]:
  """Measures on the GPUs that are here; else on two logical CPU devices."""
  if shutil.which('nvidia-smi') and _gpus():
    return _measure_gpus()
  return _measure_logical_devices()


def _gpus() -> list[str]:
  listed = subprocess.run(
    ['nvidia-smi', '--query-gpu=name', '--format=csv,noheader'],
    capture_output=True,
    text=True,
  )
  return listed.stdout.split('\n')[:-1] if not listed.returncode else []


def _measure_gpus() -> list[runner.Measure]:
  """Images/s against a raw loop on the same GPU, and how busy the GPU is."""
  measures = []
  for work in ('lenet', 'mobilenet_v2'):
    with _utilisation() as samples:
      times = race.run(
        (
          race.Engine('ours', 'on_devices', 'GPU:0'),
          race.Engine('raw, 1 slot', 'raw', '1'),
          race.Engine('raw, 2 slots', 'raw', '2'),
        ),
        work,
        rounds=_ROUNDS,
      )
    raw = min(times['raw, 1 slot'].median, times['raw, 2 slots'].median)
    measures += [
      runner.noted(f'{work}: a round', times['ours'].median, unit='s'),
      runner.noted(f'{work}: the same in the best raw loop', raw, unit='s'),
      runner.at_least(
        f'{work}: speed / best raw loop', raw / times['ours'].median, target=0.9
      ),
      runner.noted(
        f'{work}: GPU busy, highest sample', max(samples()), unit='%'
      ),
    ]
  return measures + _measure_rounds(['GPU:0'])


class _utilisation:
  """Samples the GPU's own count of busy time while it is open."""

  def __enter__(self):
    self._file = tempfile.TemporaryFile('w+')
    self._process = subprocess.Popen(
      [
        'nvidia-smi',
        '--query-gpu=utilization.gpu',
        '--format=csv,noheader,nounits',
        '--loop-ms=200',
      ],
      stdout=self._file,
      stderr=subprocess.DEVNULL,
    )
    return self._samples

  def __exit__(self, *unused):
    self._process.terminate()
    self._process.wait()
    self._file.seek(0)
    self._kept = [float(x) for x in re.findall(r'\d+', self._file.read())]
    self._file.close()

  def _samples(self):
    return self._kept or [0.0]


def _measure_logical_devices() -> list[runner.Measure]:
  devices = [f'CPU:{i}' for i in range(_LOGICAL_DEVICES)]
  measures = _measure_rounds(devices)
  times = race.run(
    (
      race.Engine('ours', 'on_devices', ','.join(devices)),
      race.Engine('raw, 2 slots', 'raw', '2'),
    ),
    'lenet',
    rounds=_ROUNDS,
  )
  ratio = times['raw, 2 slots'].median / times['ours'].median
  return [
    *measures,
    runner.noted('speed / raw loop with 2 slots, logical CPU devices', ratio),
    runner.noted('GPUs measured', 0),
  ]


def _measure_rounds(devices: list[str]) -> list[runner.Measure]:
  """Compares each mechanism's rounds with the C++ worker's, from equal seeds.

  The rounds are those of tests/training/execution/accelerator_test.py.
  """
  root = pathlib.Path(__file__).resolve().parents[1]
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    subprocess.run(
      [
        sys.executable,
        str(root / 'tests/training/execution/accelerator_test.py'),
        str(folder),
        *devices,
      ],
      check=True,
      env={**os.environ, 'PYTHONPATH': str(root)},
    )
    told = json.loads((folder / 'told.json').read_text())
    with np.load(folder / 'rounds.npz') as arrays:
      kept = dict(arrays)
  measures = []
  for mechanism in ('fixed', 'adaptive', 'tree'):
    pairs = [
      (kept[key.replace('/worker/', '/ours/')], value)
      for key, value in kept.items()
      if key.startswith(f'{mechanism}/')
      and '/worker/' in key
      and value.dtype.kind in 'fiu'
      and value.size
    ]
    # Weights, momenta, clip norm and noise buffers are below 1 in size; sums of
    # losses over a cohort are not, and float32 has 7 digits for them.
    largest = max(
      float(np.max(np.abs(ours - worker) / np.maximum(1, np.abs(worker))))
      for ours, worker in pairs
    )
    used = sum(1 for clients in told[mechanism].values() if clients)
    measures += [
      runner.at_most(
        f'{mechanism}: largest difference to the C++ worker / max(1, size)',
        largest,
        target=1e-5,
      ),
      runner.equal_to(f'{mechanism}: devices used', used, target=len(devices)),
    ]
  return measures
