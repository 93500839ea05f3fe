"""The two networks in JAX, with a linear softmax head; NHWC."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

_STAGES = (
  (1, 16, 1, 1),
  (6, 24, 2, 2),
  (6, 32, 3, 2),
  (6, 64, 4, 2),
  (6, 96, 3, 1),
  (6, 160, 3, 2),
  (6, 320, 1, 1),
)
_NUMBERS = ('NHWC', 'HWIO', 'NHWC')


def build(work):
  """Returns initial weights, and a function of weights and images: logits."""
  weights = {}
  rng = np.random.default_rng(0)
  build_network = _lenet if work.model == 'lenet' else _mobilenet_v2
  shape = jax.ShapeDtypeStruct((1, *work.image_shape), jnp.float32)

  def create(name, size, fan_in):
    values = rng.normal(size=size) / np.sqrt(fan_in)
    weights[name] = np.asarray(values, np.float32)
    return weights[name]

  jax.eval_shape(functools.partial(build_network, create, work), shape)

  def apply(values, images):
    return build_network(lambda name, *_: values[name], work, images)

  return jax.tree_util.tree_map(jnp.asarray, weights), apply


def _lenet(get, work, hidden):
  for name, width in (('conv1', 32), ('conv2', 64)):
    hidden = _conv(get, name, hidden, width, 5)
    hidden = jax.nn.relu(hidden + get(f'{name}_bias', [width], 1e6))
    hidden = jax.lax.reduce_window(
      hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID'
    )
  return _dense_and_head(get, work, hidden.reshape([hidden.shape[0], -1]))


def _mobilenet_v2(get, work, hidden):
  hidden = _conv(get, 'stem', hidden, 32, 3, stride=2)
  hidden = _norm_relu(get, 'stem', hidden)
  block = 0
  for expansion, channels, repeats, stride in _STAGES:
    for repeat in range(repeats):
      step = stride if repeat == 0 else 1
      hidden = _inverted_residual(
        get, f'block{block}', hidden, expansion, channels, step
      )
      block += 1
  hidden = _norm_relu(get, 'last', _conv(get, 'last', hidden, 1280, 1))
  return _dense_and_head(get, work, jnp.mean(hidden, axis=(1, 2)))


def _inverted_residual(get, name, inputs, expansion, channels, stride):
  hidden, wide = inputs, inputs.shape[-1] * expansion
  if expansion > 1:
    hidden = _conv(get, f'{name}_expand', hidden, wide, 1)
    hidden = _norm_relu(get, f'{name}_expand', hidden)
  hidden = _conv(
    get, f'{name}_depthwise', hidden, wide, 3, stride=stride, groups=wide
  )
  hidden = _norm_relu(get, f'{name}_depthwise', hidden)
  hidden = _conv(get, f'{name}_project', hidden, channels, 1)
  hidden = _norm(get, f'{name}_project', hidden)
  same = stride == 1 and inputs.shape[-1] == channels
  return inputs + hidden if same else hidden


def _dense_and_head(get, work, hidden):
  inputs, dim = hidden.shape[-1], work.embedding_dim
  hidden = hidden @ get('dense', [inputs, dim], inputs)
  hidden = hidden + get('dense_bias', [dim], 1e6)
  return hidden @ get('head', [dim, work.classes], dim)


def _conv(get, name, images, channels, size, *, stride=1, groups=1):
  inputs = images.shape[-1] // groups
  kernel = get(name, [size, size, inputs, channels], size * size * inputs)
  return jax.lax.conv_general_dilated(
    images,
    kernel,
    (stride, stride),
    'SAME',
    dimension_numbers=_NUMBERS,
    feature_group_count=groups,
  )


def _norm(get, name, images, *, groups=2):
  channels = images.shape[-1]
  shape = [*images.shape[:-1], groups, channels // groups]
  grouped = images.reshape(shape)
  mean = jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
  variance = jnp.var(grouped, axis=(1, 2, 4), keepdims=True)
  normed = (grouped - mean) * jax.lax.rsqrt(variance + 1e-3)
  gamma = 1.0 + get(f'{name}_gamma', [channels], 1e6)
  return normed.reshape(images.shape) * gamma + get(
    f'{name}_beta', [channels], 1e6
  )


def _norm_relu(get, name, images):
  return jnp.clip(_norm(get, name, images), 0.0, 6.0)
