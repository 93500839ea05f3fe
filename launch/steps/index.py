"""A store's images, embedded by an export and indexed for Search."""

import pathlib

import numpy as np

from serving import index as index_lib
from tff_dpemb.data import user_store
from tff_dpemb.export import registry

_BATCH_SIZE = 1024  # images that are held at a time


def index_store(
  exported: registry.Export,
  store: user_store.UserStore,
  output: pathlib.Path,
  *,
  label: str = user_store.IDENTITY,
  replace: bool = False,
) -> tuple[index_lib.Index, np.ndarray]:
  """Writes the index; returns it and the embeddings [images, embedding_dim].

  Args:
    exported: The model.
    store: Images of the model's shape, one at least.
    output: Where the index goes.
    label: Label column to keep with the items.
    replace: Whether an index at `output` may be replaced.

  Raises:
    InvalidValue, IndexDamaged: As of `serving.index.build`.
  """
  parts, waiting, labels = [], [], []
  for user in range(store.num_users):
    examples = store.read_user(user)
    labels += [store.class_name(label, int(i)) for i in examples.labels[label]]
    waiting.append(examples.images)
    if sum(map(len, waiting)) >= _BATCH_SIZE or user + 1 == store.num_users:
      parts.append(exported.embed(np.concatenate(waiting)))
      waiting = []
  embeddings = np.concatenate(parts)
  built = index_lib.build(
    output,
    embeddings,
    store.example_ids(),
    labels,
    model_digest=exported.digest,
    replace=replace,
  )
  return built, embeddings
