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

import collections
import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb.training import round_form
from tff_dpemb.training import worker_process

_ACCELERATORS = ('GPU', 'TPU')


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where the clients of the last round ran.

  Attributes:
    clients: How many ran on each device. A client counts for a device only
      when TensorFlow says that its result lies there.
    seconds: From the first client's start to the last one's end.
  """

  clients: Mapping[str, int]
  seconds: float


class Accelerator:
  """What `open` yields: the devices, and where the last round ran."""

  def __init__(self, devices: Sequence[str]):
    self.devices = tuple(devices)
    self._last: Placement | None = None

  def last_placement(self) -> Placement:
    """Returns where the last round ran.

    Raises:
      ExecutorError: No round has run yet.
    """
    if self._last is None:
      raise worker_process.ExecutorError(
        'a round must have run before its placement is asked for.'
      )
    return self._last


@contextlib.contextmanager
def open(
  *,
  devices: Sequence[str] | None = None,
  slots_per_device: int = 2,
  server_device: str = 'CPU:0',
) -> Iterator[Accelerator]:
  """Runs TFF processes on devices of this TensorFlow inside the `with`.

  Sets TFF's default context. It runs any `initialize` and `next` that TFF can
  put into MapReduceForm, without secure aggregation, whose client data are
  tensors; and plain TensorFlow computations.

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
    raise worker_process.ExecutorError(
      f'slots_per_device must be >= 1, got {slots_per_device}.'
    )
  chosen = _choose(devices)
  (server,) = _choose([server_device])
  for device in (*chosen, server):
    _probe(device)
  accelerator = Accelerator(chosen)
  slots = tuple(
    (device, slot)
    for slot in range(slots_per_device)
    for device in chosen  # Devices first: few clients still use all of them.
  )
  with futures.ThreadPoolExecutor(
    len(slots), thread_name_prefix='accelerator'
  ) as pool:
    context = _Context(accelerator, slots, server, pool)
    with tff.framework.get_context_stack().install(context):
      yield accelerator


def _choose(devices: Sequence[str] | None) -> tuple[str, ...]:
  """Returns full names of devices, such as '/device:GPU:0'."""
  listed = [device.name for device in tf.config.list_logical_devices()]
  if devices is None:
    for kind in _ACCELERATORS:
      found = [name for name in listed if f':{kind}:' in name]
      if found:
        return tuple(found)
    raise worker_process.ExecutorError(
      f'TensorFlow must list a GPU or a TPU, it lists {listed}; install the'
      " 'gpu' extra and a driver, or name devices that are there."
    )
  chosen = []
  for name in devices:
    kind, _, number = (
      name.removeprefix('/').removeprefix('device:').partition(':')
    )
    full = f'/device:{kind.upper()}:{number or 0}'
    if full not in listed:
      raise worker_process.ExecutorError(
        f'devices must be among {listed}, got {name!r}.'
      )
    chosen.append(full)
  if not chosen or len(set(chosen)) != len(chosen):
    raise worker_process.ExecutorError(
      f'devices must be one or more different ones, got {list(devices)}.'
    )
  return tuple(chosen)


def _probe(device: str) -> None:
  """Computes on a device and checks that the result lies there."""
  with tf.device(device):
    product = tf.matmul(tf.eye(8), tf.ones([8, 8]))
  _check_placement([product], device)
  if not np.array_equal(product.numpy(), np.ones([8, 8])):
    raise worker_process.ExecutorError(
      f'{device} must multiply by one exactly; do not use this device.'
    )


def _check_placement(tensors: Iterable[tf.Tensor], device: str) -> None:
  for tensor in tensors:
    # A function's integers lie in the host's memory, wherever it ran.
    lies_there = tensor.backing_device.endswith(device)
    if tensor.dtype.is_floating and not lies_there:
      raise worker_process.ExecutorError(
        f'a result must lie on {device}, TensorFlow put it on'
        f' {tensor.backing_device}.'
      )


class _Context(tff.framework.SyncContext):
  """Compiles each computation once and runs it."""

  def __init__(self, accelerator, slots, server, pool):
    self._accelerator = accelerator
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
      raise worker_process.ExecutorError(
        'the accelerator runs `initialize` and `next` of a process alone:'
        f' {error}'
      ) from error
    return _Round(
      form,
      comp.type_signature,
      accelerator=self._accelerator,
      slots=self._slots,
      server=self._server,
      pool=self._pool,
    )


class _OnServer:
  """A computation without clients."""

  def __init__(self, comp, type_signature, device):
    self._function = _Function(comp, device, name='server')
    self._parameter = type_signature.parameter
    self._result = type_signature.result  # A compiled one has no containers.

  def __call__(self, arg):
    tensors = [] if self._parameter is None else _flatten(arg, self._parameter)
    results = self._function(tensors)
    return _pack(results, self._result)


