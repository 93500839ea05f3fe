"""The round in Apple's pfl with PyTorch: federated averaging, adaptive DP."""

import asyncio

from benchmarks.peers import work as work_lib


def prepare(work, options, stack):
  del options, stack
  import numpy as np
  import torch
  from pfl import hyperparam
  from pfl.aggregate import simulate
  from pfl.algorithm import base
  from pfl.algorithm import federated_averaging
  from pfl.callback import base as callback_base
  from pfl.data import dataset
  from pfl.data import federated_dataset
  from pfl.metrics import Metrics
  from pfl.model import pytorch
  from pfl.privacy import adaptive_clipping
  from pfl.privacy import gaussian_mechanism

  from benchmarks.peers import torch_models

  torch.manual_seed(0)
  module = torch_models.Classifier(work)
  images = np.moveaxis(work_lib.normalise(work.images()), -1, 2)
  images = torch.from_numpy(np.ascontiguousarray(images))
  labels = torch.from_numpy(work.labels().astype(np.int64))
  users = [
    dataset.Dataset(raw_data=[images[i], labels[i]], user_id=str(i))
    for i in range(work.clients)
  ]
  order = iter(range(10**9))
  federation = federated_dataset.FederatedDataset(
    lambda user: users[user], lambda: next(order) % work.clients
  )
  optimizer = torch.optim.SGD(
    module.parameters(),
    lr=work.server_learning_rate,
    momentum=work.server_momentum,
  )

  def local_optimizer(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=work.momentum)

  model = pytorch.PyTorchModel(module, local_optimizer, optimizer)
  mechanism = adaptive_clipping.AdaptiveClippingGaussianMechanism(
    lambda bound: gaussian_mechanism.GaussianMechanism(
      bound, work.noise_multiplier
    ),
    work.clip_norm,
    2 * work.count_stddev,  # Its bits are -1 and 1.
    work.target_unclipped_quantile,
    work.clip_learning_rate,
  )
  backend = simulate.SimulatedBackend(
    federation, federation, postprocessors=[mechanism]
  )
  gate = work_lib.Gate()

  def snapshot():
    return [p.detach().numpy().copy() for p in module.parameters()]

  class OneRound(callback_base.TrainingProcessCallback):
    """Waits to be asked before each round."""

    def on_train_begin(self, *, model):
      self._before = snapshot()
      gate.wait(0.0)
      return Metrics()

    def after_central_iteration(
      self, aggregate_metrics, model, *, central_iteration
    ):
      after = snapshot()
      moved = work_lib.distance(self._before, after)
      self._before = after
      gate.wait(moved)
      return False, Metrics()

  never = 10**9  # Evaluation only before the first round, which warms up.
  parameters = base.NNAlgorithmParams(
    central_num_iterations=never,
    evaluation_frequency=never,
    train_cohort_size=work.clients,
    val_cohort_size=0,
  )
  training = hyperparam.NNTrainHyperParams(
    local_learning_rate=work.learning_rate,
    local_num_epochs=1,
    local_batch_size=work.batch_size,
  )

  def loop():
    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl uses the thread's.
    federated_averaging.FederatedAveraging().run(
      parameters, backend, model, training, callbacks=[OneRound()]
    )

  gate.start(loop)
  return gate.do_round


if __name__ == '__main__':
  work_lib.serve(prepare)
