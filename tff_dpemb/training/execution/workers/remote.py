"""One TFF worker as the coordinator sees it: a channel and what lies behind it.

Speaks TFF's ExecutorGroup protocol. A worker answers a call of a computation at
once and computes when the arguments are there, so a whole share of a round is
sent without waiting, client after client, and then its one result is awaited.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2
from tensorflow_federated.proto.v0 import executor_pb2_grpc

from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import messages
from tff_dpemb.training.execution.workers import process

_CHANNEL_OPTIONS = (
  *messages.SIZE_OPTIONS,
  # One connection a channel: a new channel must not find an old, dead one.
  ('grpc.use_local_subchannel_pool', 1),
)
_LOST = (
  grpc.StatusCode.UNAVAILABLE,
  grpc.StatusCode.CANCELLED,  # The channel was closed under the call.
  grpc.StatusCode.DEADLINE_EXCEEDED,
  grpc.StatusCode.FAILED_PRECONDITION,  # It was restarted, and forgot all.
)
_PROBE_SECONDS = 10.0
# Data of clients that a worker may hold before they are trained on.
_WINDOW_BYTES = 512 * 1024 * 1024
_ATTEMPT_SECONDS = 5.0
_RETRY_SECONDS = 0.05


class WorkerLost(process.ExecutorError):
  """A worker that does not answer; what it did in this round is gone."""

  exit_code = 75  # The same command goes on after the last finished round.


class WorkerRefused(process.ExecutorError):
  """A worker that must not be used: it computes something else."""


@dataclasses.dataclass(frozen=True)
class ShareTimes:
  """Seconds of one share on one worker, one after the other."""

  ship: float  # data and weights to it
  train: float  # until its result was there
  collect: float  # the result from it


class RemoteWorker:
  """A connection to one worker. Close it; `run_share` may be in one thread."""

  def __init__(
    self,
    target: str,
    *,
    name: str = '',
    credentials: grpc.ChannelCredentials | None = None,
  ):
    """Opens a channel; connects when it is used.

    Args:
      target: gRPC address.
      name: What messages call it.
      credentials: TLS; without, the channel is not encrypted.
    """
    self.name = name or target
    self._target = target
    self._credentials = credentials
    self._open()
    self._executor: executor_pb2.ExecutorId | None = None
    self.has_devices = False  # It runs the parts of rounds alone.
    self._head = b''  # The executor's field of a CreateValueRequest.
    self._functions: dict[round_form.RoundForm, Mapping[str, Any]] = {}
    self._held: list[Any] = []  # What the worker holds of the share.

  def _open(self) -> None:
    target, options = self._target, _CHANNEL_OPTIONS
    if self._credentials is None:
      self._channel = grpc.insecure_channel(target, options)
    else:
      self._channel = grpc.secure_channel(target, self._credentials, options)
    self._stub = executor_pb2_grpc.ExecutorGroupStub(self._channel)
    self._create_value = self._channel.unary_unary(
      '/tensorflow_federated.v0.ExecutorGroup/CreateValue',
      response_deserializer=executor_pb2.CreateValueResponse.FromString,
    )

  def connect(
    self,
    *,
    deadline_seconds: float,
    may_come: Callable[[], bool] = lambda: True,
  ) -> None:
    """Returns when the worker has answered; does nothing if it has before.

    Args:
      deadline_seconds: How long to wait.
      may_come: Whether it is worth waiting; for a process that is known.

    Raises:
      WorkerLost: It does not answer; names the address, why, and what to do.
    """
    if self._executor is not None:
      return
    deadline = time.monotonic() + deadline_seconds
    request = executor_pb2.GetExecutorRequest()
    cardinality = request.cardinalities.add(cardinality=0)
    cardinality.placement.uri = 'clients'
    while True:
      try:
        left = max(deadline - time.monotonic(), 0.1)
        answer = self._stub.GetExecutor(
          request, timeout=min(left, _ATTEMPT_SECONDS)
        )
        break
      except grpc.RpcError as error:
        if not may_come():
          raise WorkerLost(
            f'worker {self.name} ended, or was given up, before it answered.'
          ) from None
        if time.monotonic() + _RETRY_SECONDS > deadline:
          raise WorkerLost(
            f'worker {self.name} must answer within {deadline_seconds:g} s:'
            f' {_reason(error)}; start it there with `dpemb worker`, or take it'
            ' out of runtime.workers.'
          ) from None
      time.sleep(_RETRY_SECONDS)
      # A channel that could not connect waits for seconds before it tries.
      self._channel.close()
      self._open()
    self._executor = answer.executor
    self.has_devices = answer.executor.id.startswith(messages.DEVICES_PREFIX)
    self._head = executor_pb2.CreateValueRequest(
      executor=self._executor
    ).SerializeToString()

  def check(self) -> None:
    """Runs a small known computation there.

    Raises:
      WorkerRefused: Its result differs: another version, or no TFF worker.
      WorkerLost: It did not answer.
    """
    computation, expected = _handshake()
    function = self._create_computation(computation)
    got = self._compute(self._call(function), computation.type_signature.result)
    if len(got) != len(expected) or not all(
      np.allclose(x, y, atol=1e-4) for x, y in zip(got, expected, strict=True)
    ):
      raise WorkerRefused(
        f'worker {self.name} must compute as this machine does, its answer to a'
        ' known computation differs; install the same versions there.'
      )

  def probe(self, *, deadline_seconds: float = _PROBE_SECONDS) -> bool:
    """Returns whether the worker answers, and still knows this connection."""
    if self._executor is None:
      return False
    try:
      self._stub.Dispose(
        executor_pb2.DisposeRequest(executor=self._executor),
        timeout=deadline_seconds,
      )
    except (grpc.RpcError, ValueError):  # ValueError: a closed channel.
      return False
    return True

  def run_share(
    self,
    form: round_form.RoundForm,
    broadcast: bytes,
    clients: Sequence[Sequence[np.ndarray]],
    *,
    slots: int,
  ) -> tuple[list[np.ndarray], ShareTimes]:
    """Returns the partial sum of some clients, and what took how long.

    Args:
      form: The round.
      broadcast: `messages.encode` of its broadcast.
      clients: Flat data of each; at least one.
      slots: Clients at a time; the worker holds one partial sum for each.

    Raises:
      WorkerLost: It did not answer. Nothing of the share counts.
      ExecutorError: The computation itself failed.
    """
    start = time.monotonic()
    try:
      functions = self._functions_of(form)
      weights = self._send(broadcast)
      lanes = [
        self._call(functions['zero']) for _ in range(min(slots, len(clients)))
      ]
      on_the_way = 0
      for index, data in enumerate(clients):
        lane = index % len(lanes)
        encoded = messages.encode(data)
        on_the_way += len(encoded)
        if on_the_way > _WINDOW_BYTES:
          self._wait_for(lanes[lane], form.partial_type)
          on_the_way = len(encoded)
        sent_data = self._send(encoded)
        partial = self._call(functions['step'], lanes[lane], weights, sent_data)
        # The call under way keeps what it needs.
        self._dispose(lanes[lane], sent_data)
        lanes[lane] = partial
      while len(lanes) > 1:
        lanes = [*lanes[2:], self._call(functions['merge'], *lanes[:2])]
      sent = time.monotonic()
      self._wait_for(lanes[0], form.partial_type)
      trained = time.monotonic()
      result = self._compute(lanes[0], form.partial_type)
      end = time.monotonic()
      return result, ShareTimes(sent - start, trained - sent, end - trained)
    finally:
      with contextlib.suppress(process.ExecutorError):
        self._dispose(*self._held)

  def close(self) -> None:
    """Ends the connection; calls under way fail. Safe to call twice."""
    executor, self._executor = self._executor, None
    if executor is not None:
      with contextlib.suppress(grpc.RpcError, ValueError):
        self._stub.DisposeExecutor(
          executor_pb2.DisposeExecutorRequest(executor=executor), timeout=1.0
        )
    self.abandon()

  def abandon(self) -> None:
    """Closes the channel without a word to the worker, from any thread."""
    self._channel.close()

  @property
  def computations(self) -> int:
    """Returns how many rounds' computations the worker was sent."""
    return len(self._functions)

  def stub(self) -> Any:
    """Returns what TFF's own `RemoteExecutor` takes for this worker."""
    return _Stub(self)

  def _functions_of(self, form: round_form.RoundForm) -> Mapping[str, Any]:
    if form not in self._functions:
      step = form.plain_step if self.has_devices else form.step
      self._functions[form] = {
        name: self._create_computation(computation)
        for name, computation in (
          ('zero', form.zero),
          ('step', step),
          ('merge', form.merge),
        )
      }
      self._held.clear()  # They stay as long as the connection.
    return self._functions[form]

  def _create_computation(self, computation: Any) -> Any:
    value, _ = tff.framework.serialize_value(computation)
    request = executor_pb2.CreateValueRequest(value=value)
    return self._send(request.SerializeToString())

  def _send(self, encoded: bytes) -> Any:
    # Fields of a message may come in pieces, so what all workers get is
    # encoded once.
    return self._keep(self._rpc(self._create_value, self._head + encoded))

  def _call(self, function: Any, *arguments: Any) -> Any:
    request = executor_pb2.CreateCallRequest(executor=self._executor)
    request.function_ref.CopyFrom(function)
    if arguments:
      struct = executor_pb2.CreateStructRequest(executor=self._executor)
      for argument in arguments:
        struct.element.add().value_ref.CopyFrom(argument)
      packed = self._keep(self._rpc(self._stub.CreateStruct, struct))
      request.argument_ref.CopyFrom(packed)
    result = self._keep(self._rpc(self._stub.CreateCall, request))
    if arguments:
      self._dispose(packed)
    return result

  def _wait_for(self, value: Any, value_type: tff.StructType) -> None:
    """Returns when a struct is computed: asks for its smallest leaf."""
    sizes = [np.prod(leaf.shape, dtype=np.int64) for leaf in value_type]
    request = executor_pb2.CreateSelectionRequest(
      executor=self._executor, source_ref=value, index=int(np.argmin(sizes))
    )
    leaf = self._keep(self._rpc(self._stub.CreateSelection, request))
    self._rpc(self._stub.Compute, self._compute_request(leaf))

  def _compute(self, value: Any, value_type: tff.Type) -> list[np.ndarray]:
    answer = self._rpc(self._stub.Compute, self._compute_request(value))
    content, _ = tff.framework.deserialize_value(answer.value, value_type)
    return round_form.flat(content)

  def _compute_request(self, value: Any) -> Any:
    return executor_pb2.ComputeRequest(executor=self._executor, value_ref=value)

  def _keep(self, answer: Any) -> Any:
    self._held.append(answer.value_ref)
    return answer.value_ref

  def _dispose(self, *values: Any) -> None:
    """Lets the worker forget values of the share."""
    request = executor_pb2.DisposeRequest(executor=self._executor)
    request.value_ref.extend(values)
    self._held = [held for held in self._held if held not in values]
    self._rpc(self._stub.Dispose, request)

  def _rpc(self, method: Callable[..., Any], request: Any) -> Any:
    try:
      return method(request)
    except ValueError as error:  # The channel was closed before the call.
      raise WorkerLost(f'worker {self.name} was given up.') from error
    except grpc.RpcError as error:
      if error.code() in _LOST or not self.probe():
        raise WorkerLost(
          f'worker {self.name} does not answer: {_reason(error)}.'
        ) from error
      raise process.ExecutorError(
        f'worker {self.name} could not compute: {_reason(error)}.'
      ) from error


class _Stub:
  """The calls of an ExecutorGroup, without TFF's endless retry."""

  def __init__(self, worker: RemoteWorker):
    self._worker = worker

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    method = ''.join(part.title() for part in name.split('_'))
    rpc = getattr(self._worker._stub, method)
    if not name.startswith('dispose'):
      return lambda request: self._worker._rpc(rpc, request)

    def dispose(request):
      # TFF calls it when a value is collected; a lost worker holds nothing.
      with contextlib.suppress(WorkerLost):
        self._worker._rpc(rpc, request)

    return dispose


def _handshake() -> tuple[tff.framework.ConcreteComputation, list[np.ndarray]]:
  """Returns a computation that every right worker answers alike."""

  @tff.tensorflow.computation
  def known():
    seed = tf.constant([3, 5])
    return (
      tf.random.stateless_normal([8], seed),
      tf.random.experimental.stateless_shuffle(tf.range(8), seed),
    )

  return known, round_form.ServerFunction(known)()


def _reason(error: grpc.RpcError) -> str:
  """Returns the first line of what gRPC says, without its addresses."""
  details = (error.details() or '').strip().splitlines()
  code = error.code().name.lower().replace('_', ' ')
  return f'{code} ({details[0][:160]})' if details else code
