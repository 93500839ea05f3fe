"""How good a published synthetic set is: train on it, test on real images."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tff_dpemb import config as config_lib
from tff_dpemb.evaluation import classification
from tff_dpemb.export import registry
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import publish
from tff_dpemb.pipelines import runner
from tff_dpemb.synthesis import classifier

_SEED = 0


def assess(
  *,
  synthetic: str | pathlib.Path,
  private_store: str | pathlib.Path,
  held_out_store: str | pathlib.Path,
  export: str | pathlib.Path,
  restricted: str | pathlib.Path,
  config: config_lib.SynthesisConfig,
  classes: tuple[int, ...],
  confidence: float = 0.95,
  pipeline_options: runner.Options = None,
  open_export: Callable[[str], Any] = registry.open_export,
) -> classification.Comparison:
  """Returns accuracies on real held-out images of the declared classes.

  The same two-layer net is trained on the synthetic set and, for comparison,
  on the real private embeddings. The second figure is computed on private
  data without noise: RESTRICTED, not covered by the guarantee.

  Args:
    synthetic: Directory that `publish.run` wrote.
    private_store: The store that was released.
    held_out_store: Users that had no part in the release.
    export: The export of the release.
    restricted: As for `publish.run`; its embeddings are read again.
    config: As for `publish.run`.
    classes: All *declared* classes (of `plan.classes`): a dropped one counts
      against the synthetic set.
    confidence: Level of the intervals.
    pipeline_options: Beam options or flags.
    open_export: How the export is opened.

  Raises:
    EvaluationError: No held-out image is in the declared classes.
  """
  restricted = pathlib.Path(restricted)

  def real(store, name):
    embedded = embed.embed(
      store=store,
      export=export,
      label=config.label,
      directory=restricted / name,
      pipeline_options=pipeline_options,
      open_export=open_export,
    )
    embeddings, labels, users = embedded.read_all()
    declared = np.isin(labels, classes)
    return embeddings[declared], labels[declared], users[declared]

  def predict(embeddings, labels):
    net = classifier.train(
      embeddings,
      labels,
      hidden_units=config.hidden_units,
      epochs=config.epochs,
      seed=_SEED,
    )
    return net.predict(held_out)

  held_out, truth, users = real(held_out_store, 'held-out-embeddings')
  if not len(truth):
    raise classification.EvaluationError(
      'held-out images must have some of the declared classes, got none;'
      ' declare other classes or hold out more identities.'
    )
  embeddings, labels, _ = real(private_store, 'embeddings')
  return classification.compare(
    predict(*publish.read(synthetic)),
    predict(embeddings, labels),
    truth,
    users,
    declared_classes=len(classes),
    confidence=confidence,
  )
