"""DP-FedEmb's recipe with and without cached embeddings in the head phase.

`--variant` is 'cached', or 'uncached': the reference's scheme, which computes
the whole network and both gradients in each head step and then applies the
head's alone. Both give the same update.
"""

from benchmarks.peers import ours
from benchmarks.peers import work as work_lib
from launch import environment


def prepare(work, options, stack):
  environment.prepare()
  from tff_dpemb.training import client_work
  from tff_dpemb.training import process
  from tff_dpemb.training.execution import executors

  updates = {
    'cached': client_work.client_update,
    'uncached': uncached_update,
  }
  iterative, data = ours.build(
    work,
    mode='head_first',
    head_steps=30,
    backbone_epochs=2,
    local_update=updates[options.variant],
  )
  stack.enter_context(executors.local())
  state = process.with_fresh_noise(iterative.initialize())

  def do_round():
    # The same noise and clients each time: both variants move alike.
    after, _ = iterative.next(state, data)
    return work_lib.distance(state.weights, after.weights)

  return do_round


def uncached_update(pure, tuning, weights, data):
  """Does what `client_work.client_update` does, the reference's way."""
  import tensorflow as tf

  from tff_dpemb.models import embedding_model
  from tff_dpemb.training import client_work

  weights = [tf.convert_to_tensor(weight) for weight in weights]
  classes = tf.reduce_max(data.labels) + 1
  start = 0.1 * tf.random.stateless_normal(
    tf.stack([pure.embedding_dim, classes]), data.seed
  )
  images = embedding_model.normalise(data.images)

  def step(index, head, velocity, backbone):
    logits = embedding_model.cosine_logits(
      pure.apply(backbone, images), head, scale=tuning.head_scale
    )
    loss = tf.reduce_mean(
      tf.nn.sparse_softmax_cross_entropy_with_logits(data.labels, logits)
    )
    gradient, *others = tf.gradients(loss, [head, *backbone], name='backward')
    velocity = tuning.head_momentum * velocity + gradient
    # The backbone's turn has not come: its rate is 0, and known only when the
    # step runs, so that its gradient is really computed.
    rate = tf.cast(index >= tuning.head_steps, tf.float32)
    backbone = [w - rate * g for w, g in zip(backbone, others, strict=True)]
    head -= tuning.head_learning_rate * velocity
    return index + 1, head, velocity, backbone

  _, head, _, backbone = tf.while_loop(
    lambda index, *_: index < tuning.head_steps,
    step,
    (0, start, tf.zeros_like(start), weights),
    parallel_iterations=1,
  )
  trained, metrics = client_work.fit_backbone(
    pure, tuning, data, backbone, head, trains_head=False
  )
  return [x - y for x, y in zip(weights, trained, strict=True)], metrics


if __name__ == '__main__':
  work_lib.serve(prepare)
