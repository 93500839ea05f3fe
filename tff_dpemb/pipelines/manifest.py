"""What a synthetic set says of itself: `dpemb.synthetic/2`.

Facts are fields; prose is in `Notes`, with a version. What restricted data
hash to is in none of them.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from tff_dpemb import config as config_lib
from tff_dpemb.artifacts import documents
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.pipelines import classes as classes_lib
from tff_dpemb.pipelines import release as release_lib
from tff_dpemb.synthesis import sampling


class DeclaredClass(documents.Value):
  """A class of the public set and what became of it."""

  name: str
  label: documents.Count
  noisy_users: float
  outcome: Literal['kept', 'dropped']
  reason: str = ''


class Projection(documents.Value):
  """The public projection and the norm bounds that it gave."""

  source: Literal['public store']
  dim: documents.PositiveCount
  digest: documents.Sha256
  norm_quantile: float
  norm_bound: float
  norm_bound_within_class: float


class Thresholds(documents.Value):
  """Below how many noisy users a class is dropped."""

  users: float


class Centres(documents.Value):
  """How noisy centres were shrunk (`clustering.centres.Shrunk`)."""

  signal: float
  kept: float


class Covariance(documents.Value):
  """How a noisy covariance was repaired (`clustering.covariance.Repaired`)."""

  shrinkage_to_public: float
  eigenvalue_floor: float
  eigenvalues_floored: documents.Count


class Noise(documents.Value):
  """Where the noise came from."""

  source: str
  certifiable: bool


class Notes(documents.Value):
  """What readers are told. Prose: nothing that is verified depends on it."""

  version: documents.PositiveCount = 1
  covered: str = 'noisy sums of every pass, hence mixture and embeddings'
  epsilon_is: str = (
    'in addition to the training of the encoder, given the encoder'
  )
  not_covered: tuple[str, ...] = (
    'the encoder, which was trained on the same users: see its certificate, and'
    ' the composition in the certificate of this set',
    'exact sums and real embeddings: kept in the restricted folder',
  )


class Manifest(documents.Manifest):
  """What was published, at which cost.

  Attributes:
    release: Release id.
    label: Store column of the classes.
    class_rule: Public rule that chose them.
    classes: Every declared class; its position is the published label.
    examples: Number of synthetic embeddings.
    examples_per_class: Of each class that was kept.
    embedding_dim: D.
    export_digest: Model digest of the encoder.
    epsilon: Proved at `delta` for the plan's unit and adjacency.
    delta: As asked.
    given: What the guarantee takes as given.
    charges: What was charged, in order: 'plan', then passes charged again.
    plan: What was drawn: queries, multipliers and split.
    zcdp_rho: Of the plan.
    discrete_noise_adds_to_delta_at_most: Of the plan.
    projection: The public projection.
    thresholds: Below which a class is dropped.
    centres: How they were shrunk.
    covariance: How each was repaired.
    noise: Where the noise came from.
    sampling_seed: Of the samples, 64 bits in hex; public.
    notes: Prose.
  """

  remedy: ClassVar[str] = 'publish it again'

  schema_name: Literal['dpemb.synthetic/2'] = documents.schema(
    'dpemb.synthetic/2'
  )
  release: str
  label: str
  class_rule: str
  classes: tuple[DeclaredClass, ...]
  examples: documents.PositiveCount
  examples_per_class: documents.PositiveCount
  embedding_dim: documents.PositiveCount
  export_digest: documents.Sha256
  epsilon: float
  delta: float
  given: Literal['encoder'] = 'encoder'
  charges: tuple[str, ...]
  plan: plan_lib.ClusteringPlan
  zcdp_rho: float
  discrete_noise_adds_to_delta_at_most: float
  projection: Projection
  thresholds: Thresholds
  centres: Centres
  covariance: tuple[Covariance, ...]
  noise: Noise
  sampling_seed: str
  notes: Notes = Notes()

  @property
  def plan_digest(self) -> str:
    """SHA-256 (hex) of the plan."""
    return self.plan.digest()


def build(
  log: release_lib.Release,
  *,
  config: config_lib.SynthesisConfig,
  chosen: classes_lib.ClassSet,
  projection: projection_lib.Projection,
  mixture: mixture_lib.Mixture,
  shape: tuple[int, ...],
  export_digest: str,
  files: Mapping[str, str],
) -> Manifest:
  """Returns the manifest of [n, D] = `shape` embeddings of a release."""
  plan, found = log.plan, mixture.diagnostics
  return Manifest(
    files=dict(files),
    release=log.name,
    label=config.label,
    class_rule=chosen.rule,
    classes=tuple(
      DeclaredClass(name=chosen.names[item['label']], **item)
      for item in mixture.outcomes
    ),
    examples=shape[0],
    examples_per_class=config.examples_per_class,
    embedding_dim=shape[1],
    export_digest=export_digest,
    epsilon=plan_lib.epsilon_of_event(log.event(), plan.delta),
    delta=plan.delta,
    charges=tuple(log.charges()),
    plan=plan,
    zcdp_rho=plan.rho(),
    discrete_noise_adds_to_delta_at_most=plan.discrete_delta(),
    projection=Projection(
      source='public store',
      dim=projection.dim,
      digest=projection.digest(),
      norm_quantile=projection_lib.RADIUS_QUANTILE,
      norm_bound=projection.radius,
      norm_bound_within_class=projection.within_radius,
    ),
    thresholds=Thresholds(users=found['user_threshold']),
    centres=Centres(**found['centres']),
    covariance=tuple(Covariance(**item) for item in found['covariance']),
    noise=Noise(
      source=log.source.description, certifiable=log.source.certifiable
    ),
    sampling_seed=f'{sampling.seed_of(log.name):016x}',
  )
