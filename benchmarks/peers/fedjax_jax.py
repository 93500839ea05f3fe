"""The round in fedjax: its client loop under `jax.jit`, clipping and noise ours.

fedjax has no DP aggregator: the update is clipped in `client_final` and the
noise is added on the server, in JAX.
"""

from typing import Any

from benchmarks.peers import work as work_lib


def prepare(work, options, stack):
  del options, stack
  import jax
  import numpy as np

  # fedjax 0.0.17 is older than the removal of these names.
  for name in ('tree_map', 'tree_leaves', 'tree_flatten', 'tree_unflatten'):
    if not hasattr(jax, name):
      setattr(jax, name, getattr(jax.tree_util, name))
  import fedjax
  import jax.numpy as jnp

  from benchmarks.peers import jax_models

  parameters, apply = jax_models.build(work)
  images, labels = work_lib.normalise(work.images()), work.labels()
  batches = [
    [
      {
        'x': images[client, start : start + work.batch_size],
        'y': labels[client, start : start + work.batch_size],
      }
      for start in range(0, work.examples, work.batch_size)
    ]
    for client in range(work.clients)
  ]

  def loss(weights, batch):
    scores = jax.nn.log_softmax(apply(weights, batch['x']))
    picked = jnp.take_along_axis(scores, batch['y'][:, None], axis=1)
    return -jnp.mean(picked)

  optimizer = fedjax.optimizers.sgd(work.learning_rate, work.momentum)
  server_optimizer = fedjax.optimizers.sgd(
    work.server_learning_rate, work.server_momentum
  )

  def client_init(shared, unused_input):
    weights = shared['weights']
    return {'weights': weights, 'optimizer': optimizer.init(weights)}

  def client_step(state, batch):
    gradients = jax.grad(loss)(state['weights'], batch)
    optimizer_state, weights = optimizer.apply(
      gradients, state['optimizer'], state['weights']
    )
    return {'weights': weights, 'optimizer': optimizer_state}, ()

  def client_final(shared, state):
    update = jax.tree_util.tree_map(
      lambda x, y: x - y, shared['weights'], state['weights']
    )
    norm = fedjax.tree_util.tree_l2_norm(update)
    clip = shared['clip_norm']
    scale = jnp.minimum(1.0, clip / norm)
    clipped = jax.tree_util.tree_map(lambda x: x * scale, update)
    return clipped, (norm <= clip).astype(jnp.float32)

  train = fedjax.for_each_client(
    client_init, client_step, client_final, with_step_result=True
  )

  @jax.jit
  def add(total, part):
    return jax.tree_util.tree_map(jnp.add, total, part)

  @jax.jit
  def finish(weights, optimizer_state, clip_norm, total, count, key):
    leaves, structure = jax.tree_util.tree_flatten(total)
    *keys, count_key = jax.random.split(key, len(leaves) + 1)
    stddev = work.noise_multiplier * clip_norm
    mean = structure.unflatten(
      [
        (leaf + stddev * jax.random.normal(k, leaf.shape)) / work.clients
        for leaf, k in zip(leaves, keys, strict=True)
      ]
    )
    optimizer_state, weights = server_optimizer.apply(
      mean, optimizer_state, weights
    )
    count += work.count_stddev * jax.random.normal(count_key)
    error = count / work.clients - work.target_unclipped_quantile
    return (
      weights,
      optimizer_state,
      clip_norm * jnp.exp(-work.clip_learning_rate * error),
    )

  state = [parameters, server_optimizer.init(parameters), work.clip_norm]
  keys = iter(range(10**9))

  def do_round():
    weights, optimizer_state, clip_norm = state
    shared = {'weights': weights, 'clip_norm': jnp.float32(clip_norm)}
    clients = [(i, batches[i], np.int32(i)) for i in range(work.clients)]
    total: Any = None
    for _, part, _ in train(shared, clients):
      total = part if total is None else add(total, part)
    update, count = total
    state[:] = finish(
      weights,
      optimizer_state,
      clip_norm,
      update,
      count,
      jax.random.PRNGKey(next(keys)),
    )
    return work_lib.distance(
      jax.tree_util.tree_leaves(weights), jax.tree_util.tree_leaves(state[0])
    )

  return do_round


if __name__ == '__main__':
  work_lib.serve(prepare)
