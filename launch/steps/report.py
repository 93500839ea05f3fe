"""The last stage: what the others left on disk, as report.json and a page."""

import importlib.metadata
import os
import platform
from typing import Any

import click
import numpy as np

from launch.pages import report as report_page
from launch.pages import report_schema
from launch.run import opened
from launch.run import progress
from launch.run import revision
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import retrieval
from tff_dpemb.export import registry
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.planning import extrapolation

_SHEET_USERS = 6
_SHEET_IMAGES = 8
_GALLERY_ROWS = 8
_PACKAGES = (
  'tensorflow', 'tensorflow-federated', 'dp-accounting', 'apache-beam',
)  # fmt: skip


def report(run: opened.OpenRun) -> None:
  """Writes report.json and report.html, and prints the main figures."""
  places = run.paths
  trained = run.read_done(places.training, 'train')
  figures = run.read_done(places.evaluation, 'evaluate')
  exported = run.read_done(places.export, 'export')
  serving = run.read_done(places.serving, 'serve-check')
  synthetic = None
  if places.store('public').exists():  # Else none can be made.
    synthetic = _synthetic(
      run.read_done(places.synthetic_stage, 'synthesize'),
      storage.read_json(
        places.restricted / run.config.synthesis.release / 'comparison.json'
      ),
    )
  with progress.stage('report'):
    document = report_schema.Report.from_json(
      {
        'schema': report_schema.Report.schema_of_class(),
        'training': _training(run, trained),
        'privacy': _privacy(run, trained),
        'verification': _verification(figures),
        'retrieval': _retrieval(figures),
        'export': {
          **_pick(exported, 'saved_model', 'tflite', 'min_cosine'),
          'digest': exported['model_digest'],
        },
        'serving': _pick(serving, 'lookups', 'agreement_with_exact', 'seconds'),
        'synthetic': synthetic,
        'run': _facts(run),
      },
      name='report',
    )
    # An operator's view: it holds figures without noise.
    document.write(places.report_json, is_private=True)
    page = report_page.to_html(document, pictures=_pictures(run, figures))
    storage.atomic_write_bytes(
      places.report_html, page.encode(), is_private=True
    )
  click.echo(report_page.to_text(document), nl=False)
  click.echo(f'report: {places.report_html}')


def _training(run: opened.OpenRun, trained: dict[str, Any]) -> dict[str, Any]:
  # Expected numbers, which are public; exact ones are in restricted/.
  training, plan = run.config.training, trained['plan']
  examples = (
    trained['rounds']
    * plan['users_per_round']
    * min(training.max_examples_per_user, run.config.data.images_per_identity)
    * training.backbone_epochs
  )
  return {
    **_pick(trained, 'rounds', 'replayed_rounds', 'seconds'),
    **_pick(plan, 'population', 'users_per_round', 'virtual_clients'),
    'examples_per_second': examples / max(trained['seconds'], 1e-9),
  }


def _privacy(run: opened.OpenRun, trained: dict[str, Any]) -> dict[str, Any]:
  """Epsilon of the run as executed: every draw in the ledger is counted."""
  plan = run.plan
  draws = run.draws_of(run.model_release)
  spent = run.ledger.spent(run.config.privacy.population, plan.delta)
  rounds = plan.rounds if plan.is_charged_at_start else trained['rounds']
  replays = draws - trained['rounds']
  proved = plan.guarantee(rounds, replays=replays)
  extrapolated = (
    extrapolation.extrapolate(plan, run.config.privacy.extrapolate_to)
    if plan.mechanism.noise_multiplier > 0 and plan.sampler.kind == 'poisson'
    else []
  )
  to_json = guarantee.epsilon_to_json
  return {
    'epsilon': to_json(proved.epsilon),
    'delta': plan.delta,
    'adjacency': plan.adjacency.value,
    'accountant': proved.accountant,
    'draws': draws,
    'epsilon_naive': to_json(plan.naive_epsilon(rounds, replays)),
    'epsilon_unamplified': to_json(plan.unamplified_epsilon(rounds, replays)),
    'extrapolated': [item.to_json() for item in extrapolated],
    'simulation': run.config.privacy.simulation,
    'population_epsilon_all_releases': to_json(spent.epsilon),
  }


