"""Rounds with made-up images, for benchmarks of executors."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_dpemb import config


def build_process(
  backbone: Any,
  *,
  virtual_clients: int,
  noise_multiplier: float = 0.5,
  **training: Any,
) -> Any:
  """Returns the product's process with adaptive clipping and noise."""
  from tff_dpemb.models import embedding_model
  from tff_dpemb.privacy.mechanisms import independent
  from tff_dpemb.training import aggregators
  from tff_dpemb.training import process

  page = config.from_mapping({'name': 'benchmark', 'training': training})
  return process.build_process(
    embedding_model.lift(backbone),
    process.local_tuning_from_config(page, num_classes=0),
    aggregators.build_aggregator(
      independent.AdaptiveClipGaussian(
        0.1, noise_multiplier, virtual_clients=virtual_clients
      ),
      denominator=float(virtual_clients),
    ),
    initial_weights=[v.numpy() for v in backbone.trainable_variables],
    server_learning_rate=page.training.server_learning_rate,
    server_momentum=page.training.server_momentum,
  )


def build_lenet(name: str = 'lenet') -> Any:
  """Returns a LeNet for 28 x 28 grey images."""
  from tff_dpemb.models import embedding_model

  return embedding_model.build_backbone(
    config.ModelConfig(backbone=name),
    (28, 28, 1),
  )


def clients(
  sizes: Sequence[int],
  *,
  image_shape: tuple[int, int, int] = (28, 28, 1),
  rng: np.random.Generator,
) -> list[Any]:
  """Returns virtual clients with `sizes` examples of eight identities."""
  from tff_dpemb.training import client_work

  return [
    client_work.ClientData(
      images=rng.integers(0, 256, [size, *image_shape]).astype(np.uint8),
      labels=(np.arange(size) % 8).astype(np.int32),
      seed=rng.integers(0, 1000, 2).astype(np.int32),
    )
    for size in sizes
  ]


def largest_difference(one: Any, other: Any) -> float:
  """Returns the largest difference of two states' weights."""
  return max(
    float(np.max(np.abs(x - y)))
    for x, y in zip(one.weights, other.weights, strict=True)
  )
