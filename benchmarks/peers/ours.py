"""The round as this project does it: TFF's C++ worker, client work on tensors.

`--variant` is empty for the project's defaults, or 'calls/threads': calls at a
time in the worker, and threads of one TensorFlow operation.
"""

import numpy as np

from benchmarks.peers import work as work_lib
from launch import environment


def prepare(work, options, stack):
  environment.prepare()
  from tff_dpemb.training.execution import executors

  iterative, data = build(work)
  calls, _, threads = options.variant.partition('/')
  settings = {'TF_NUM_INTRAOP_THREADS': threads} if threads else {}
  stack.enter_context(
    executors.local(concurrent_calls=int(calls or 0), environment=settings)
  )
  return rounds(iterative, data)


def rounds(iterative, data):
  """Returns a function that does one round after the other."""
  from tff_dpemb.training import process

  state = iterative.initialize()

  def do_round():
    nonlocal state
    before = state.weights
    state, _ = iterative.next(process.with_fresh_noise(state), data)
    return work_lib.distance(before, state.weights)

  return do_round


def build(
  work,
  *,
  mode='joint',
  head_steps=1,
  backbone_epochs=1,
  local_update=None,
):
  """Returns the process of `work` and the clients' data.

  Joint tuning trains a global head of all classes, which is aggregated too:
  plain federated averaging, as the peers do it. `head_first` has local heads.
  """
  from tff_dpemb import config
  from tff_dpemb.models import embedding_model
  from tff_dpemb.privacy.mechanisms import independent
  from tff_dpemb.training import aggregators
  from tff_dpemb.training import client_work
  from tff_dpemb.training import process

  backbone = embedding_model.build_backbone(
    config.ModelConfig(backbone=work.model, embedding_dim=work.embedding_dim),
    work.image_shape,
  )
  tuning = client_work.LocalTuning(
    mode=mode,
    aggregate_head=mode == 'joint',
    num_classes=work.classes,
    head_scale=10.0,
    head_steps=head_steps,
    head_learning_rate=work.learning_rate,
    head_momentum=work.momentum,
    backbone_epochs=backbone_epochs,
    batch_size=work.batch_size,
    backbone_learning_rate=work.learning_rate,
    backbone_momentum=work.momentum,
  )
  mechanism = independent.AdaptiveClipGaussian(
    work.clip_norm,
    work.noise_multiplier,
    virtual_clients=work.clients,
    clipped_count_stddev=work.count_stddev,
    target_unclipped_quantile=work.target_unclipped_quantile,
    learning_rate=work.clip_learning_rate,
  )
  weights = list(embedding_model.get_weights(backbone).values())
  if tuning.aggregate_head:
    shape = [work.embedding_dim, work.classes]
    head = 0.1 * np.random.default_rng(3).normal(size=shape)
    weights.append(head.astype(np.float32))
  iterative = process.build_process(
    embedding_model.lift(backbone),
    tuning,
    aggregators.build_aggregator(mechanism, denominator=work.clients),
    initial_weights=weights,
    server_learning_rate=work.server_learning_rate,
    server_momentum=work.server_momentum,
    local_update=local_update or client_work.client_update,
  )
  data = [
    client_work.ClientData(images, labels, np.array([index, 0], np.int32))
    for index, (images, labels) in enumerate(
      zip(work.images(), work.labels(), strict=True)
    )
  ]
  return iterative, data


if __name__ == '__main__':
  work_lib.serve(prepare)
