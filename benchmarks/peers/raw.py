"""The round as a hand-written TensorFlow loop: what the machine can do.

`--variant` is 'slots' or 'slots/threads': slots are threads of ours that each
train one client at a time on a model of their own, threads are TensorFlow's own
for one operation. No federated runtime, no messages; a step is one
`tf.function` on variables.
"""

from concurrent import futures

import numpy as np

from benchmarks.peers import work as work_lib
from launch import environment


def prepare(work, options, stack):
  del stack
  environment.prepare()
  import tensorflow as tf

  from tff_dpemb import config
  from tff_dpemb.models import embedding_model

  images = work_lib.normalise(work.images())
  labels = work.labels()
  number, _, threads = options.variant.partition('/')
  slots = int(number or 1)
  if threads:
    tf.config.threading.set_intra_op_parallelism_threads(int(threads))
  model_config = config.ModelConfig(
    backbone=work.model, embedding_dim=work.embedding_dim
  )
  rng = np.random.default_rng(3)
  head = 0.1 * rng.normal(size=[work.embedding_dim, work.classes])

  class Slot:
    """One client at a time: its own model, momenta and sum of updates."""

    def __init__(self):
      self.backbone = embedding_model.build_backbone(
        model_config, work.image_shape
      )
      self.head = tf.Variable(head.astype(np.float32))
      self.weights = [*self.backbone.trainable_variables, self.head]
      self.velocities = [tf.Variable(tf.zeros_like(w)) for w in self.weights]
      self.sums = [tf.Variable(tf.zeros_like(w)) for w in self.weights]
      self.unclipped = tf.Variable(0.0)

    @tf.function
    def start_round(self):
      for total in self.sums:
        total.assign(tf.zeros_like(total))
      self.unclipped.assign(0.0)

    @tf.function
    def start_client(self):
      for weight, velocity, value in zip(
        self.weights, self.velocities, server, strict=True
      ):
        weight.assign(value)
        velocity.assign(tf.zeros_like(velocity))

    @tf.function
    def step(self, batch, batch_labels):
      with tf.GradientTape() as tape:
        logits = embedding_model.cosine_logits(
          self.backbone(batch, training=True), self.head, scale=10.0
        )
        loss = tf.reduce_mean(
          tf.nn.sparse_softmax_cross_entropy_with_logits(batch_labels, logits)
        )
      for weight, velocity, gradient in zip(
        self.weights,
        self.velocities,
        tape.gradient(loss, self.weights),
        strict=True,
      ):
        velocity.assign(work.momentum * velocity + gradient)
        weight.assign_sub(work.learning_rate * velocity)

    @tf.function
    def finish_client(self):
      update = [x - y for x, y in zip(server, self.weights, strict=True)]
      update, norm = tf.clip_by_global_norm(update, clip_norm)
      for total, part in zip(self.sums, update, strict=True):
        total.assign_add(part)
      self.unclipped.assign_add(tf.cast(norm <= clip_norm, tf.float32))

    def train(self, clients):
      self.start_round()
      for client in clients:
        self.start_client()
        for start in range(0, work.examples, work.batch_size):
          stop = start + work.batch_size
          self.step(
            tf.constant(images[client, start:stop]),
            tf.constant(labels[client, start:stop]),
          )
        self.finish_client()

  workers = [Slot() for _ in range(slots)]
  server = [tf.Variable(weight) for weight in workers[0].weights]
  momenta = [tf.Variable(tf.zeros_like(weight)) for weight in server]
  clip_norm = tf.Variable(work.clip_norm)

  @tf.function
  def finish_round():
    stddev = work.noise_multiplier * clip_norm
    for index, (weight, momentum) in enumerate(
      zip(server, momenta, strict=True)
    ):
      total = tf.add_n([worker.sums[index].read_value() for worker in workers])
      noise = tf.random.normal(tf.shape(total), stddev=stddev)
      momentum.assign(
        work.server_momentum * momentum + (total + noise) / work.clients
      )
      weight.assign_sub(work.server_learning_rate * momentum)
    count = tf.add_n([worker.unclipped.read_value() for worker in workers])
    count += tf.random.normal([], stddev=work.count_stddev)
    error = count / work.clients - work.target_unclipped_quantile
    clip_norm.assign(clip_norm * tf.exp(-work.clip_learning_rate * error))

  pool = futures.ThreadPoolExecutor(slots)

  def do_round():
    before = [weight.numpy() for weight in server]
    shares = [range(slot, work.clients, slots) for slot in range(slots)]
    list(pool.map(lambda pair: pair[0].train(pair[1]), zip(workers, shares)))
    finish_round()
    return work_lib.distance(before, [weight.numpy() for weight in server])

  return do_round


if __name__ == '__main__':
  work_lib.serve(prepare)
