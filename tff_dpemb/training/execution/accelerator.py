"""TFF rounds that TensorFlow itself runs, on GPUs or other devices, in process.

The wheel's C++ worker holds no CUDA. Here a process of TFF is compiled to its
MapReduceForm (prepare, work, accumulate, merge, report, update: plain
TensorFlow) and each part runs as a cached `tf.function`:

  prepare(state) --- once, on the server device; copied to each device once
  work(client, ...), accumulate --- on the devices, `slots_per_device` threads
    a device, each with a running sum of its own: memory is O(slots)
  merge, report, update --- once, on the server device: the noise is drawn here

A slot takes the next client when it is free. The order of a sum therefore
differs between runs, as it does in the C++ worker: results agree to float
tolerance, not to the bit. Noise comes from seeds in the state, so it is the
same wherever the server device is a CPU or a GPU.

Nothing here bounds or noises an update: that is in the process, as elsewhere.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.training.execution import device_functions
from tff_dpemb.training.execution import round_form
from tff_dpemb.training.execution.workers import process


@contextlib.contextmanager
def open(
  *,
  devices: Sequence[str] | None = None,
  slots_per_device: int = 2,
  server_device: str = 'CPU:0',
) -> Iterator[tuple[str, ...]]:
  """Runs TFF processes on devices of this TensorFlow inside the `with`.

  Sets TFF's default context. It runs any `initialize` and `next` that TFF can
  put into MapReduceForm, without secure aggregation, whose client data are
  tensors; and plain TensorFlow computations. Yields the full names of the
  devices; `executors.last_round` says what each one did.

  Args:
    devices: Such as ('GPU:0', 'GPU:1'); None: every GPU, else every TPU core,
      that TensorFlow lists. A CPU runs only when it is named.
    slots_per_device: Clients in flight on a device. With two, one client's
      data and Python overlap another one's kernels.
    server_device: Where sums are merged and noised and the server steps.

  Raises:
    ExecutorError: No such device, no accelerator, or no slot.
  """
  if slots_per_device < 1:
    raise process.ExecutorError(
      f'slots_per_device must be >= 1, got {slots_per_device}.'
    )
  chosen = device_functions.choose(devices)
  (server,) = device_functions.choose([server_device])
  for device in (*chosen, server):
    device_functions.probe(device)
  slots = tuple(
    (device, slot)
    for slot in range(slots_per_device)
    for device in chosen  # Devices first: few clients still use all of them.
  )
  with futures.ThreadPoolExecutor(
    len(slots), thread_name_prefix='accelerator'
  ) as pool:
    context = _Context(slots, server, pool)
    with tff.framework.get_context_stack().install(context):
      yield chosen


class _Context(tff.framework.SyncContext):
  """Compiles each computation once and runs it."""

  def __init__(self, slots, server, pool):
    self._slots = slots
    self._server = server
    self._pool = pool
    # The computation is kept beside its compiled form, so its id stays its own.
    self._compiled: dict[int, tuple[Any, Any]] = {}
    self.last_round: round_form.RoundTimes | None = None

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation of TFF; see `open` for which ones."""
    if id(comp) not in self._compiled:
      self._compiled[id(comp)] = (comp, self._compile(comp))
    _, run = self._compiled[id(comp)]
    result = run(arg)
    if isinstance(run, _Round):
      self.last_round = run.last_round
    return result

  def _compile(self, comp):
    proto = tff.framework.ConcreteComputation.get_proto(comp)
    if proto.WhichOneof('computation') == 'tensorflow':
      return _OnServer(comp, comp.type_signature, self._server)
    if comp.type_signature.parameter is None:
      initialize = tff.backends.mapreduce.get_state_initialization_computation(
        comp, round_form.no_rewrites()
      )
      return _OnServer(initialize, comp.type_signature, self._server)
    try:
      form = round_form.map_reduce_form(comp)
    except round_form.RoundFormError as error:
      raise process.ExecutorError(
        'the accelerator runs `initialize` and `next` of a process alone:'
        f' {error}'
      ) from error
    return _Round(
      form,
      comp.type_signature,
      slots=self._slots,
      server=self._server,
      pool=self._pool,
    )


class _OnServer:
  """A computation without clients."""

  def __init__(self, comp, type_signature, device):
    self._function = device_functions.DeviceFunction(
      comp, device, name='server'
    )
    self._parameter = type_signature.parameter
    self._result = type_signature.result  # A compiled one has no containers.

  def __call__(self, arg):
    tensors = [] if self._parameter is None else _flatten(arg, self._parameter)
    results = self._function(tensors)
    return _pack(results, self._result)


