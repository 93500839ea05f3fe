"""Publishes labelled synthetic embeddings: stage 3 from stores to a manifest.

  private images -> embeddings (restricted) -> integer sums (restricted)
    -> charge -> noise, once -> mixture -> samples -> synthetic/

Guarantee of what is published: user-level (epsilon, delta), add-or-remove one
user, whatever the user's images and however many, GIVEN the encoder. The
encoder was trained on the same users, and every synthetic embedding carries
its output: this epsilon comes in addition to that of the encoder's training.
Both together are bounded by the composition in the certificate.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

from tff_dpemb import config as config_lib
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.clustering import queries
from tff_dpemb.data import user_store
from tff_dpemb.export import registry
from tff_dpemb.pipelines import accumulate
from tff_dpemb.pipelines import classes as classes_lib
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import files
from tff_dpemb.pipelines import manifest as manifest_lib
from tff_dpemb.pipelines import release as release_lib
from tff_dpemb.pipelines import runner
from tff_dpemb.pipelines import synthetic_set
from tff_dpemb.synthesis import sampling

SyntheticRelease = synthetic_set.SyntheticRelease
Certify = synthetic_set.Certify
EMBEDDINGS = synthetic_set.EMBEDDINGS
MANIFEST = synthetic_set.MANIFEST
CERTIFICATE = synthetic_set.CERTIFICATE
PRIVATE = 'embeddings'  # directories of the embeddings of stores
PUBLIC = 'public-embeddings'
_PRODUCTION = noise.DiscreteGaussian()
_NEW = 'start a new release'
_PUBLIC_ROWS = 200_000  # enough for PCA in a thousand dimensions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """One synthetic set that is asked for.

  Attributes:
    private_store: User store of the users to protect.
    public_store: User store of public images, for the projection.
    export: A version of an export (or its root: the newest).
    output: Directory to publish, on any file system; another set there is
      replaced.
    restricted: Local directory for what must not leave. The log of the release
      is in it, on which its guarantee rests: it must survive a crash.
    config: Settings; `class_names` is the declared, public class set.
    delta: Of the guarantee; config.delta does not override it.
    charge: Called with (event, release id) before noise is drawn; must be
      durable when it returns, and raise to refuse.
    release: Release id.
    charged: Returns how many entries the ledger holds for this release, so
      that one which lacks some is found before more noise is drawn.
    certify: Returns the certificate, and other files to publish with it, of
      the release and the hashes of its files. What it raises is raised here,
      and nothing is published. None: the set has no certificate.
    shared: Directory for embeddings and exact sums, which driver and workers
      write and read, on any file system. RESTRICTED, too. None: `restricted`.
    pipeline_options: Beam options or flags.
    open_export: How the export is opened.
    source: Noise source; anything but the default is marked not certifiable.

  Raises:
    ClusteringError: `restricted` is not local, or `release` is empty.
  """

  private_store: files.Path
  public_store: files.Path
  export: files.Path
  output: files.Path
  restricted: files.Path
  config: config_lib.SynthesisConfig
  delta: float
  charge: release_lib.Charge
  release: str
  charged: Callable[[], int] | None = None
  certify: Certify | None = None
  shared: files.Path | None = None
  pipeline_options: runner.Options = None
  open_export: Callable[[str], Any] = registry.open_export
  source: noise.NoiseSource = _PRODUCTION

  def __post_init__(self):
    if not files.is_local(self.restricted):
      raise errors.ClusteringError(
        'restricted must be a local or mounted directory, because what was'
        f' charged and drawn is logged there, got {str(self.restricted)!r};'
        ' give what workers share as `shared`.'
      )
    if not self.release:
      raise errors.ClusteringError('release must be an id that is not empty.')

  @property
  def log(self) -> pathlib.Path:
    """Directory of the release's log."""
    name = self.release
    if not all(c.isalnum() or c in '-_' for c in name) or len(name) > 80:
      name = hashlib.sha256(name.encode()).hexdigest()[:32]
    return pathlib.Path(self.restricted) / f'release-{name}'

  def shared_path(self, *names: str) -> str:
    """Returns the path of what driver and workers share."""
    root = self.restricted if self.shared is None else self.shared
    return files.join(root, *names)


