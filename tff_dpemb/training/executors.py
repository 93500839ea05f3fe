"""Where a round runs. The program owns every process that it starts here.

TFF's stock local context leaves its C++ worker running after a normal exit,
SIGTERM and SIGKILL alike; here the worker is `worker_process.OwnedWorker`.
"""

import contextlib
import os
from collections.abc import Iterator

import grpc  # TFF's remote executor takes a channel; nothing else here does.
import tensorflow_federated as tff

from tff_dpemb.training import worker_process

_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL_OPTIONS = [
  ('grpc.max_receive_message_length', _MESSAGE_BYTES),
  ('grpc.max_send_message_length', _MESSAGE_BYTES),
]


@contextlib.contextmanager
def local(
  *,
  concurrent_calls: int = -1,
  log_path: str | os.PathLike[str] = os.devnull,
) -> Iterator[worker_process.OwnedWorker]:
  """Runs TFF computations in one owned C++ worker on this machine.

  Sets TFF's default context inside the `with`, and yields the worker.
  Arguments and errors as of `worker_process.OwnedWorker`.
  """
  with worker_process.OwnedWorker(
    concurrent_calls=concurrent_calls, log_path=log_path
  ) as worker:
    channel = grpc.insecure_channel(
      f'localhost:{worker.port}', _CHANNEL_OPTIONS
    )
    with channel:
      stub = tff.framework.RemoteExecutorGrpcStub(channel)
      worker.wait_until_ready(lambda: bool(stub.is_ready))
      context = tff.framework.SyncExecutionContext(
        executor_fn=_RemoteFactory(stub, worker),
        compiler_fn=tff.backends.native.desugar_and_transform_to_native,
        transform_args=tff.tensorflow.transform_args,
        transform_result=tff.tensorflow.transform_result,
      )
      with tff.framework.get_context_stack().install(context):
        yield worker


class _RemoteFactory(tff.framework.ExecutorFactory):
  """Executors of one worker, one a cardinality; refuses a dead worker."""

  def __init__(
    self,
    stub: tff.framework.RemoteExecutorGrpcStub,
    worker: worker_process.OwnedWorker,
  ):
    self._stub = stub
    self._worker = worker
    self._executors: dict[tuple, tff.framework.RemoteExecutor] = {}

  def create_executor(self, cardinalities):
    if not self._worker.is_alive():
      raise worker_process.ExecutorError(
        'the TFF worker ended during the run; run the same command again to'
        ' resume from the last round.'
      )
    cardinalities = dict(cardinalities)
    cardinalities.setdefault(tff.CLIENTS, 0)
    key = tuple(sorted((str(k), v) for k, v in cardinalities.items()))
    if key not in self._executors:
      executor = tff.framework.RemoteExecutor(self._stub)
      executor.set_cardinalities(cardinalities)
      self._executors[key] = executor
    return self._executors[key]

  def clean_up_executor(self, cardinalities):
    key = tuple(sorted((str(k), v) for k, v in cardinalities.items()))
    executor = self._executors.pop(key, None)
    if executor is not None:
      executor.close()