class _Round:
  """A round in MapReduceForm over slots of devices."""

  def __init__(self, form, type_signature, *, slots, server, pool):
    self._pool = pool
    self._state_type, self._data_type = type_signature.parameter
    self._result_type = type_signature.result
    self._devices = tuple(dict.fromkeys(device for device, _ in slots))
    self._prepare = device_functions.DeviceFunction(
      form.prepare, server, name='prepare'
    )
    self._merge = device_functions.DeviceFunction(
      form.merge, server, name='merge'
    )
    self._report = device_functions.DeviceFunction(
      form.report, server, name='report'
    )
    self._update = device_functions.DeviceFunction(
      form.update, server, name='update'
    )
    self._server = server
    self.last_round: round_form.RoundTimes | None = None
    self._slots = [_Slot(form, device, number) for device, number in slots]

  def __call__(self, arg):
    marks = [time.perf_counter()]

    def mark() -> None:
      marks.append(time.perf_counter())

    state = _flatten(arg[0], self._state_type.member)
    clients = list(arg[1])
    context = self._prepare(state)
    device_functions.wait_for(context)
    mark()
    contexts = {
      device: device_functions.copy_to(context, device)
      for device in self._devices
    }
    for copied in contexts.values():
      device_functions.wait_for(copied)
    mark()
    sums, placement = self._map(clients, contexts)
    mark()
    total = sums[0]
    for part in sums[1:]:
      total = self._merge([*total, *part])
    device_functions.wait_for(total)
    mark()
    results = self._update([*state, *self._report(total)])
    packed = _pack(results, self._result_type)
    mark()
    prepare, ship, train, aggregate, update = (
      later - earlier for earlier, later in itertools.pairwise(marks)
    )
    self.last_round = round_form.RoundTimes(
      total=marks[-1] - marks[0],
      ship=ship,
      train=train,
      aggregate=aggregate,
      server=prepare + update,
      losses=0,
      placement=placement,
    )
    return packed

  def _map(self, clients, contexts):
    """Returns the sums of the slots, on the server, and what each device did.

    A client counts for a device only when TensorFlow says that its update lies
    there: `_Slot.add` fails otherwise.

    Each slot first gets a client of its own, then the next one when it is free:
    as many devices as there are clients are used, whatever the threads do.
    """
    used = self._slots[: max(1, min(len(clients), len(self._slots)))]
    queue = iter(clients[len(used) :])
    lock = threading.Lock()
    failed = threading.Event()

    def next_client():
      with lock:
        return () if failed.is_set() else tuple(itertools.islice(queue, 1))

    def run(number, slot):
      batch = tuple(clients[number : number + 1])
      try:
        total = slot.zero()
        while batch:
          tensors = _flatten(batch[0], self._data_type.member)
          total = slot.add(total, tensors, contexts[slot.device])
          batch = next_client()
          slot.clients += 1
          slot.examples += round_form.examples_of(tensors)
        slot.seconds = time.perf_counter() - start
        return device_functions.copy_to(total, self._server)
      except BaseException:
        failed.set()  # The others stop after the client that they have.
        raise

    start = time.perf_counter()
    for slot in self._slots:
      slot.clients, slot.examples, slot.seconds = 0, 0, 0.0
    running = [
      self._pool.submit(run, number, slot) for number, slot in enumerate(used)
    ]
    try:
      futures.wait(running)
    except BaseException:  # Ctrl-C: no slot takes another client.
      failed.set()
      raise
    sums = [future.result() for future in running]
    placement = []
    for device in self._devices:
      here = [slot for slot in self._slots if slot.device == device]
      placement.append(
        round_form.Placement(
          device,
          clients=sum(slot.clients for slot in here),
          examples=sum(slot.examples for slot in here),
          seconds=max(slot.seconds for slot in here),
        )
      )
    return sums, placement


class _Slot:
  """One client at a time on one device."""

  def __init__(self, form, device, number):
    self.device = device
    self.clients = 0  # Of the last round, as what follows.
    self.examples = 0
    self.seconds = 0.0  # From the start of the round's client work.
    name = f'slot{number}'
    self._zero = device_functions.DeviceFunction(form.zero, device, name=name)
    self._work = device_functions.DeviceFunction(form.work, device, name=name)
    self._accumulate = device_functions.DeviceFunction(
      form.accumulate, device, name=name
    )

  def zero(self) -> list[tf.Tensor]:
    return self._zero([])

  def add(self, total, data, context) -> list[tf.Tensor]:
    """Returns the sum with one client's update; waits until it is there."""
    update = self._work([*data, *context])
    device_functions.check_placement(update, self.device)
    total = self._accumulate([*total, *update])
    device_functions.wait_for(total)
    return total


def _flatten(value: Any, type_spec: Any) -> list[tf.Tensor]:
  """Returns the tensors of a Python value, in the order of its type."""
  if isinstance(type_spec, tff.FederatedType):
    return _flatten(value, type_spec.member)
  if isinstance(type_spec, tff.TensorType):
    return [tf.convert_to_tensor(value, tf.as_dtype(type_spec.dtype))]
  tensors = []
  for index, (name, part) in enumerate(tff.structure.iter_elements(type_spec)):
    if isinstance(value, Mapping):
      element = value[name]
    elif name is not None and hasattr(value, name):
      element = getattr(value, name)
    else:
      element = value[index]
    tensors += _flatten(element, part)
  return tensors


def _pack(tensors: Sequence[tf.Tensor], type_spec: Any) -> Any:
  return round_form.pack([tensor.numpy() for tensor in tensors], type_spec)
