"""How good a synthetic set is: train on it, test on real images.

`accuracy_on_real`, and `share_of_real` which is computed from it, are
statistics of private data without noise: no guarantee covers them. They are
for engineers, and `SEEN_WITHOUT_PROTECTION` says so in the certificate.
`accuracy` and `chance` tell about held-out users, who are in no release.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tff_dpemb import config as config_lib
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.evaluation import classification
from tff_dpemb.export import registry
from tff_dpemb.pipelines import classes as classes_lib
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import publish
from tff_dpemb.pipelines import runner
from tff_dpemb.synthesis import classifier

# For `privacy.certificate.build_for_synthesis(seen_without_protection=...)`.
SEEN_WITHOUT_PROTECTION = (
  'accuracy of a net trained on real private embeddings, without noise'
  ' (accuracy_on_real), and the share of it that the synthetic set reaches'
  ' (share_of_real)',
  'exact sums of every pass and real embeddings, in the restricted folder',
)
_SEED = 0
_HELD_OUT = 'held-out-embeddings'


def check_held_out(
  *,
  private_store: str | pathlib.Path,
  held_out_store: str | pathlib.Path,
  export: str | pathlib.Path,
  restricted: str | pathlib.Path,
  config: config_lib.SynthesisConfig,
  pipeline_options: runner.Options = None,
  open_export: Callable[[str], Any] = registry.open_export,
) -> None:
  """Refuses, before anything is charged, what `assess` would refuse after it.

  Held-out users are in no release, so their images may be looked at. `assess`
  reads again what is embedded here.

  Args:
    private_store: As of `assess`; of it, only how its classes are named.
    held_out_store: As of `assess`.
    export: As of `assess`.
    restricted: As of `assess`.
    config: As of `assess`.
    pipeline_options: Beam options or flags.
    open_export: How the export is opened.

  Raises:
    EvaluationError: No held-out image is in the declared classes.
    ClusteringError: As of `classes.choose`.
  """
  chosen = classes_lib.choose(
    publish.class_names_of(private_store, config.label),
    count=config.classes,
    declared=config.class_names,
  )
  _, truth, _ = _real(
    held_out_store,
    _HELD_OUT,
    names=chosen.names,
    export=export,
    restricted=pathlib.Path(restricted),
    config=config,
    pipeline_options=pipeline_options,
    open_export=open_export,
  )
  _check_some(truth)


def assess(
  *,
  synthetic: publish.SyntheticRelease,
  private_store: str | pathlib.Path,
  held_out_store: str | pathlib.Path,
  export: str | pathlib.Path,
  restricted: str | pathlib.Path,
  config: config_lib.SynthesisConfig,
  confidence: float = 0.95,
  pipeline_options: runner.Options = None,
  open_export: Callable[[str], Any] = registry.open_export,
) -> classification.Comparison:
  """Returns accuracies on real held-out images of the declared classes.

  The same two-layer net is trained on the synthetic set and, for comparison,
  on the real private embeddings. `accuracy_on_real` and `share_of_real` are
  computed on private data without noise: RESTRICTED, not covered by any
  guarantee, and never to be published or put into a certificate.

  Args:
    synthetic: The release; it need not be on disk yet. All classes that it
      declares count: a dropped one counts against it.
    private_store: The store that was released.
    held_out_store: Users that had no part in the release.
    export: The export of the release.
    restricted: As for `publish.run`; its embeddings are read again.
    config: As for `publish.run`.
    confidence: Level of the intervals.
    pipeline_options: Beam options or flags.
    open_export: How the export is opened.

  Raises:
    EvaluationError: No held-out image is in the declared classes.
  """
  names = synthetic.class_names
  real = functools.partial(
    _real,
    names=names,
    export=export,
    restricted=pathlib.Path(restricted),
    config=config,
    pipeline_options=pipeline_options,
    open_export=open_export,
  )

  def predict(embeddings, labels):
    net = classifier.train(
      embeddings,
      labels,
      hidden_units=config.hidden_units,
      epochs=config.epochs,
      seed=_SEED,
    )
    return net.predict(held_out)

  held_out, truth, users = real(held_out_store, _HELD_OUT)
  _check_some(truth)
  embeddings, labels, _ = real(private_store, 'embeddings')
  return classification.compare(
    predict(synthetic.embeddings, synthetic.labels),
    predict(embeddings, labels),
    truth,
    users,
    declared_classes=len(names),
    confidence=confidence,
  )


def _real(
  store: str | pathlib.Path,
  directory: str,
  *,
  names: Sequence[str],
  export: str | pathlib.Path,
  restricted: pathlib.Path,
  config: config_lib.SynthesisConfig,
  pipeline_options: runner.Options,
  open_export: Callable[[str], Any],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (embeddings [n, D], published labels [n], users [n]) of a store.

  Only images of the declared classes count.
  """
  embedded = embed.embed(
    store=store,
    export=export,
    label=config.label,
    directory=restricted / directory,
    pipeline_options=pipeline_options,
    open_export=open_export,
  )
  embeddings, labels, users = embedded.read_all()
  published = mixture_lib.class_indices(
    labels,
    classes_lib.store_labels_of(
      publish.class_names_of(store, config.label), names
    ),
  )
  declared = published >= 0
  return embeddings[declared], published[declared], users[declared]


def _check_some(truth: np.ndarray) -> None:
  if not len(truth):
    raise classification.EvaluationError(
      'held-out images must have some of the declared classes, got none;'
      ' declare other synthesis.class_names or hold out more identities.'
    )