def run(request: Request) -> SyntheticRelease:
  """Publishes one synthetic set; the same call again resumes or returns it.

  Set, manifest and what `certify` returns appear at once, or not at all. An
  equal set that is there already with its certificate is left alone.

  Raises:
    NothingToRelease: No image, or (after the charge) no class large enough.
    ClusteringError: A setting breaks a rule, the id was used otherwise, or
      `certify` returned no certificate.
  """
  chosen = choose(request)
  plan = _plan(request, chosen)
  private = embed_store(request, request.private_store, PRIVATE)
  public = embed_store(request, request.public_store, PUBLIC)
  log = _open_log(request, plan, chosen, private=private, public=public)
  projection = _projection(public, plan.projection_dim, log.directory)
  sums = _sums(request, chosen, log, private=private, projection=projection)
  mixture = mixture_lib.fit(plan, projection, accumulate=sums, release=log.draw)
  embeddings, labels = sampling.sample(
    mixture,
    projection,
    examples_per_class=request.config.examples_per_class,
    seed=sampling.seed_of(request.release),
  )
  content = synthetic_set.to_parquet(embeddings, labels)
  made = SyntheticRelease(
    path=str(request.output),
    manifest=manifest_lib.build(
      log,
      config=request.config,
      chosen=chosen,
      projection=projection,
      mixture=mixture,
      shape=embeddings.shape,
      export_digest=private.manifest.export_digest,
      files={EMBEDDINGS: hashlib.sha256(content).hexdigest()},
    ),
    event=log.event(),
    embeddings=embeddings,
    labels=labels,
  )
  synthetic_set.write(made, content, certify=request.certify)
  return made


def class_names_of(store: files.Path, label: str) -> list[str]:
  """Returns the vocabulary of a label column. PRIVATE if its store is."""
  opened = user_store.UserStore.open(store)
  return [
    opened.class_name(label, index)
    for index in range(opened.num_classes(label))
  ]


def choose(request: Request) -> classes_lib.ClassSet:
  """Returns the declared classes."""
  return classes_lib.choose(
    class_names_of(request.private_store, request.config.label),
    count=request.config.classes,
    declared=request.config.class_names,
  )


def _plan(
  request: Request, chosen: classes_lib.ClassSet
) -> plan_lib.ClusteringPlan:
  """Returns what is drawn and what it costs."""
  return plan_lib.build(
    chosen.labels,
    epsilon=request.config.epsilon,
    delta=request.delta,
    projection_dim=request.config.projection_dim,
    components_per_class=request.config.components_per_class,
    clustering_rounds=request.config.clustering_rounds,
  )


def embed_store(
  request: Request, store: files.Path, directory: str
) -> embed.Embeddings:
  """Returns a store's embeddings, with its classes where it has them."""
  label = request.config.label
  has_label = label in user_store.UserStore.open(store).label_names
  return embed.embed(
    store=store,
    export=request.export,
    label=label if has_label else '',
    directory=request.shared_path(directory),
    pipeline_options=request.pipeline_options,
    open_export=request.open_export,
  )


def _open_log(
  request: Request,
  plan: plan_lib.ClusteringPlan,
  chosen: classes_lib.ClassSet,
  *,
  private: embed.Embeddings,
  public: embed.Embeddings,
) -> release_lib.Release:
  """Returns the log of this release id, bound to all that it depends on."""
  return release_lib.open_release(
    request.release,
    request.log,
    plan=plan,
    inputs={
      'private_store': private.manifest.store_digest,
      'public_store': public.manifest.store_digest,
      'export': private.manifest.export_digest,
      'label': request.config.label,
      'classes': list(chosen.names),
    },
    charge=request.charge,
    source=request.source,
    charged=request.charged() if request.charged else None,
  )


def _projection(
  public: embed.Embeddings, dim: int, log: pathlib.Path
) -> projection_lib.Projection:
  """Returns the projection of this release: fitted once, then read back."""
  path = log / 'projection.npz'
  if path.exists():
    return projection_lib.from_arrays(files.read_arrays(path, remedy=_NEW))
  embeddings, labels, _ = public.read_all(max_rows=_PUBLIC_ROWS)
  projection = projection_lib.fit(
    embeddings,
    dim,
    public_labels=labels if public.manifest.label else None,
  )
  files.write_arrays(path, projection.to_arrays())
  return projection


def _sums(
  request: Request,
  chosen: classes_lib.ClassSet,
  log: release_lib.Release,
  *,
  private: embed.Embeddings,
  projection: projection_lib.Projection,
) -> mixture_lib.Accumulate:
  """Returns what sums a query over all private users."""
  directory = request.shared_path(request.log.name)
  rows_of_user = files.join(directory, 'rows_of_user.npz')
  accumulate.write_rows_of_user(
    private,
    classes=chosen.store_labels,
    path=rows_of_user,
    pipeline_options=request.pipeline_options,
  )

  def sums_of(index: int, query: queries.Query) -> queries.Sums:
    if log.noisy_path(index).exists():
      return {}  # Released already: the users are not read again.
    return accumulate.accumulate(
      private,
      query,
      projection=projection,
      classes=chosen.store_labels,
      rows_of_user=rows_of_user,
      path=files.join(directory, f'sums-{index}.npz'),
      pipeline_options=request.pipeline_options,
    )

  return sums_of
