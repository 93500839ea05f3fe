"""A round cut at its one aggregation, so that workers can share its clients.

TFF's MapReduce form of a process' `next` says which part needs what:

  broadcast = prepare(state)                     on the server
  partial   = zero; for each client of a share:  on some worker
                partial = accumulate(partial, work(data, broadcast))
  partial   = merge(partial, other partial)      on the server
  state, metrics = update(state, report(partial))    on the server

What workers see is the broadcast (the weights and the clip norm) and the data
of their clients. The state stays here, and with it the noise: its seeds, its
buffers and the one draw of a round, which is made in `update`.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


class RoundFormError(ValueError):
  """A computation that is no round that workers could share."""


@dataclasses.dataclass(frozen=True)
class Placement:
  """What one worker, or device, did in a round."""

  worker: str
  clients: int
  examples: int
  seconds: float


@dataclasses.dataclass(frozen=True)
class RoundTimes:
  """Where the time of one round went, in seconds, and who did what.

  `ship`, `train` and `aggregate` are of the share that ended last; `server` is
  the work in this process: broadcast, merge, noise and server step. `ship` ends
  when the last client is sent, and the first ones train meanwhile.
  """

  total: float
  ship: float
  train: float
  aggregate: float
  server: float
  losses: int
  placement: Sequence[Placement]


class ServerFunction:
  """One TensorFlow computation of TFF, run in this process.

  Values are flat lists of arrays, in the order of the type.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    parts = GraphParts(computation)
    self._graph = tf.Graph()
    with self._graph.as_default():
      tf.graph_util.import_graph_def(parts.graph_def, name='')
    self._parameters, self._results = parts.parameters, parts.results
    self._initialize = parts.initialize
    self._session: tf.compat.v1.Session | None = None

  def __call__(self, arguments: Sequence[Any] = ()) -> list[np.ndarray]:
    """Returns the flat result for flat arguments."""
    if self._session is None:
      self._session = tf.compat.v1.Session(graph=self._graph)
    if self._initialize:
      self._session.run(self._initialize)
    feed = dict(zip(self._parameters, arguments, strict=True))
    return self._session.run(self._results, feed)

  def close(self) -> None:
    """Frees the session; safe to call twice."""
    session, self._session = self._session, None
    if session is not None:
      session.close()


class RoundForm:
  """The parts of a round; values are flat lists of arrays.

  Attributes:
    partial_type, broadcast_type, data_type: Flat TFF types of what a worker
      holds.
    zero, step, merge: Computations for a worker: `zero() -> partial`,
      `step(partial, broadcast, data) -> partial` and
      `merge(partial, partial) -> partial`.
    plain_step: `step` with branches and loops as functions. In the others, they
      are inlined, which TFF's own worker runs a little faster, and which a
      `tf.function` cannot hold where there are several devices ("Missing src
      context" when it is traced).
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    """Compiles a round.

    Raises:
      RoundFormError: Its aggregates depend on each other, or it is not of the
        form (state@SERVER, data@CLIENTS) -> (state@SERVER, metrics@SERVER).
    """
    self._result_type = computation.type_signature.result
    form = map_reduce_form(computation)
    self._prepare = ServerFunction(form.prepare)
    self._zero_here = ServerFunction(form.zero)
    self._merge_here = ServerFunction(form.merge)
    self._report = ServerFunction(form.report)
    self._update = ServerFunction(form.update)
    self._server_functions = (
      self._prepare,
      self._zero_here,
      self._merge_here,
      self._report,
      self._update,
    )
    self.data_type, self.broadcast_type = map(
      _flat_type, form.work.type_signature.parameter
    )
    self.partial_type = _flat_type(form.zero.type_signature.result)
    zero, work, accumulate, merge = map(
      GraphParts, (form.zero, form.work, form.accumulate, form.merge)
    )
    # The first of what `work` returns is what is summed.
    summed = len(_flat_type(form.accumulate.type_signature.parameter[1]))

    @tff.tensorflow.computation
    def zero_flat():
      return zero.inline([], self.partial_type)

    @tff.tensorflow.computation(
      self.partial_type, self.broadcast_type, self.data_type
    )
    def step_flat(partial, broadcast, data):
      result = work.inline([*data, *broadcast])[:summed]
      return accumulate.inline([*partial, *result], self.partial_type)

    @tff.tensorflow.computation(self.partial_type, self.partial_type)
    def merge_flat(one, other):
      return merge.inline([*one, *other], self.partial_type)

    self.plain_step = step_flat
    self.zero, self.step, self.merge = map(
      tff.backends.native.desugar_and_transform_to_native,
      (zero_flat, step_flat, merge_flat),
    )

  def broadcast(self, state: Any) -> list[np.ndarray]:
    """Returns what every worker needs of the state."""
    return self._prepare(flat(state))

  def merge_partials(
    self, partials: Sequence[Sequence[np.ndarray]]
  ) -> Sequence[np.ndarray]:
    """Returns one partial for several, merged in their order; or for none."""
    if not partials:
      return self._zero_here()
    merged, *rest = partials
    for partial in rest:
      merged = self._merge_here([*merged, *partial])
    return merged

  def update(self, state: Any, merged: Sequence[np.ndarray]) -> Any:
    """Returns the round's result: draws its noise, from the state's seeds.

    It is a pure function: the same state and sum give the same result.
    """
    values = self._update([*flat(state), *self._report(merged)])
    return pack(values, self._result_type)

  def close(self) -> None:
    """Frees what the parts hold; safe to call twice."""
    for function in self._server_functions:
      function.close()


def flat(value: Any) -> list[Any]:
  """Returns the leaves of nested containers, in the order of their fields."""
  leaves = tff.structure.flatten(
    tff.structure.from_container([value], recursive=True)
  )
  return [x.numpy() if isinstance(x, tf.Tensor) else x for x in leaves]


def pack(values: Sequence[Any], value_type: tff.Type) -> Any:
  """Returns flat values in the Python containers of their type."""
  iterator = iter(values)
  return _pack(iterator, value_type)


def _pack(iterator, value_type):
  if isinstance(value_type, tff.FederatedType):
    value_type = value_type.member
  if not isinstance(value_type, tff.StructType):
    value = next(iterator)
    # As TFF's own executors give scalars: values, not arrays of no dimension.
    return value[()] if isinstance(value, np.ndarray) else value
  fields = [
    (name, _pack(iterator, member))
    for name, member in tff.structure.iter_elements(value_type)
  ]
  named = bool(fields) and all(name is not None for name, _ in fields)
  default = collections.OrderedDict if named else tuple
  container = getattr(value_type, 'python_container', None) or default
  if hasattr(container, '_fields') or hasattr(container, '__attrs_attrs__'):
    return container(**dict(fields))
  return container(fields if named else [value for _, value in fields])


def examples_of(data: Sequence[Any]) -> int:
  """Returns the length of a client's first tensor, which holds its examples."""
  shape = np.shape(data[0]) if data else ()
  return int(shape[0]) if shape else 1


