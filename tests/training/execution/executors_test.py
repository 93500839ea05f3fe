"""The same round on any executor, and no worker outlives its program."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import tensorflow_federated as tff

from tff_dpemb import config
from tff_dpemb.privacy.mechanisms import independent
from tff_dpemb.training import aggregators
from tff_dpemb.training import client_work
from tff_dpemb.training import process
from tff_dpemb.training.execution import executors
from tff_dpemb.training.execution.workers import channels
from tff_dpemb.training.execution.workers import process as worker_process

_PROGRAM = """
import signal, sys, time
from tff_dpemb.training.execution.workers import process as worker_process
# A suite that runs in the background of a shell hands SIGINT on as ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with worker_process.OwnedWorker() as worker:
  print(worker.pid, flush=True)
  if sys.argv[1] == 'raise':
    raise KeyboardInterrupt
  time.sleep(120)
"""


def _wait_until_gone(pid, *, seconds=5.0):
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline:
    if not psutil.pid_exists(pid):
      return True
    if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
      return True
    time.sleep(0.05)
  return False


@pytest.mark.parametrize('way', ['raise', 'SIGINT', 'SIGTERM', 'SIGKILL'])
def test_the_worker_dies_with_its_program(way):
  program = subprocess.Popen(
    [sys.executable, '-c', _PROGRAM, way],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )
  try:
    line = program.stdout.readline()
    worker = int(line)
    assert worker != program.pid
    if way != 'raise':
      assert psutil.pid_exists(worker)
      program.send_signal(getattr(signal, way))
    program.wait(timeout=20)
    assert program.returncode != 0
    assert _wait_until_gone(worker)
  finally:
    program.kill()
    program.wait()
    program.stdout.close()


@tff.tensorflow.computation(np.int32)
def _double(x):
  return 2 * x


def test_the_context_runs_computations_and_ends_its_worker(tff_worker):
  del tff_worker  # Contexts nest; the outer one stays usable afterwards.
  with executors.local() as worker:
    pid = worker.pid
    assert os.getpgid(pid) == pid
    assert _double(21) == 42
  assert _wait_until_gone(pid)
  assert _double(4) == 8


def test_a_dead_worker_is_started_again():
  with executors.local() as worker:
    assert _double(1) == 2
    pid = worker.pid
    os.kill(pid, signal.SIGKILL)
    assert _wait_until_gone(pid)
    assert _double(2) == 4
    assert worker.pid != pid


def _build(pure, backbone):
  run_config = config.from_mapping(
    {
      'name': 'test',
      'model': {'embedding_dim': 8},
      'training': {'head_steps': 3, 'backbone_batch_size': 4},
    }
  )
  return process.build_process(
    pure,
    process.local_tuning_from_config(run_config, num_classes=0),
    aggregators.build_aggregator(
      independent.AdaptiveClipGaussian(0.05, 1.0, virtual_clients=50),
      denominator=5.0,
    ),
    initial_weights=[v.numpy() for v in backbone.trainable_variables],
    server_learning_rate=0.5,
    server_momentum=0.9,
  )


def _clients():
  rng = np.random.default_rng(0)
  return [
    client_work.ClientData(
      images=rng.integers(0, 256, [n, 8, 8, 1]).astype(np.uint8),
      labels=(np.arange(n) % 3).astype(np.int32),
      seed=rng.integers(0, 1000, 2).astype(np.int32),
    )
    for n in (9, 0, 5, 12, 1)
  ]


def _assert_equal(one, other):
  for x, y in zip(one[0].weights, other[0].weights, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-6)
  assert one[1]['local']['examples'] == other[1]['local']['examples'] == 27
  clip = [
    float(
      result[0].aggregator.query_state.numerator_state.sum_state.l2_norm_clip
    )
    for result in (one, other)
  ]
  assert clip[0] == pytest.approx(clip[1], rel=1e-6)


def test_a_round_is_the_same_on_any_number_of_workers(
  tff_worker, pure, backbone
):
  """Also if workers end in it: noise and sum are those of the quiet round."""
  del tff_worker
  iterative = _build(pure, backbone)
  clients = _clients()
  state = process.with_fresh_noise(iterative.initialize())
  alone = iterative.next(state, clients)
  times = executors.last_round()
  assert [place.worker for place in times.placement] == ['local']
  assert times.total >= times.train >= 0
  # TFF's stock execution of the whole computation.
  context = tff.framework.get_context_stack().current
  stock = context._invoke_whole(
    iterative.next, tff.structure.Struct([(None, state), (None, clients)])
  )
  _assert_equal(alone, stock)
  with executors.workers(processes=2) as context:
    both = iterative.next(state, clients)
    _assert_equal(alone, both)
    assert {p.worker: p.clients for p in context.last_round.placement} == {
      'local-0': 3,
      'local-1': 2,
    }
    one, other = context.owned_workers()
    for victims in ([one], [one, other]):
      for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
      again = iterative.next(state, clients)
      _assert_equal(alone, again)
      assert context.last_round.losses >= len(victims)
      assert sum(p.clients for p in context.last_round.placement) == 5
    empty, _ = iterative.next(state, [])
    assert empty.round == 1
  assert not one.is_alive() and not other.is_alive()


def test_workers_run_what_is_no_round(tff_worker):
  del tff_worker

  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS),
  )
  def total(values):
    return tff.federated_sum(values)

  with executors.workers(processes=1):
    assert total([1, 2, 3]) == 6


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({}, 'must name a worker'),
    ({'addresses': ['10.0.0.7:8470']}, '10.0.0.7:8470 must have TLS'),
    ({'addresses': ['localhost']}, 'must be host:port'),
  ],
)
def test_workers_that_cannot_be_are_refused(arguments, message):
  with (
    pytest.raises(worker_process.ExecutorError, match=message),
    executors.workers(**arguments),
  ):
    pass


def test_a_page_chooses_the_executor(monkeypatch):
  made = []
  for name in ('local', 'workers'):
    monkeypatch.setattr(
      executors,
      name,
      lambda *args, _name=name, **options: made.append((_name, args, options)),
    )
  executors.open(config.RuntimeConfig(concurrent_calls=3))
  executors.open(
    config.RuntimeConfig(
      executor='workers',
      workers=('10.0.0.7:1',),
      tls_authority='a',
      tls_certificate='c',
      tls_key='k',
    )
  )
  (_, _, local), (_, addresses, spread) = made
  assert [name for name, *_ in made] == ['local', 'workers']
  assert local['concurrent_calls'] == 3
  assert addresses == (('10.0.0.7:1',),)
  assert spread['tls'] == channels.Tls('a', 'c', 'k')


def test_the_executor_changes_no_digest_of_what_is_promised():
  pages = [
    config.from_mapping({'name': 'test', 'runtime': runtime})
    for runtime in ({}, {'executor': 'workers', 'processes': 4})
  ]
  sections = ('model', 'privacy', 'training')
  assert pages[0].digest(*sections) == pages[1].digest(*sections)
  with pytest.raises(config.ConfigError, match='runtime.executor'):
    config.from_mapping({'name': 'test', 'runtime': {'executor': 'cloud'}})
