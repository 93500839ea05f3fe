"""One round as a TFF process: broadcast, local tuning, DP sum, server step.

`build_process` composes what the other modules of this package give: client
work, aggregator, and a momentum SGD on the server. The types, for a backbone
with weights W (and the global head, if that is aggregated):

  initialize: ( -> RoundState@SERVER)
  next: (<RoundState@SERVER, {<uint8[?,H,W,C], int32[?], int32[2]>}@CLIENTS>
         -> <RoundState@SERVER, metrics@SERVER>)
"""

import collections
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_dpemb import config
from tff_dpemb.models import embedding_model
from tff_dpemb.training import aggregators
from tff_dpemb.training import client_work

RoundState = collections.namedtuple(
  'RoundState', ['weights', 'aggregator', 'optimizer', 'round']
)


LocalUpdate = Callable[
  [
    embedding_model.PureBackbone,
    client_work.LocalTuning,
    Sequence[tf.Tensor],
    client_work.ClientData,
  ],
  tuple[list[tf.Tensor], dict[str, tf.Tensor]],
]


def with_fresh_noise(state: RoundState) -> RoundState:
  """Returns the state that one round starts from; see `aggregators`."""
  aggregator = aggregators.with_fresh_noise_seeds(state.aggregator)
  return state._replace(aggregator=aggregator)


def without_noise_buffers(state: RoundState) -> RoundState:
  """Returns the last state of a run to keep; see `aggregators`."""
  aggregator = aggregators.without_buffers(state.aggregator)
  return state._replace(aggregator=aggregator)


def local_tuning_from_config(
  run_config: config.RunConfig, *, num_classes: int
) -> client_work.LocalTuning:
  """Returns the recipe of a run page; `num_classes` is for a global head."""
  training = run_config.training
  aggregate_head = training.aggregate == 'backbone_and_head'
  return client_work.LocalTuning(
    mode='joint' if aggregate_head else training.local_tuning,
    aggregate_head=aggregate_head,
    num_classes=num_classes,
    head_scale=run_config.model.head_scale,
    head_steps=training.head_steps,
    head_learning_rate=training.head_learning_rate,
    head_momentum=training.head_momentum,
    backbone_epochs=training.backbone_epochs,
    batch_size=training.backbone_batch_size,
    backbone_learning_rate=training.backbone_learning_rate,
    backbone_momentum=training.backbone_momentum,
  )


def build_process(
  pure: embedding_model.PureBackbone,
  tuning: client_work.LocalTuning,
  aggregator: tff.aggregators.UnweightedAggregationFactory,
  *,
  initial_weights: Sequence[np.ndarray],
  server_learning_rate: float,
  server_momentum: float,
  local_update: LocalUpdate = client_work.client_update,
) -> tff.templates.IterativeProcess:
  """Returns the process of one run.

  Args:
    pure: The backbone as a pure function.
    tuning: What a virtual client does.
    aggregator: Bounds, sums, noises and divides the updates.
    initial_weights: Of the backbone, then of the global head if any.
    server_learning_rate: Of the server's momentum SGD on the mean update.
    server_momentum: Its momentum.
    local_update: What a virtual client runs: takes and returns what
      `client_work.client_update` does. An audit wraps that one.
  """
  initial_weights = [np.asarray(w, np.float32) for w in initial_weights]
  weights_type = tff.types.to_type(
    [(w.dtype.type, list(w.shape)) for w in initial_weights]
  )
  data_type = tff.types.to_type(
    client_work.ClientData(
      images=(np.uint8, [None, *pure.image_shape]),
      labels=(np.int32, [None]),
      seed=(np.int32, [2]),
    )
  )
  optimizer = tff.learning.optimizers.build_sgdm(
    learning_rate=server_learning_rate, momentum=server_momentum or None
  )
  aggregation = aggregator.create(weights_type)
  specs = [tf.TensorSpec(w.shape, tf.float32) for w in initial_weights]

  @tff.tensorflow.computation
  def initial_values():
    return [tf.constant(weight) for weight in initial_weights]

  @tff.tensorflow.computation
  def initial_optimizer():
    return optimizer.initialize(specs)

  optimizer_type = initial_optimizer.type_signature.result

  @tff.tensorflow.computation(weights_type, data_type)
  def work(weights, data):
    # A tf.function, so that tf.gradients and loops see one function graph.
    run = tf.function(
      lambda *arguments: local_update(
        pure,
        tuning,
        arguments[:-3],
        client_work.ClientData(*arguments[-3:]),
      ),
      autograph=False,
    )
    return run(*weights, data.images, data.labels, data.seed)

  @tff.tensorflow.computation(optimizer_type, weights_type, weights_type)
  def server_step(optimizer_state, weights, mean_update):
    state, stepped = optimizer.next(
      optimizer_state, list(weights), list(mean_update)
    )
    norm = tf.linalg.global_norm(list(mean_update))
    return state, stepped, norm

  @tff.tensorflow.computation(np.int32)
  def increment(number):
    return number + 1

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      RoundState(
        weights=tff.federated_eval(initial_values, tff.SERVER),
        aggregator=aggregation.initialize(),
        optimizer=tff.federated_eval(initial_optimizer, tff.SERVER),
        round=tff.federated_value(0, tff.SERVER),
      )
    )

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(data_type, tff.CLIENTS),
  )
  def next_fn(state, data):
    weights = tff.federated_broadcast(state.weights)
    update, local = tff.federated_map(work, (weights, data))
    aggregate = aggregation.next(state.aggregator, update)
    optimizer_state, stepped, norm = tff.federated_map(
      server_step, (state.optimizer, state.weights, aggregate.result)
    )
    metrics = tff.federated_zip(
      collections.OrderedDict(
        local=tff.federated_sum(local),
        aggregation=aggregate.measurements,
        update_norm=norm,
      )
    )
    stepped_state = tff.federated_zip(
      RoundState(
        weights=stepped,
        aggregator=aggregate.state,
        optimizer=optimizer_state,
        round=tff.federated_map(increment, state.round),
      )
    )
    return stepped_state, metrics

  return tff.templates.IterativeProcess(initialize, next_fn)
