"""Backbone and head: what is aggregated and what stays local.

The *backbone* maps images to embeddings; its trainable weights are the only
thing that leaves a virtual client (partial aggregation, arXiv 2211.10844,
section 3). The *head* is a cosine softmax over the identities of one virtual
client; it is made afresh for each round and is thrown away.

Keras builds and holds the backbone. Inside a TFF computation the same network
must be a pure function of its weights, so `lift` turns the traced Keras graph
into one: every read of a variable becomes an argument.
"""

import collections
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.models import lenet
from tff_dpemb.models import mobilenet


class ModelError(ValueError):
  """A model that may not be trained here, or weights that do not fit it."""


def build_backbone(
  model_config: config.ModelConfig,
  image_shape: tuple[int, int, int],
  *,
  precision: str = 'float32',
) -> tf.keras.Model:
  """Returns a fresh backbone: float32 [N, H, W, C] in [-1, 1] -> [N, D].

  Args:
    model_config: Which one.
    image_shape: (H, W, C).
    precision: Keras' name of a policy: 'float32', or 'mixed_bfloat16', whose
      layers compute in bfloat16. Weights are float32 either way.
  """
  dim = model_config.embedding_dim
  with _policy(precision):
    match model_config.backbone:
      case 'lenet':
        backbone = lenet.build_lenet(image_shape, dim, filters=(32, 64))
      case 'lenet_small':
        backbone = lenet.build_lenet(image_shape, dim, filters=(16, 32))
      case 'mobilenet_v2':
        backbone = mobilenet.build_mobilenet_v2(image_shape, dim)
  check_backbone(backbone)
  return backbone


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
  """Lets layers that are made inside compute by a policy of Keras."""
  before = tf.keras.mixed_precision.global_policy()
  tf.keras.mixed_precision.set_global_policy(name)
  try:
    yield
  finally:
    tf.keras.mixed_precision.set_global_policy(before)


def check_backbone(backbone: tf.keras.Model) -> None:
  """Refuses what would leak past the aggregator or break under it.

  Raises:
    ModelError: A layer keeps statistics of the data (BatchNorm, or any state
      that is not trained), which would leave a client without noise.
  """
  for layer in backbone._flatten_layers(include_self=False):
    if isinstance(layer, tf.keras.layers.BatchNormalization):
      raise ModelError(
        f'layer {layer.name!r} must not be BatchNormalization: its statistics'
        ' would leave a virtual client without noise; use GroupNormalization.'
      )
    if layer.non_trainable_weights and layer.trainable:
      names = [weight.name for weight in layer.non_trainable_weights]
      raise ModelError(
        f'layer {layer.name!r} must not hold untrained state, got {names};'
        ' freeze the layer or remove it.'
      )


