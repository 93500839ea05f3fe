"""Labelled synthetic embeddings from a released mixture."""

import hashlib

import numpy as np

from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import projection as projection_lib


def sample(
  mixture: mixture_lib.Mixture,
  projection: projection_lib.Projection,
  *,
  examples_per_class: int,
  seed: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (unit embeddings [n, D] float32, labels [n] int32), class by class.

  Equally many examples a class. Post-processing of a released value: the seed
  has no part in the guarantee, and the same seed gives the same set.

  Raises:
    ClusteringError: `examples_per_class` < 1.
  """
  if examples_per_class < 1:
    raise errors.ClusteringError(
      f'examples_per_class must be >= 1, got {examples_per_class}.'
    )
  rng = np.random.Generator(np.random.Philox(seed))
  embeddings, labels = [], []
  for index, label in enumerate(mixture.classes):
    points = mixture.sample(index, examples_per_class, rng=rng)
    embeddings.append(projection.back_project(points, rng=rng))
    labels.append(np.full(examples_per_class, label, np.int32))
  return np.concatenate(embeddings), np.concatenate(labels)


def seed_of(release: str) -> int:
  """Returns the sampling seed of a release id (public, 64 bits)."""
  return int.from_bytes(hashlib.sha256(release.encode()).digest()[:8], 'big')