class _Round:
  """A round in MapReduceForm over slots of devices."""

  def __init__(self, form, type_signature, *, accelerator, slots, server, pool):
    self._accelerator = accelerator
    self._pool = pool
    self._state_type, self._data_type = type_signature.parameter
    self._result_type = type_signature.result
    self._devices = tuple(dict.fromkeys(device for device, _ in slots))
    self._prepare = _Function(form.prepare, server, name='prepare')
    self._merge = _Function(form.merge, server, name='merge')
    self._report = _Function(form.report, server, name='report')
    self._update = _Function(form.update, server, name='update')
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
    _wait_for(context)
    mark()
    contexts = {device: _copy(context, device) for device in self._devices}
    for copied in contexts.values():
      _wait_for(copied)
    mark()
    sums, placement = self._map(clients, contexts)
    mark()
    total = sums[0]
    for part in sums[1:]:
      total = self._merge([*total, *part])
    _wait_for(total)
    mark()
    results = self._update([*state, *self._report(total)])
    packed = _pack(results, self._result_type)
    mark()
    prepare, ship, train, aggregate, update = (
      later - earlier for earlier, later in itertools.pairwise(marks)
    )
    counts = collections.OrderedDict((p.worker, p.clients) for p in placement)
    self._accelerator._last = Placement(counts, train)
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
        return _copy(total, self._server)
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
    self._zero = _Function(form.zero, device, name=name)
    self._work = _Function(form.work, device, name=name)
    self._accumulate = _Function(form.accumulate, device, name=name)

  def zero(self) -> list[tf.Tensor]:
    return self._zero([])

  def add(self, total, data, context) -> list[tf.Tensor]:
    """Returns the sum with one client's update; waits until it is there."""
    update = self._work([*data, *context])
    _check_placement(update, self.device)
    total = self._accumulate([*total, *update])
    _wait_for(total)
    return total


class _Function:
  """A TensorFlow computation of TFF on one device: flat tensors in and out.

  The graph is imported into a `tf.function` once; tensors of unknown size keep
  it at one trace. Variables in it get names of their own on each slot, so that
  slots do not share them; they are initialised in each call.
  """

  def __init__(self, comp: Any, device: str, *, name: str):
    proto = tff.framework.ConcreteComputation.get_proto(comp).tensorflow
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    _make_unique(graph_def, f'{name}_{next(_SERIAL)}')
    parameter = comp.type_signature.parameter
    types = [] if parameter is None else _tensor_types(parameter)
    feeds = (
      [] if parameter is None else round_form.tensor_names(proto.parameter)
    )
    fetches = round_form.tensor_names(proto.result)

    def import_graph():
      with tf.device(device):
        tf.graph_util.import_graph_def(graph_def, name='')

    # Of TensorFlow's ways to import a graph, this one alone brings the graph's
    # library of functions along.
    whole = tf.compat.v1.wrap_function(import_graph, [])
    computed = [f for f in dict.fromkeys(fetches) if f not in feeds]
    compute = whole.prune(feeds, computed)
    initialize = None
    if proto.initialize_op:
      initialize = whole.prune([], [proto.initialize_op])
    specs = [tf.TensorSpec(t.shape, tf.as_dtype(t.dtype)) for t in types]

    # A pruned function writes its arguments out on each call, a tf.function
    # around it does not: 12 ms a client instead of 30.
    @tf.function(input_signature=specs, autograph=False)
    def run(*tensors):
      with tf.device(device):
        values = dict(zip(feeds, map(tf.identity, tensors), strict=True))
        if computed:
          values.update(zip(computed, compute(*values.values()), strict=True))
        return [tf.identity(values[fetch]) for fetch in fetches]

    self._initialize = initialize
    self._run = run.get_concrete_function()  # Traced now, in one thread.

  def __call__(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
    if self._initialize is not None:
      self._initialize()
    return list(self._run(*tensors))


_SERIAL = itertools.count()


def _make_unique(graph_def, suffix: str) -> None:
  """Gives variables and library functions names that no other graph has.

  Variables of one name would be shared by the slots. Functions of one name are
  shared by all of TensorFlow, and go when the first graph that has them goes.
  """
  renamed = {
    function.signature.name: f'{function.signature.name}_{suffix}'
    for function in graph_def.library.function
  }
  for function in graph_def.library.function:
    function.signature.name = renamed[function.signature.name]
  for gradient in graph_def.library.gradient:
    for field in ('function_name', 'gradient_func'):
      name = getattr(gradient, field)
      setattr(gradient, field, renamed.get(name, name))
  nodes = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
  for node in itertools.chain.from_iterable(nodes):
    node.op = renamed.get(node.op, node.op)
    if node.op == 'VarHandleOp':
      shared = node.attr['shared_name'].s or node.name.encode()
      node.attr['shared_name'].s = shared + f'_{suffix}'.encode()
    for value in node.attr.values():
      for called in (value.func, *value.list.func):
        if called.name in renamed:
          called.name = renamed[called.name]


def _wait_for(tensors: Sequence[tf.Tensor]) -> None:
  """Reads one number of what was computed last.

  Kernels of a GPU run behind Python: without this, nothing would bound the
  clients in flight, nor say when they are done.
  """
  for tensor in tensors:
    if tensor.shape.num_elements():
      tf.reshape(tensor, [-1])[:1].numpy()
      return


def _copy(tensors, device) -> list[tf.Tensor]:
  with tf.device(device):
    return [tf.identity(tensor) for tensor in tensors]


def _tensor_types(type_spec: Any) -> list[Any]:
  """Returns the tensor types of a TFF type, in order."""
  if isinstance(type_spec, tff.FederatedType):
    return _tensor_types(type_spec.member)
  if isinstance(type_spec, tff.StructType):
    return [
      t
      for _, part in tff.structure.iter_elements(type_spec)
      for t in _tensor_types(part)
    ]
  if isinstance(type_spec, tff.TensorType):
    return [type_spec]
  raise worker_process.ExecutorError(
    f'values must be tensors on an accelerator, got {type_spec}.'
  )


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
