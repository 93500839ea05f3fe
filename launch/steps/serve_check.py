"""Look-ups of the test images over a real port, against exact search."""

import contextlib
import sys
import time
from collections.abc import Iterator

import numpy as np

from launch.run import opened
from launch.run import progress
from launch.run import stamps
from launch.steps import index
from serving import client as client_lib
from tff_dpemb.evaluation import retrieval
from tff_dpemb.export import registry
from tff_dpemb.processes import children

_LOOKUPS = 256
_START_SECONDS = 120.0


def serve_check(run: opened.OpenRun) -> None:
  """Indexes the test images, starts `dpemb serve`, and compares look-ups.

  Half of the look-ups are by image and half by embedding.
  """
  exported = registry.open_export(run.paths.export)
  stamp = stamps.stamp_of(
    run.paths.serving, exported.digest, run.config.digest('serving')
  )
  if stamp.read() is not None:
    return
  images, _, _ = run.test.read_all()
  with progress.stage('serving: look-ups over gRPC'):
    built, gallery = index.index_store(
      exported, run.test, run.paths.index / 'test', replace=True
    )
    rng = np.random.default_rng(0)  # Which public look-ups are made.
    rows = rng.choice(len(images), min(_LOOKUPS, len(images)), replace=False)
    half = len(rows) // 2
    neighbours = run.config.serving.neighbours
    with _server(run) as address, client_lib.Client(address) as client:
      start = time.monotonic()
      found = client.search(images=images[rows[:half]], k=neighbours)
      found += client.search(embeddings=gallery[rows[half:]], k=neighbours)
      seconds = time.monotonic() - start
      # No neighbour is known better than the embeddings themselves.
      embedded = client.embed(images[rows[:half]])
    queries = np.concatenate([embedded, gallery[rows[half:]]])
    position = {name: at for at, name in enumerate(built.ids)}
    agree = [
      retrieval.agrees_with_exact(
        query, gallery, [position[item.id] for item in items]
      )
      for query, items in zip(queries, found, strict=True)
    ]
    stamp.write(
      {
        'lookups': len(rows),
        'agreement_with_exact': float(np.mean(agree)),
        'seconds': seconds,
        'gallery': len(gallery),
      }
    )


@contextlib.contextmanager
def _server(run: opened.OpenRun) -> Iterator[str]:
  """Runs `dpemb serve` on the run's export; yields its address."""
  run.paths.serving.mkdir(parents=True, exist_ok=True)
  port_file = run.paths.serving / 'port'
  log = run.paths.serving / 'serve.log'
  settings = run.config.serving
  command = [
    *(sys.executable, '-m', 'launch.cli', 'serve', str(run.paths.export)),
    *('--index', str(run.paths.index / 'test')),
    *('--host', settings.host, '--port', str(settings.port)),
    *('--port-file', str(port_file)),
  ]
  if run.config.privacy.simulation:
    command.append('--allow-unprotected')  # The run's own check, on loopback.
  for path in (port_file, log):
    path.unlink(missing_ok=True)
  process = children.start(command, log_path=log)
  try:
    deadline = time.monotonic() + _START_SECONDS
    while not port_file.exists():
      if process.poll() is not None or time.monotonic() > deadline:
        last = log.read_text(errors='replace').strip().splitlines()[-1:]
        raise stamps.StageError(
          f'`dpemb serve` must start, got exit code {process.poll()}:'
          f' {" ".join(last)} (see {str(log)!r}).'
        )
      time.sleep(0.05)
    yield f'{settings.host}:{port_file.read_text().strip()}'
  finally:
    children.stop(process, grace_seconds=20)
    port_file.unlink(missing_ok=True)
