"""The round as TFF's own `tff.learning` does it, in the same C++ worker.

`--variant` is 'fed_avg' (`build_unweighted_fed_avg`, its iterator loop) or
'fed_recon' (`build_fed_recon`: the head is local and trained first), with
oneDNN's kernels as this project turns them on; 'fed_avg/defaults' leaves that
choice to TensorFlow, which makes it by the processor.
"""

import os

from benchmarks.peers import work as work_lib
from launch import environment


def prepare(work, options, stack):
  algorithm, _, kernels = options.variant.partition('/')
  environment.prepare()
  if kernels == 'defaults':
    del os.environ['TF_ENABLE_ONEDNN_OPTS']
  import tensorflow as tf
  import tensorflow_federated as tff

  from tff_dpemb import config
  from tff_dpemb.models import embedding_model
  from tff_dpemb.training.execution import executors

  spec = (
    tf.TensorSpec([None, *work.image_shape], tf.float32),
    tf.TensorSpec([None], tf.int32),
  )
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def build_model():
    backbone = embedding_model.build_backbone(
      config.ModelConfig(backbone=work.model, embedding_dim=work.embedding_dim),
      work.image_shape,
    )
    head = tf.keras.layers.Dense(work.classes, use_bias=False, name='head')
    model = tf.keras.Model(backbone.input, head(backbone.output))
    return model, backbone, head

  aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
    noise_multiplier=work.noise_multiplier,
    clients_per_round=work.clients,
    initial_l2_norm_clip=work.clip_norm,
    target_unclipped_quantile=work.target_unclipped_quantile,
    learning_rate=work.clip_learning_rate,
    clipped_count_stddev=work.count_stddev,
  )
  client_optimizer = tff.learning.optimizers.build_sgdm(
    work.learning_rate, work.momentum
  )
  server_optimizer = tff.learning.optimizers.build_sgdm(
    work.server_learning_rate, work.server_momentum
  )
  if algorithm == 'fed_recon':

    def reconstruction_model():
      model, backbone, head = build_model()
      return (
        tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
          keras_model=model,
          global_layers=backbone.layers,
          local_layers=[head],
          input_spec=spec,
        )
      )

    learning = tff.learning.algorithms.build_fed_recon(
      reconstruction_model,
      loss_fn=lambda: loss,
      client_optimizer_fn=client_optimizer,
      reconstruction_optimizer_fn=client_optimizer,
      server_optimizer_fn=server_optimizer,
      client_weighting=tff.learning.ClientWeighting.UNIFORM,
      model_aggregator_factory=aggregator,
    )
  else:

    def model_fn():
      model, _, _ = build_model()
      return tff.learning.models.from_keras_model(
        model, loss=loss, input_spec=spec
      )

    learning = tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn,
      client_optimizer_fn=client_optimizer,
      server_optimizer_fn=server_optimizer,
      model_aggregator=aggregator,
      loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )
  images, labels = work_lib.normalise(work.images()), work.labels()
  data = [
    tf.data.Dataset.from_tensor_slices(pair).batch(work.batch_size)
    for pair in zip(images, labels, strict=True)
  ]
  # The same worker binary, owned: TFF's own context leaves it running.
  stack.enter_context(executors.local())
  state = learning.initialize()

  def weights():
    return learning.get_model_weights(state).trainable

  def do_round():
    nonlocal state
    before = weights()
    state = learning.next(state, data).state
    return work_lib.distance(before, weights())

  return do_round


if __name__ == '__main__':
  work_lib.serve(prepare)
