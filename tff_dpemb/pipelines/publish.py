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
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tff_dpemb import config as config_lib
from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import plan as plan_lib
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.data import user_store
from tff_dpemb.export import registry
from tff_dpemb.pipelines import accumulate
from tff_dpemb.pipelines import classes as classes_lib
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import release as release_lib
from tff_dpemb.pipelines import runner
from tff_dpemb.synthesis import sampling

SCHEMA = 'dpemb.synthetic/1'
EMBEDDINGS = 'embeddings.parquet'
MANIFEST = 'manifest.json'
CERTIFICATE = 'certificate.json'
_PUBLIC_ROWS = 200_000  # enough for PCA in a thousand dimensions
_RADIUS_QUANTILE = 0.95


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticRelease:
  """What is published, or about to be (see `Certify`).

  Attributes:
    path: Directory with embeddings.parquet, manifest.json and what certifies
      them.
    manifest: Content of manifest.json.
    plan: Queries, multipliers and split.
    event: Composed `dp_accounting` event of every charge of this release.
    epsilon: Proved epsilon of `event` at `delta`, given the encoder.
    delta: As asked.
    examples: Number of synthetic embeddings.
    classes: Labels that were published (dropped classes are not in it).
    embeddings: [examples, D] float32, unit norm.
    labels: [examples] int32, positions in `class_names`.
  """

  path: pathlib.Path
  manifest: dict[str, Any]
  plan: plan_lib.ClusteringPlan
  event: Any
  epsilon: float
  delta: float
  examples: int
  classes: tuple[int, ...]
  embeddings: np.ndarray = dataclasses.field(repr=False)
  labels: np.ndarray = dataclasses.field(repr=False)

  @property
  def class_names(self) -> tuple[str, ...]:
    """Returns the name of every declared class, dropped ones included."""
    return tuple(item['name'] for item in self.manifest['classes'])

  def certificate_arguments(self) -> dict[str, Any]:
    """Returns what `privacy.certificate.build_for_synthesis` asks about this.

    Each query's `times` counts a pass that was charged again after a crash.
    """
    charges = self.manifest['charges']
    queries = [
      {
        'name': f'{step.name}/{name}',
        'noise_multiplier': multiplier,
        'sensitivity': 1.0,
        'times': charges.count(plan_lib.WHOLE_PLAN) + charges.count(step.name),
      }
      for step in self.plan.passes
      for name, multiplier in step.multipliers.items()
    ]
    floors = [c['eigenvalue_floor'] for c in self.manifest['covariance']]
    least = self.manifest['thresholds']['users']
    return {
      'queries': queries,
      'norm_bound': self.manifest['projection']['norm_bound'],
      'covariance_floor': min(floors),
      'thresholds': (
        f'a class with fewer than {least:.2f} noisy users is dropped'
      ),
      'dropped_classes': [
        item['name']
        for item in self.manifest['classes']
        if item['outcome'] == 'dropped'
      ],
      'noise_source': self.manifest['noise'],
      'fixed_seed': not self.manifest['certifiable'],
      'numerics': (
        'Integer sums on a grid of 2^-36 of the norm bound, rounded toward'
        ' zero; discrete Gaussian noise, which adds at most'
        f' {self.plan.discrete_delta():.0e} to delta.'
      ),
    }

  def data_accesses(self) -> dict[str, str]:
    """Returns which facts of the data were used, and whether at a cost."""
    return {
      'projection, norm bounds, covariance target': 'public',
      'set of classes': 'public',
      f'rule of the class set: {self.manifest["class_rule"]}': 'public',
      'which declared classes the store knows (log of the operator)': (
        'not covered'
      ),
    }


# (release, SHA-256 of embeddings.parquet and manifest.json by file name) ->
# files to publish beside them: `CERTIFICATE` at least. The directory is not
# there yet.
Certify = Callable[[SyntheticRelease, dict[str, str]], Mapping[str, bytes]]


