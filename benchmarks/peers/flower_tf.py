"""The round in Flower's simulation: TensorFlow clients in Ray actors, one a core.

`FedAvgM` behind Flower's own wrapper for server-side adaptive clipping. The
model, its step and the images are made once in each actor and are kept.
"""

import functools
import os

from benchmarks.peers import work as work_lib


@functools.cache
def trainer(name):
  """Returns the actor's model, a function of weights and a client's index."""
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')
  import tensorflow as tf

  from benchmarks.peers import keras_models

  work = work_lib.WORKS[name]
  model = keras_models.build(work)
  images, labels = work_lib.normalise(work.images()), work.labels()
  velocities = [tf.Variable(tf.zeros_like(w)) for w in model.trainable_weights]

  @tf.function
  def step(batch, batch_labels):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
          batch_labels, model(batch, training=True)
        )
      )
    gradients = tape.gradient(loss, model.trainable_weights)
    for weight, velocity, gradient in zip(
      model.trainable_weights, velocities, gradients, strict=True
    ):
      velocity.assign(work.momentum * velocity + gradient)
      weight.assign_sub(work.learning_rate * velocity)

  def train(weights, client):
    model.set_weights(weights)
    for velocity in velocities:
      velocity.assign(tf.zeros_like(velocity))
    for start in range(0, work.examples, work.batch_size):
      stop = start + work.batch_size
      step(
        tf.constant(images[client, start:stop]),
        tf.constant(labels[client, start:stop]),
      )
    return model.get_weights()

  return train


def prepare(work, options, stack):
  del stack
  os.environ['CUDA_VISIBLE_DEVICES'] = ''
  import flwr
  from flwr import client as flwr_client
  from flwr import server as flwr_server
  from flwr import simulation
  from flwr.server import strategy as strategies

  from benchmarks.peers import keras_models

  name = options.work
  gate = work_lib.Gate()

  class Client(flwr_client.NumPyClient):
    def __init__(self, index):
      self._index = index

    def fit(self, parameters, config):
      from benchmarks.peers import flower_tf

      after = flower_tf.trainer(name)(parameters, self._index)
      return after, work.examples, {}

  def client_fn(context):
    return Client(int(context.node_config['partition-id'])).to_client()

  initial = keras_models.build(work).get_weights()

  class OneRound(strategies.DifferentialPrivacyServerSideAdaptiveClipping):
    """Waits to be asked before each round."""

    moved = 0.0

    def configure_fit(self, server_round, parameters, client_manager):
      gate.wait(self.moved)
      return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round, results, failures):
      if failures:
        raise RuntimeError(f'clients failed: {failures[:1]}')
      before = self.current_round_params
      parameters, metrics = super().aggregate_fit(
        server_round, results, failures
      )
      after = flwr.common.parameters_to_ndarrays(parameters)
      self.moved = work_lib.distance(before, after)
      return parameters, metrics

  def build_server(context):
    strategy = strategies.FedAvgM(
      fraction_fit=1.0,
      fraction_evaluate=0.0,
      min_fit_clients=work.clients,
      min_available_clients=work.clients,
      initial_parameters=flwr.common.ndarrays_to_parameters(initial),
      server_learning_rate=work.server_learning_rate,
      server_momentum=work.server_momentum,
    )
    return flwr_server.ServerAppComponents(
      strategy=OneRound(
        strategy,
        work.noise_multiplier,
        work.clients,
        initial_clipping_norm=work.clip_norm,
        target_clipped_quantile=work.target_unclipped_quantile,
        clip_norm_lr=work.clip_learning_rate,
        clipped_count_stddev=work.count_stddev,
      ),
      config=flwr_server.ServerConfig(num_rounds=10**9),
    )

  gate.start(
    lambda: simulation.run_simulation(
      flwr_server.ServerApp(server_fn=build_server),
      flwr_client.ClientApp(client_fn=client_fn),
      num_supernodes=work.clients,
      backend_config={
        'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
        'init_args': {'include_dashboard': False, 'log_to_driver': False},
      },
    )
  )
  return gate.do_round


if __name__ == '__main__':
  work_lib.serve(prepare)
