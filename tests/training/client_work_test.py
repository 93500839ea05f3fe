"""Local tuning against a step-by-step reference in eager Keras."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tff_dpemb import config
from tff_dpemb.models import embedding_model
from tff_dpemb.training import client_work

_TUNING = client_work.LocalTuning(
  mode='head_first',
  aggregate_head=False,
  num_classes=0,
  head_scale=10.0,
  head_steps=7,
  head_learning_rate=1.0,
  head_momentum=0.9,
  backbone_epochs=2,
  batch_size=4,
  backbone_learning_rate=0.05,
  backbone_momentum=0.9,
)


def _data(rng, *, identities=3, each=3):
  return client_work.ClientData(
    images=rng.integers(0, 256, [identities * each, 8, 8, 1]).astype(np.uint8),
    labels=np.repeat(np.arange(identities), each).astype(np.int32),
    seed=np.array([3, 5], np.int32),
  )


def _update(pure, tuning, weights, data):
  run = tf.function(
    lambda *args: client_work.client_update(
      pure, tuning, args[:-3], client_work.ClientData(*args[-3:])
    ),
    autograph=False,
  )
  update, metrics = run(*map(tf.constant, weights), *map(tf.constant, data))
  return [x.numpy() for x in update], metrics


def _loss(logits, labels):
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
  )


def _reference(backbone, tuning, weights, head, data):
  """The same recipe, eager: one step at a time, nothing cached."""
  names = embedding_model.weight_names(backbone)
  embedding_model.set_weights(backbone, dict(zip(names, weights, strict=True)))
  images = data.images.astype(np.float32) / 127.5 - 1
  head = tf.Variable(head)
  if tuning.mode == 'head_first':
    velocity = tf.zeros_like(head)
    for _ in range(tuning.head_steps):
      with tf.GradientTape() as tape:
        logits = embedding_model.cosine_logits(
          backbone(images), head, scale=tuning.head_scale
        )
        loss = _loss(logits, data.labels)
      velocity = tuning.head_momentum * velocity + tape.gradient(loss, head)
      head.assign_sub(tuning.head_learning_rate * velocity)
  variables = list(backbone.trainable_variables)
  rates = [tuning.backbone_learning_rate] * len(variables)
  if tuning.mode == 'joint':
    variables.append(head)
    rates.append(tuning.head_learning_rate)
  velocities = [tf.zeros_like(variable) for variable in variables]
  told = {'loss_sum': 0.0, 'correct': 0.0}
  for epoch in range(tuning.backbone_epochs):
    order = tf.random.experimental.stateless_shuffle(
      tf.range(len(images)), data.seed + np.array([0, epoch + 1], np.int32)
    ).numpy()
    for start in range(0, len(images), tuning.batch_size):
      rows = order[start : start + tuning.batch_size]
      with tf.GradientTape() as tape:
        logits = embedding_model.cosine_logits(
          backbone(images[rows]), head, scale=tuning.head_scale
        )
        loss = _loss(logits, data.labels[rows])
      if epoch == tuning.backbone_epochs - 1:
        hits = np.argmax(logits, axis=1) == data.labels[rows]
        told['loss_sum'] += float(loss) * len(rows)
        told['correct'] += float(np.sum(hits))
      gradients = tape.gradient(loss, variables)
      for i, gradient in enumerate(gradients):
        velocities[i] = tuning.backbone_momentum * velocities[i] + gradient
        variables[i].assign_sub(rates[i] * velocities[i])
  after = [variable.numpy() for variable in backbone.trainable_variables]
  update = [x - y for x, y in zip(weights, after, strict=True)]
  return update, head, told


@pytest.mark.parametrize('mode', ['head_first', 'joint'])
def test_update_equals_the_step_by_step_reference(backbone, pure, mode):
  rng = np.random.default_rng(0)
  data = _data(rng)
  tuning = dataclasses.replace(
    _TUNING, mode=mode, head_momentum=0.9, head_learning_rate=0.5
  )
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  update, metrics = _update(pure, tuning, weights, data)
  head = 0.1 * tf.random.stateless_normal([8, 3], data.seed)
  expected, _, told = _reference(backbone, tuning, weights, head, data)
  for ours, theirs in zip(update, expected, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)
  assert max(np.abs(x).max() for x in update) > 1e-3
  assert float(metrics['examples']) == 9
  np.testing.assert_allclose(metrics['loss_sum'], told['loss_sum'], rtol=1e-3)
  assert float(metrics['correct']) == told['correct']


def test_bfloat16_layers_give_nearly_the_same_update(backbone, pure):
  mixed = embedding_model.lift(
    embedding_model.build_backbone(
      config.ModelConfig(embedding_dim=8),
      (8, 8, 1),
      precision='mixed_bfloat16',
    )
  )
  data = _data(np.random.default_rng(0), each=8)
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  flat = []
  for backbone_of_run in (pure, mixed):
    update, _ = _update(backbone_of_run, _TUNING, weights, data)
    assert {x.dtype for x in update} == {np.dtype(np.float32)}
    flat.append(np.concatenate([x.ravel() for x in update]))
  norms = np.linalg.norm(flat, axis=1)
  assert flat[0] @ flat[1] > 0.97 * norms.prod()
  assert np.any(flat[0] != flat[1])


def test_a_global_head_is_trained_and_returned(backbone, pure):
  rng = np.random.default_rng(1)
  data = _data(rng)
  data = data._replace(labels=data.labels * 10 + 4)  # Global: 4, 14, 24.
  tuning = dataclasses.replace(
    _TUNING, mode='joint', aggregate_head=True, num_classes=30
  )
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  head = rng.normal(size=[8, 30]).astype(np.float32)
  update, _ = _update(pure, tuning, [*weights, head], data)
  expected, trained, _ = _reference(backbone, tuning, weights, head, data)
  for ours, theirs in zip(update[:-1], expected, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)
  np.testing.assert_allclose(
    update[-1], head - trained.numpy(), rtol=2e-3, atol=2e-5
  )


def test_embeddings_made_in_chunks_give_the_same_update(
  backbone, pure, monkeypatch
):
  data = _data(np.random.default_rng(4))
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  whole, _ = _update(pure, _TUNING, weights, data)
  monkeypatch.setattr(client_work, '_EMBEDDED_AT_ONCE', 4)  # 4, 4 and 1
  chunked, _ = _update(pure, _TUNING, weights, data)
  for one, other in zip(whole, chunked, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
  assert max(np.abs(x).max() for x in whole) > 1e-3


def test_one_trace_serves_clients_of_any_size(backbone, pure):
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  specs = [tf.TensorSpec(weight.shape) for weight in weights]
  specs += [
    tf.TensorSpec([None, 8, 8, 1], tf.uint8),
    tf.TensorSpec([None], tf.int32),
    tf.TensorSpec([2], tf.int32),
  ]
  run = tf.function(
    lambda *args: client_work.client_update(
      pure, _TUNING, args[:-3], client_work.ClientData(*args[-3:])
    ),
    input_signature=specs,
    autograph=False,
  )
  rng = np.random.default_rng(5)
  examples = []
  for identities, each in ((1, 1), (3, 3), (2, 8)):
    data = _data(rng, identities=identities, each=each)
    examples.append(float(run(*weights, *data)[1]['examples']))
  assert examples == [1, 9, 16]
  assert run.experimental_get_tracing_count() == 1


def test_an_empty_client_returns_zeros(backbone, pure):
  data = client_work.ClientData(
    np.zeros([0, 8, 8, 1], np.uint8),
    np.zeros([0], np.int32),
    np.zeros([2], np.int32),
  )
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  update, metrics = _update(pure, _TUNING, weights, data)
  assert all(not x.any() for x in update)
  assert float(metrics['examples']) == 0


def test_one_identity_alone_teaches_nothing(backbone, pure):
  """Why virtual clients exist: a one-class softmax has no gradient."""
  data = _data(np.random.default_rng(2), identities=1, each=5)
  weights = [variable.numpy() for variable in backbone.trainable_variables]
  update, _ = _update(pure, _TUNING, weights, data)
  assert all(np.abs(x).max() < 1e-7 for x in update)
