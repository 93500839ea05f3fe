"""As many floating-point operations as a round takes, as one matrix product.

Products of large float32 matrices are the best case of a machine's arithmetic:
an engine whose convolutions are computed directly cannot be much faster. Only
local steps are counted, by TensorFlow's profiler.
"""

from benchmarks.peers import work as work_lib
from launch import environment

_SIDE = 1024


def prepare(work, options, stack):
  del options, stack
  environment.prepare()
  import tensorflow as tf

  steps = work.clients * (work.examples // work.batch_size)
  products = round(steps * _operations_of_step(work) / (2 * _SIDE**3))
  left, right = tf.random.normal([2, _SIDE, _SIDE])

  @tf.function
  def multiply():
    return tf.reduce_sum(tf.matmul(left, right))

  def do_round():
    # One waits for the next, as steps of a client do.
    return sum(float(multiply()) for _ in range(products))

  return do_round


def _operations_of_step(work) -> int:
  """Returns the floating-point operations of one step, as TensorFlow counts."""
  import tensorflow as tf

  from tff_dpemb import config
  from tff_dpemb.models import embedding_model

  backbone = embedding_model.build_backbone(
    config.ModelConfig(backbone=work.model, embedding_dim=work.embedding_dim),
    work.image_shape,
  )
  pure = embedding_model.lift(backbone)
  graph = tf.Graph()
  with graph.as_default():
    weights = [tf.zeros(shape) for shape in pure.shapes]
    head = tf.zeros([work.embedding_dim, work.classes])
    images = tf.zeros([work.batch_size, *work.image_shape])
    logits = tf.matmul(pure.apply(weights, images), head)
    gradients = tf.gradients(tf.reduce_sum(logits**2), [*weights, head])
    needed = tf.compat.v1.graph_util.extract_sub_graph(
      graph.as_graph_def(), [gradient.op.name for gradient in gradients]
    )
  # Without what no gradient needs: that of the first layer's input.
  pruned = tf.Graph()
  with pruned.as_default():
    tf.graph_util.import_graph_def(needed, name='')
  options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
  options['output'] = 'none'
  counts = tf.compat.v1.profiler.profile(pruned, cmd='op', options=options)
  return counts.total_float_ops


if __name__ == '__main__':
  work_lib.serve(prepare)