@dataclasses.dataclass(frozen=True)
class PureBackbone:
  """A backbone as a pure function of its trainable weights.

  Attributes:
    graph_def: The traced graph; weights and images are placeholders.
    names: Names of the trainable weights, in order.
    shapes: Their shapes.
    image_shape: (H, W, C).
    embedding_dim: D.
  """

  graph_def: tf.compat.v1.GraphDef
  names: tuple[str, ...]
  shapes: tuple[tuple[int, ...], ...]
  image_shape: tuple[int, int, int]
  embedding_dim: int
  input_names: tuple[str, ...]
  output_name: str

  @property
  def num_parameters(self) -> int:
    return sum(int(np.prod(shape)) for shape in self.shapes)

  def apply(self, weights: Sequence[tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """Returns embeddings [N, D] of images [N, H, W, C]; graph mode only.

    Differentiate with `tf.gradients`: the imported operations are not seen by
    a gradient tape.
    """
    # The import maps tensors of the current graph only; inside a branch or a
    # loop body, `identity` captures what comes from outside.
    inputs = [tf.identity(tensor) for tensor in [images, *weights]]
    return tf.graph_util.import_graph_def(
      self.graph_def,
      input_map=dict(zip(self.input_names, inputs, strict=True)),
      return_elements=[self.output_name],
      name='backbone',
    )[0]


def lift(backbone: tf.keras.Model) -> PureBackbone:
  """Returns `backbone` as a pure function of its trainable weights.

  Weights and embeddings are float32, in whatever the layers compute. Frozen
  weights become constants, so that they cannot change in training.

  Raises:
    ModelError: The graph uses its variables in another way than reading them.
  """
  image_shape = tuple(backbone.input_shape[1:])
  concrete = tf.function(
    lambda images: tf.cast(backbone(images, training=False), tf.float32)
  ).get_concrete_function(
    tf.TensorSpec([None, *image_shape], tf.float32, name='images')
  )
  trainable = {
    id(variable.handle): index
    for index, variable in enumerate(backbone.trainable_variables)
  }
  captured = {
    inner.name.split(':')[0]: outer for outer, inner in concrete.graph.captures
  }
  frozen = {id(v.handle): v for v in backbone.non_trainable_variables}
  image_input = concrete.inputs[0].name
  graph_def = tf.compat.v1.GraphDef()
  for node in concrete.graph.as_graph_def().node:
    if node.name in captured:
      variable = captured[node.name]
      index = trainable.get(id(variable))
      lifted = graph_def.node.add(name=node.name)
      if index is not None:
        shape = backbone.trainable_variables[index].shape
        lifted.op = 'Placeholder'
        lifted.attr['dtype'].type = tf.float32.as_datatype_enum
        lifted.attr['shape'].shape.CopyFrom(shape.as_proto())
      elif id(variable) in frozen:
        value = frozen[id(variable)].numpy()
        lifted.op = 'Const'
        lifted.attr['dtype'].type = tf.as_dtype(value.dtype).as_datatype_enum
        lifted.attr['value'].tensor.CopyFrom(tf.make_tensor_proto(value))
      else:
        raise ModelError(f'{node.name!r} must be a weight of the backbone.')
    elif node.op == 'ReadVariableOp':
      dtype = node.attr['dtype'].type
      read = graph_def.node.add(name=node.name, op='Identity')
      read.input.append(node.input[0])
      read.attr['T'].type = dtype
    elif node.op in ('AssignVariableOp', 'AssignAddVariableOp'):
      raise ModelError(
        f'{node.name!r} must not write a variable in a forward pass.'
      )
    else:
      graph_def.node.add().CopyFrom(node)
  place = {
    trainable[id(outer)]: f'{name}:0'
    for name, outer in captured.items()
    if id(outer) in trainable
  }
  if len(place) != len(backbone.trainable_variables):
    raise ModelError('every trainable weight must be used by the backbone.')
  return PureBackbone(
    graph_def=graph_def,
    names=weight_names(backbone),
    shapes=tuple(
      tuple(v.shape.as_list()) for v in backbone.trainable_variables
    ),
    image_shape=image_shape,
    embedding_dim=int(backbone.output_shape[-1]),
    input_names=(image_input, *(place[i] for i in range(len(place)))),
    output_name=concrete.outputs[0].name,
  )


def weight_names(backbone: tf.keras.Model) -> tuple[str, ...]:
  """Returns `layer/weight` names of the trainable weights, in order."""
  return tuple(
    variable.name.split(':')[0] for variable in backbone.trainable_variables
  )


def get_weights(backbone: tf.keras.Model) -> dict[str, np.ndarray]:
  """Returns the trainable weights by name, in order."""
  return collections.OrderedDict(
    zip(
      weight_names(backbone),
      [variable.numpy() for variable in backbone.trainable_variables],
      strict=True,
    )
  )


def set_weights(
  backbone: tf.keras.Model, weights: Mapping[str, np.ndarray]
) -> None:
  """Assigns weights by name.

  Raises:
    ModelError: A name is missing or unknown, or a shape differs.
  """
  names = weight_names(backbone)
  if set(names) != set(weights):
    raise ModelError(
      f'weights must be named {sorted(names)}, got {sorted(weights)}.'
    )
  for name, variable in zip(names, backbone.trainable_variables, strict=True):
    value = np.asarray(weights[name])
    if value.shape != tuple(variable.shape):
      raise ModelError(
        f'weight {name!r} must have shape {tuple(variable.shape)},'
        f' got {value.shape}.'
      )
    variable.assign(value)


def save_weights(
  path: str | os.PathLike[str], weights: Mapping[str, np.ndarray]
) -> None:
  """Writes weights as an .npz file, atomically."""
  storage.atomic_write_npz(path, weights)


def load_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Returns the weights of an .npz file; `storage.ArtifactError` if bad."""
  return storage.read_npz(path)


def load_backbone(
  model_config: config.ModelConfig,
  image_shape: tuple[int, int, int],
  path: str | os.PathLike[str],
) -> tf.keras.Model:
  """Returns `build_backbone` with the weights of an .npz file."""
  backbone = build_backbone(model_config, image_shape)
  set_weights(backbone, load_weights(path))
  return backbone


def cosine_logits(
  embeddings: tf.Tensor, head: tf.Tensor, *, scale: float
) -> tf.Tensor:
  """Returns `scale` times cosines: [N, D] x [D, K] -> [N, K]."""
  return scale * tf.matmul(
    unit_norm(embeddings, axis=1), unit_norm(head, axis=0)
  )


def unit_norm(x: tf.Tensor, *, axis: int) -> tf.Tensor:
  """Returns `x` with unit L2 norm along `axis`; zero stays zero."""
  return tf.math.l2_normalize(x, axis=axis, epsilon=1e-12)


def embed(
  backbone: tf.keras.Model, images: np.ndarray, *, batch_size: int = 512
) -> np.ndarray:
  """Returns unit-norm embeddings [N, D] of uint8 images [N, H, W, C]."""

  @tf.function(
    input_signature=[tf.TensorSpec([None, *images.shape[1:]], tf.uint8)]
  )
  def forward(batch):
    floats = normalise(batch)
    return unit_norm(backbone(floats, training=False), axis=1)

  parts = [
    forward(images[start : start + batch_size]).numpy()
    for start in range(0, len(images), batch_size)
  ]
  if not parts:
    return np.zeros([0, int(backbone.output_shape[-1])], np.float32)
  return np.concatenate(parts)


def normalise(images: tf.Tensor) -> tf.Tensor:
  """Returns uint8 images as float32 in [-1, 1]: x / 127.5 - 1."""
  return tf.cast(images, tf.float32) / 127.5 - 1.0