def initial_state(computation: tff.framework.ConcreteComputation) -> Any:
  """Returns what the `initialize` of a process returns, computed here."""
  function = ServerFunction(
    tff.backends.mapreduce.get_state_initialization_computation(
      computation, no_rewrites()
    )
  )
  try:
    return pack(function(), computation.type_signature.result)
  finally:
    function.close()


def map_reduce_form(
  computation: tff.framework.ConcreteComputation,
) -> tff.backends.mapreduce.MapReduceForm:
  """Returns the parts of a round, as `RoundForm` says.

  Raises:
    RoundFormError: As of `RoundForm`.
  """
  try:
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      computation, grappler_config=no_rewrites()
    )
  except (TypeError, ValueError, AttributeError) as error:
    raise RoundFormError(
      'a round must be (state@SERVER, data@CLIENTS) -> (state@SERVER,'
      ' metrics@SERVER) with one layer of aggregation, got'
      f' {computation.type_signature.compact_representation()[:200]}:'
      f' {str(error)[:200]}'
    ) from error
  if form.securely_aggregates_tensors:
    raise RoundFormError(
      'a round must not use secure sums, which workers cannot merge.'
    )
  return form


def no_rewrites() -> tf.compat.v1.ConfigProto:
  """Returns a configuration that leaves graphs as they are.

  TensorFlow rewrites them when they run; before, it takes seconds for nothing.
  """
  settings = tf.compat.v1.ConfigProto()
  settings.graph_options.rewrite_options.disable_meta_optimizer = True
  return settings


class GraphParts:
  """The graph of a TensorFlow computation of TFF, and its flat ends.

  Attributes:
    graph_def: The graph.
    parameters, results: Names of the tensors of its ends, in order.
    initialize: Name of the operation that makes its variables, or ''.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    proto = tff.framework.serialize_computation(computation).tensorflow
    self.graph_def = tf.compat.v1.GraphDef.FromString(proto.graph_def.value)
    self.parameters = _tensor_names(proto.parameter)
    self.results = _tensor_names(proto.result)
    self.initialize = proto.initialize_op

  def inline(
    self, arguments: Sequence[tf.Tensor], result_type: tff.Type | None = None
  ) -> list[tf.Tensor]:
    """Returns the flat result of a copy in the graph that is being built.

    Raises:
      RoundFormError: It has variables, which a copy would not initialise.
    """
    if self.initialize:
      raise RoundFormError('client work must not make variables.')
    results = tf.graph_util.import_graph_def(
      self.graph_def,
      dict(zip(self.parameters, arguments, strict=True)),
      self.results,
      name='part',
    )
    if result_type is None:
      return results
    # Loops and branches lose shapes that the type knows.
    return [
      tf.ensure_shape(tensor, member.shape)
      for tensor, member in zip(results, result_type, strict=True)
    ]


def _flat_type(value_type: tff.Type) -> tff.StructType:
  if isinstance(value_type, tff.TensorType):
    return tff.types.to_type([value_type])
  return tff.types.to_type(list(tff.structure.flatten(value_type)))


def _tensor_names(binding: Any) -> list[str]:
  """Returns the names of the tensors of a TFF binding, in order."""
  match binding.WhichOneof('binding'):
    case 'tensor':
      return [binding.tensor.tensor_name]
    case 'struct':
      return [
        name
        for element in binding.struct.element
        for name in _tensor_names(element)
      ]
    case None:
      return []
    case other:
      raise RoundFormError(
        f'a round must hold tensors only, got a {other}; use tensors for the'
        ' data of clients.'
      )