def _verification(figures: dict[str, Any]) -> dict[str, Any]:
  def values(name: str) -> dict[str, float]:
    return {
      far: figure['value']
      for far, figure in figures[name]['recall_at_far'].items()
    }

  trained = figures['trained']
  return {
    'held_out_identities': trained['identities'],
    'pairs': trained['pairs'],
    'recall_at_far': values('trained'),
    'intervals': {
      far: [figure['low'], figure['high']]
      for far, figure in trained['recall_at_far'].items()
    },
    'pretraining_only': values('pretraining_only'),
    'pixels': values('pixels'),
  }


def _retrieval(figures: dict[str, Any]) -> dict[str, Any]:
  trained = figures['trained']
  return {
    'recall_at_1': trained['recall_at_1']['value'],
    'interval': trained['recall_at_1'],
    'mean_average_precision': trained['mean_average_precision']['value'],
  }


def _synthetic(
  synthetic: dict[str, Any], compared: dict[str, Any]
) -> dict[str, Any]:
  return {
    **_pick(synthetic, 'examples', 'epsilon', 'delta', 'classes'),
    **_pick(compared, 'chance', 'share_of_real'),
    'accuracy': compared['accuracy']['value'],
    'accuracy_on_real': compared['accuracy_on_real']['value'],
  }


def _pick(found: dict[str, Any], *names: str) -> dict[str, Any]:
  return {name: found[name] for name in names}


def _facts(run: opened.OpenRun) -> dict[str, Any]:
  return {
    'name': run.config.name,
    'population': run.config.privacy.population,
    'config_digest': run.config.digest(),
    'code_revision': revision.code_revision(),
    'machine': {
      'system': platform.platform(),
      'python': platform.python_version(),
      'cores': os.cpu_count(),
    },
    'versions': {
      package: importlib.metadata.version(package) for package in _PACKAGES
    },
  }


def _pictures(run: opened.OpenRun, figures) -> report_page.ReportPictures:
  # Private users are never pictured. Held-out ones are people too, unless the
  # data are the bundled glyphs or the page says that they may be shown.
  settings = run.config.data
  shown = settings.show_images or not settings.directory
  sheets = []
  if run.paths.store('public').exists():
    sheets.append(
      _sheet(run.public, 'public', 'Public users, for pretraining: one a row')
    )
  if shown:
    sheets.append(
      _sheet(run.test, 'test', 'Held-out test users, for evaluation: one a row')
    )
  curve = storage.read_json(run.paths.training / 'curve.json')
  names = {
    key: key.replace('recall_at_far_', 'recall@FAR ').replace(
      'recall_at_1', 'recall@1'
    )
    for key in curve[0]
    if key not in ('round', 'recall_at_far_0.01')
  }
  roc_names = {
    'trained': 'DP-FedEmb',
    'pretraining_only': 'pretraining only',
    'pixels': 'raw pixels',
  }
  return report_page.ReportPictures(
    sheets=sheets,
    learning_curve={
      name: [(point['round'], point[key]) for point in curve]
      for key, name in names.items()
    },
    roc={
      title: [tuple(point) for point in figures[key]['roc']]
      for key, title in roc_names.items()
    },
    gallery=_gallery(run) if shown else (),
  )


def _sheet(
  store: user_store.UserStore, name: str, caption: str
) -> report_page.ContactSheet:
  step = max(1, store.num_users // _SHEET_USERS)
  users = list(range(0, store.num_users, step))[:_SHEET_USERS]
  rows = [store.read_user(user).images[:_SHEET_IMAGES] for user in users]
  fewest = min(map(len, rows))
  return report_page.ContactSheet(
    name, caption, np.stack([row[:fewest] for row in rows])
  )


def _gallery(run: opened.OpenRun) -> list[report_page.GalleryRow]:
  """Evenly spaced test queries; every image but the query is the gallery."""
  images, labels, _ = run.test.read_all()
  embeddings = registry.open_export(run.paths.export).embed(images)
  identities = labels[user_store.IDENTITY]
  rows = np.linspace(0, len(images) - 1, _GALLERY_ROWS + 2).astype(int)[1:-1]
  wanted = run.config.serving.neighbours
  found, cosines = retrieval.nearest(
    embeddings[rows], embeddings, neighbours=wanted + 1
  )
  gallery = []
  for row, nearest, scores in zip(rows, found, cosines, strict=True):
    others = nearest != row
    nearest, scores = nearest[others][:wanted], scores[others][:wanted]
    gallery.append(
      report_page.GalleryRow(
        query=images[row],
        neighbours=images[nearest],
        same_identity=identities[nearest] == identities[row],
        cosines=scores,
      )
    )
  return gallery