def run(
  *,
  private_store: str | pathlib.Path,
  public_store: str | pathlib.Path,
  export: str | pathlib.Path,
  output: str | pathlib.Path,
  restricted: str | pathlib.Path,
  config: config_lib.SynthesisConfig,
  delta: float,
  charge: Callable[[Any, str], None],
  release: str,
  charged: Callable[[], int] | None = None,
  certify: Certify | None = None,
  pipeline_options: runner.Options = None,
  open_export: Callable[[str], Any] = registry.open_export,
  source: noise.NoiseSource = noise.DiscreteGaussian(),
) -> SyntheticRelease:
  """Publishes one synthetic set; the same call again resumes or returns it.

  Set, manifest and what `certify` returns appear at once, or not at all. An
  equal set that is there already with its certificate is left alone.

  Args:
    private_store: User store of the users to protect.
    public_store: User store of public images, for the projection.
    export: A version of an export (or its root: the newest).
    output: Directory to publish; another set there is replaced.
    restricted: Directory for what must not leave: embeddings, exact sums.
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
    pipeline_options: Beam options or flags.
    open_export: How the export is opened.
    source: Noise source; anything but the default is marked not certifiable.

  Raises:
    NothingToRelease: No image, or (after the charge) no class large enough.
    ClusteringError: A setting breaks a rule, the id was used otherwise, or
      `certify` returned no certificate.
  """
  output, restricted = pathlib.Path(output), pathlib.Path(restricted)
  chosen = classes_lib.choose(
    class_names_of(private_store, config.label),
    count=config.classes,
    declared=config.class_names,
  )
  plan = plan_lib.build(
    chosen.labels,
    epsilon=config.epsilon,
    delta=delta,
    projection_dim=config.projection_dim,
    components_per_class=config.components_per_class,
    clustering_rounds=config.clustering_rounds,
  )
  private = embed.embed(
    store=private_store,
    export=export,
    label=config.label,
    directory=restricted / 'embeddings',
    pipeline_options=pipeline_options,
    open_export=open_export,
  )
  public = _embed_public(
    public_store, export, config, restricted, pipeline_options, open_export
  )
  work = restricted / f'release-{_safe(release)}'
  log = release_lib.open_release(
    release,
    work,
    plan=plan,
    inputs={
      'private_store': private.store_digest,
      'public_store': public.store_digest,
      'export': private.export_digest,
      'label': config.label,
      'classes': list(chosen.names),
    },
    charge=charge,
    source=source,
    charged=charged() if charged else None,
  )
  projection = _projection(public, plan.projection_dim, work / 'projection.npz')
  rows_of_user = work / 'rows_of_user.npy'
  accumulate.write_rows_of_user(
    private, classes=chosen.store_labels, path=rows_of_user
  )

  passes = iter(range(len(plan.passes)))

  def sums_of(query):
    index = next(passes)
    if log.noisy_path(index).exists():
      return {}  # Released already: the users are not read again.
    return accumulate.accumulate(
      private,
      query,
      projection=projection,
      classes=chosen.store_labels,
      rows_of_user=rows_of_user,
      path=work / f'sums-{index}.npz',
      pipeline_options=pipeline_options,
    )

  mixture = mixture_lib.fit(
    plan, projection, accumulate=sums_of, release=log.draw
  )
  embeddings, labels = sampling.sample(
    mixture,
    projection,
    examples_per_class=config.examples_per_class,
    seed=sampling.seed_of(release),
  )
  epsilon = plan_lib.epsilon_of_event(log.event(), delta)
  manifest = {
    'schema': SCHEMA,
    'release': release,
    'label': config.label,
    'class_rule': chosen.rule,
    'classes': [
      {'name': chosen.names[outcome['label']], **outcome}
      for outcome in mixture.outcomes
    ],
    'examples': len(embeddings),
    'examples_per_class': config.examples_per_class,
    'embedding_dim': embeddings.shape[1],
    'export_digest': private.export_digest,
    'epsilon': epsilon,
    'delta': delta,
    'adjacency': 'add_or_remove_one',
    'unit': 'user',
    'charges': log.charges(),
    'plan': plan.to_manifest(),
    'plan_digest': plan.digest(),
    'projection': {
      'source': 'public store',
      'dim': projection.dim,
      'digest': projection.digest(),
      'norm_quantile': _RADIUS_QUANTILE,
      'norm_bound': projection.radius,
      'norm_bound_within_class': projection.within_radius,
    },
    'thresholds': {'users': mixture.diagnostics['user_threshold']},
    'centres': mixture.diagnostics['centres'],
    'covariance': mixture.diagnostics['covariance'],
    'noise': source.description,
    'certifiable': source.certifiable,
    'sampling_seed': sampling.seed_of(release),
    'covered': 'noisy sums of every pass, hence mixture and embeddings',
    'epsilon_is': (
      'in addition to the training of the encoder, given the encoder'
    ),
    'not_covered': [
      'the encoder, which was trained on the same users: see its certificate,'
      ' and the composition in the certificate of this set',
      'exact sums and real embeddings: kept in the restricted folder',
    ],
  }
  content = _to_parquet(embeddings, labels)
  manifest['sha256'] = hashlib.sha256(content).hexdigest()
  made = SyntheticRelease(
    path=output,
    manifest=manifest,
    plan=plan,
    event=log.event(),
    epsilon=epsilon,
    delta=delta,
    examples=len(embeddings),
    classes=mixture.classes,
    embeddings=embeddings,
    labels=labels,
  )
  _publish(made, content, certify)
  return made


