"""Where a round runs: `local`, `workers` or `accelerator`.

Each is a context manager that sets TFF's default context and owns what it
starts: no process outlives it, however the program ends. The same round gives
the same update on any of them, to float tolerance, and its noise is drawn once,
in this process (see `round_form`): no worker learns it.
"""

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_dpemb import config
from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import channels
from tff_dpemb.training.execution.workers import member
from tff_dpemb.training.execution.workers import pool as worker_pool
from tff_dpemb.training.execution.workers import process
from tff_dpemb.training.execution.workers import remote as remote_worker

_MOST_LOSSES = 3  # of a computation that one worker runs as a whole


class ExecutorContext(tff.framework.SyncContext):
  """Runs rounds on all workers, and other computations whole on one.

  A process' `initialize` runs here: the state is made where it stays.
  """

  def __init__(self, pool: worker_pool.WorkerPool):
    self._pool = pool
    # By identity: TFF hashes a computation by its whole graph.
    self._forms: dict[int, tuple[Any, round_form.RoundForm | None]] = {}
    self._whole: dict[remote_worker.RemoteWorker, Any] = {}
    self.last_round: round_form.RoundTimes | None = None

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Returns the result of a computation of TFF."""
    if _is_start(comp.type_signature):
      return round_form.initial_state(comp)
    if not _is_round(comp.type_signature):
      return self._invoke_whole(comp, arg)
    form = self.form_of(comp)
    if form is None:
      return self._invoke_whole(comp, arg)
    state, clients = (value for _, value in tff.structure.iter_elements(arg))
    return self._invoke_round(form, state, clients)

  def close(self) -> None:
    """Frees what compiled rounds hold; the pool is not closed."""
    for _, form in self._forms.values():
      if form is not None:
        form.close()

  def owned_workers(self) -> list[process.OwnedWorker]:
    """Returns the processes that this context started."""
    return self._pool.owned_workers()

  def connections(self) -> list[remote_worker.RemoteWorker]:
    """Returns the connections to workers that are there now."""
    return self._pool.connections()

  def form_of(self, comp: Any) -> round_form.RoundForm | None:
    """Returns the round of a computation, None if workers cannot share it."""
    if id(comp) not in self._forms:
      form = None
      # Else not spread, but right: two layers of aggregation, sequences.
      with contextlib.suppress(round_form.RoundFormError):
        form = round_form.RoundForm(comp)
      self._forms[id(comp)] = (comp, form)
    return self._forms[id(comp)][1]

  def _invoke_round(self, form, state, clients):
    start = time.monotonic()
    broadcast = form.broadcast(state)
    data = [round_form.flat(client) for client in clients]
    prepared = time.monotonic()
    shared = self._pool.sum_of(form, broadcast, data)
    summed = time.monotonic()
    result = form.update(state, form.merge_partials(shared.partials))
    end = time.monotonic()
    self.last_round = round_form.RoundTimes(
      total=end - start,
      ship=shared.times.ship,
      train=shared.times.train,
      aggregate=shared.times.collect,
      server=(prepared - start) + (end - summed),
      losses=shared.losses,
      placement=shared.placement,
    )
    return result

  def _invoke_whole(self, comp, arg):
    self.last_round = None
    for losses in range(_MOST_LOSSES + 1):
      worker, connection = self._pool.any_worker(for_whole=True)
      if connection not in self._whole:
        self._whole = {connection: _whole_context(connection)}
      try:
        return self._whole[connection].invoke(comp, arg)
      except remote_worker.WorkerLost:
        self._pool.lose(worker)
        if losses == _MOST_LOSSES:
          raise
    raise AssertionError('unreachable')


def last_round() -> round_form.RoundTimes | None:
  """Returns the times of the last round in the current context, if known."""
  context = tff.framework.get_context_stack().current
  return getattr(context, 'last_round', None)


def open(
  runtime: config.RuntimeConfig,
  *,
  log_path: str | os.PathLike[str] = os.devnull,
) -> contextlib.AbstractContextManager[Any]:
  """Returns the executor that a run page asks for; errors as of each."""
  match runtime.executor:
    case 'local':
      return local(concurrent_calls=runtime.concurrent_calls, log_path=log_path)
    case 'workers':
      return workers(
        runtime.workers,
        processes=runtime.processes,
        concurrent_calls=runtime.concurrent_calls,
        tls=channels.tls_from_files(
          runtime.tls_authority, runtime.tls_certificate, runtime.tls_key
        ),
        insecure_network=runtime.insecure_network,
        log_path=log_path,
      )
    case 'accelerator':
      # It sets TensorFlow's devices up, which the others leave alone.
      from tff_dpemb.training.execution import accelerator

      return accelerator.open(
        devices=runtime.devices or None,
        slots_per_device=runtime.concurrent_calls or 2,
      )


@contextlib.contextmanager
def local(
  *,
  concurrent_calls: int = 0,
  log_path: str | os.PathLike[str] = os.devnull,
  environment: Mapping[str, str] | None = None,
) -> Iterator[process.OwnedWorker]:
  """Runs TFF computations in one owned C++ worker on this machine.

  Yields the worker. A worker that ends in a round is started again, and the
  round goes on.

  Args:
    concurrent_calls: Clients at a time; less than 1: as many as cores.
    log_path: Where the worker's own messages are appended.
    environment: Variables that the worker gets besides this program's own.

  Raises:
    ExecutorError: The worker cannot be started.
    children.ProcessError: This is not the main thread.
  """
  with _pool(
    1,
    concurrent_calls=concurrent_calls,
    log_path=log_path,
    environment=environment,
  ) as (_, owned):
    yield owned[0].process


@contextlib.contextmanager
def workers(
  addresses: Sequence[str] = (),
  *,
  processes: int = 0,
  concurrent_calls: int = 0,
  tls: channels.Tls | None = None,
  insecure_network: bool = False,
  start_seconds: float = 60.0,
  log_path: str | os.PathLike[str] = os.devnull,
  environment: Mapping[str, str] | None = None,
) -> Iterator[ExecutorContext]:
  """Spreads rounds over workers, started by `dpemb worker` or owned here.

  A worker that is lost in a round is taken out, and its share done elsewhere; a
  local one is started again, a remote one may rejoin in the next round.

  Args:
    addresses: `host:port` of each worker on another machine.
    processes: Workers to start on this machine besides.
    concurrent_calls: Clients at a time on each; less than 1: this machine's
      cores, shared by what is started here.
    tls: Certificates of both sides; all addresses or none use it.
    insecure_network: Allows addresses beyond loopback without TLS.
    start_seconds: How long to wait for workers at first. The run begins with
      those that have come; the others may join later.
    log_path: Where owned workers' messages are appended.
    environment: As of `local`.

  Raises:
    ExecutorError: No worker answers, or one computes something else; or an
      address is not `host:port`, or is not protected.
    children.ProcessError: This is not the main thread.
  """
  for address in addresses:
    channels.split_address(address)
    channels.check_is_protected(address, tls, insecure_network=insecure_network)
  if not addresses and processes < 1:
    raise process.ExecutorError(
      'runtime.workers must name a worker, or runtime.processes be at least 1;'
      ' set executor = "local" for one worker here.'
    )
  with _pool(
    processes,
    addresses=addresses,
    concurrent_calls=concurrent_calls,
    tls=tls,
    start_seconds=start_seconds,
    log_path=log_path,
    environment=environment,
  ) as (context, _):
    yield context


@contextlib.contextmanager
def _pool(
  count,
  *,
  addresses=(),
  concurrent_calls=0,
  tls=None,
  start_seconds=60.0,
  log_path,
  environment,
):
  credentials = tls.coordinator_credentials() if tls else None
  slots = concurrent_calls
  if slots < 1:
    slots = worker_pool.slots_here(max(count, 1))
  owned = member.start(
    count,
    functools.partial(
      process.OwnedWorker, log_path=log_path, environment=environment
    ),
  )
  remote = [
    member.Member(name=address, target=address, credentials=credentials)
    for address in addresses
  ]
  with contextlib.ExitStack() as stack:
    pool = worker_pool.WorkerPool([*owned, *remote], slots=slots)
    stack.callback(pool.close)
    pool.connect(deadline_seconds=start_seconds)
    context = ExecutorContext(pool)
    stack.callback(context.close)
    stack.enter_context(tff.framework.get_context_stack().install(context))
    yield context, owned


def _is_start(signature: tff.FunctionType) -> bool:
  """Returns whether a type is () -> state@SERVER."""
  return signature.parameter is None and _is_at(signature.result, tff.SERVER)


def _is_round(signature: tff.FunctionType) -> bool:
  """Returns whether a type is (state@SERVER, clients) -> (state, metrics)."""
  parameter, result = signature.parameter, signature.result
  if not isinstance(parameter, tff.StructType) or len(parameter) != 2:
    return False
  if not isinstance(result, tff.StructType) or len(result) != 2:
    return False
  return (
    _is_at(parameter[0], tff.SERVER)
    and _is_at(parameter[1], tff.CLIENTS)
    and not parameter[1].all_equal
    and _is_at(result[0], tff.SERVER)
    and _is_at(result[1], tff.SERVER)
  )


def _is_at(value_type: tff.Type, placement: Any) -> bool:
  return (
    isinstance(value_type, tff.FederatedType)
    and value_type.placement is placement
  )


def _whole_context(connection: remote_worker.RemoteWorker) -> Any:
  return tff.framework.SyncExecutionContext(
    executor_fn=_RemoteFactory(connection.stub()),
    compiler_fn=tff.backends.native.desugar_and_transform_to_native,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )


class _RemoteFactory(tff.framework.ExecutorFactory):
  """TFF's executors of one worker, one a number of clients."""

  def __init__(self, stub: Any):
    self._stub = stub
    self._executors: dict[tuple, tff.framework.RemoteExecutor] = {}

  def create_executor(self, cardinalities):
    cardinalities = dict(cardinalities)
    cardinalities.setdefault(tff.CLIENTS, 0)
    key = tuple(sorted((str(k), v) for k, v in cardinalities.items()))
    if key not in self._executors:
      executor = tff.framework.RemoteExecutor(self._stub)
      executor.set_cardinalities(cardinalities)
      self._executors[key] = executor
    return self._executors[key]

  def clean_up_executor(self, cardinalities):
    cardinalities = dict(cardinalities)
    cardinalities.setdefault(tff.CLIENTS, 0)
    key = tuple(sorted((str(k), v) for k, v in cardinalities.items()))
    executor = self._executors.pop(key, None)
    if executor is not None:
      executor.close()
