"""How good a synthetic set is: train on it, test on real images.

`accuracy_on_real`, and `share_of_real` which is computed from it, are
statistics of private data without noise: no guarantee covers them. They are
for engineers, and `SEEN_WITHOUT_PROTECTION` says so in the certificate.
`accuracy` and `chance` tell about held-out users, who are in no release.
"""

from collections.abc import Sequence

import numpy as np

from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.evaluation import classification
from tff_dpemb.pipelines import classes as classes_lib
from tff_dpemb.pipelines import files
from tff_dpemb.pipelines import publish
from tff_dpemb.synthesis import classifier

# For `privacy.certificate.build.for_synthesis(seen_without_protection=...)`.
SEEN_WITHOUT_PROTECTION = (
  'accuracy of a net trained on real private embeddings, without noise'
  ' (accuracy_on_real), and the share of it that the synthetic set reaches'
  ' (share_of_real)',
  'exact sums of every pass and real embeddings, in the restricted folder',
)
_SEED = 0
_HELD_OUT = 'held-out-embeddings'


def check_held_out(request: publish.Request, held_out_store: files.Path):
  """Refuses, before anything is charged, what `assess` would refuse after it.

  Held-out users are in no release, so their images may be looked at. `assess`
  reads again what is embedded here. Of the private store, only how its classes
  are named is read.

  Raises:
    EvaluationError: No held-out image is in the declared classes.
    ClusteringError: As of `classes.choose`.
  """
  names = publish.choose(request).names
  _, truth, _ = _real(request, held_out_store, _HELD_OUT, names=names)
  _check_some(truth)


def assess(
  synthetic: publish.SyntheticRelease,
  request: publish.Request,
  *,
  held_out_store: files.Path,
  confidence: float = 0.95,
) -> classification.Comparison:
  """Returns accuracies on real held-out images of the declared classes.

  The same two-layer net is trained on the synthetic set and, for comparison,
  on the real private embeddings. `accuracy_on_real` and `share_of_real` are
  computed on private data without noise: RESTRICTED, not covered by any
  guarantee, and never to be published or put into a certificate.

  Args:
    synthetic: The release; it need not be on disk yet. All classes that it
      declares count: a dropped one counts against it.
    request: What it was made for; the embeddings of the private store are read
      again.
    held_out_store: Users that had no part in the release.
    confidence: Level of the intervals.

  Raises:
    EvaluationError: No held-out image is in the declared classes.
  """
  names = synthetic.class_names

  def predict(embeddings, labels):
    net = classifier.train(
      embeddings,
      labels,
      hidden_units=request.config.hidden_units,
      epochs=request.config.epochs,
      seed=_SEED,
    )
    return net.predict(held_out)

  held_out, truth, users = _real(
    request, held_out_store, _HELD_OUT, names=names
  )
  _check_some(truth)
  embeddings, labels, _ = _real(
    request, request.private_store, publish.PRIVATE, names=names
  )
  return classification.compare(
    predict(synthetic.embeddings, synthetic.labels),
    predict(embeddings, labels),
    truth,
    users,
    declared_classes=len(names),
    confidence=confidence,
  )


def _real(
  request: publish.Request,
  store: files.Path,
  directory: str,
  *,
  names: Sequence[str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns (embeddings [n, D], published labels [n], users [n]) of a store.

  Only images of the declared classes count.
  """
  label = request.config.label
  vocabulary = publish.class_names_of(store, label)
  embedded = publish.embed_store(request, store, directory)
  embeddings, labels, users = embedded.read_all()
  published = mixture_lib.class_indices(
    labels, classes_lib.store_labels_of(vocabulary, names)
  )
  declared = published >= 0
  return embeddings[declared], published[declared], users[declared]


def _check_some(truth: np.ndarray) -> None:
  if not len(truth):
    raise classification.EvaluationError(
      'held-out images must have some of the declared classes, got none;'
      ' declare other synthesis.class_names or hold out more identities.'
    )