def class_names_of(store: str | pathlib.Path, label: str) -> list[str]:
  """Returns the vocabulary of a label column. PRIVATE if its store is."""
  opened = user_store.UserStore.open(store)
  return [
    opened.class_name(label, index)
    for index in range(opened.num_classes(label))
  ]


def read(path: str | pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Returns (embeddings [n, D] float32, labels [n] int32) of a published set.

  Raises:
    ArtifactError: The set is missing, damaged or not as published.
  """
  path = pathlib.Path(path)
  manifest = storage.read_json(path / MANIFEST)
  if storage.sha256_of(path / EMBEDDINGS) != manifest['sha256']:
    raise storage.ArtifactError(
      f'{str(path / EMBEDDINGS)!r} has another SHA-256 than its manifest;'
      ' publish it again.'
    )
  table = parquet.read_table(path / EMBEDDINGS)
  flat = table['embedding'].combine_chunks().flatten().to_numpy()
  embeddings = flat.reshape(len(table), manifest['embedding_dim'])
  return embeddings, table['label'].to_numpy()


def _to_parquet(embeddings: np.ndarray, labels: np.ndarray) -> bytes:
  offsets = np.arange(0, embeddings.size + 1, embeddings.shape[1], np.int32)
  table = pa.table(
    {
      'label': pa.array(labels, pa.int32()),
      'embedding': pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(embeddings.reshape(-1), pa.float32())
      ),
    }
  )
  sink = pa.BufferOutputStream()
  parquet.write_table(table, sink, compression='zstd', use_dictionary=['label'])
  return sink.getvalue().to_pybytes()


def _publish(
  made: SyntheticRelease, content: bytes, certify: Certify | None
) -> None:
  """Writes a set with its certificate, unless an equal one is there."""
  if _is_published(made, certified=certify is not None):
    return
  text = json.dumps(made.manifest, indent=2, allow_nan=False) + '\n'
  files = {EMBEDDINGS: content, MANIFEST: text.encode()}
  if certify is not None:
    hashes = {
      name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    extra = certify(made, hashes)
    if CERTIFICATE not in extra or any(
      name in files or pathlib.PurePath(name).name != name for name in extra
    ):
      raise errors.ClusteringError(
        f'certify must return {CERTIFICATE!r} and other plain file names, got'
        f' {sorted(extra)}.'
      )
    files.update(extra)
  with storage.atomic_directory(made.path, replace=True) as directory:
    for name, data in files.items():
      storage.atomic_write_bytes(directory / name, data)


def _is_published(made: SyntheticRelease, *, certified: bool) -> bool:
  """Returns whether an equal and whole set is at its path already."""
  wanted = [EMBEDDINGS, MANIFEST, *([CERTIFICATE] if certified else [])]
  if not all((made.path / name).is_file() for name in wanted):
    return False
  try:
    manifest = storage.read_json(made.path / MANIFEST)
  except storage.ArtifactError:
    return False  # Damaged: it is written again.
  found = storage.sha256_of(made.path / EMBEDDINGS)
  return manifest == made.manifest and found == made.manifest['sha256']


def _embed_public(
  store, export, config, restricted, pipeline_options, open_export
) -> embed.Embeddings:
  has_label = config.label in user_store.UserStore.open(store).label_names
  return embed.embed(
    store=store,
    export=export,
    label=config.label if has_label else '',
    directory=restricted / 'public-embeddings',
    pipeline_options=pipeline_options,
    open_export=open_export,
  )


def _projection(
  public: embed.Embeddings, dim: int, path: pathlib.Path
) -> projection_lib.Projection:
  """Returns the projection of this release: fitted once, then read back."""
  if path.exists():
    return projection_lib.from_bytes(path.read_bytes())
  embeddings, labels, _ = public.read_all(max_rows=_PUBLIC_ROWS)
  projection = projection_lib.fit(
    embeddings,
    dim,
    public_labels=labels if public.label else None,
    quantile=_RADIUS_QUANTILE,
  )
  storage.atomic_write_bytes(path, projection.to_bytes())
  return projection


def _safe(release: str) -> str:
  """Returns a directory name for a release id."""
  if not release:
    raise errors.ClusteringError('release must be an id that is not empty.')
  if all(c.isalnum() or c in '-_' for c in release) and len(release) <= 80:
    return release
  return hashlib.sha256(release.encode()).hexdigest()[:32]
