"""How good a synthetic set is: train on it, test on real images.

`accuracy_on_real`, and `share_of_real` which is computed from it, are
statistics of private data without noise: no guarantee covers them. They are
for engineers, and `SEEN_WITHOUT_PROTECTION` says so in the certificate.
`accuracy` and `chance` tell about held-out users, who are in no release.
"""

import pathlib
from collections.abc import Callable
from typing import Any

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
  restricted = pathlib.Path(restricted)
  names = synthetic.class_names

  def real(store, directory):
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
      ' declare other synthesis.class_names or hold out more identities.'
    )
  embeddings, labels, _ = real(private_store, 'embeddings')
  return classification.compare(
    predict(synthetic.embeddings, synthetic.labels),
    predict(embeddings, labels),
    truth,
    users,
    declared_classes=len(names),
    confidence=confidence,
  )
