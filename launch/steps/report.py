"""The last stage: what the others left on disk, as report.json and a page."""

import importlib.metadata
import os
import platform
from typing import Any

import click
import numpy as np

from launch.pages import report as report_page
from launch.pages import report_schema
from launch.run import directory
from launch.run import revision
from launch.steps import training as stages
from tff_dpemb.artifacts import storage
from tff_dpemb.data import user_store
from tff_dpemb.evaluation import retrieval
from tff_dpemb.export import registry
from tff_dpemb.privacy import guarantee
from tff_dpemb.privacy.planning import extrapolation

Run = directory.RunDirectory
_SHEET_USERS = 6
_SHEET_IMAGES = 8
_GALLERY_ROWS = 8
_PACKAGES = (
  'tensorflow', 'tensorflow-federated', 'dp-accounting', 'apache-beam',
)  # fmt: skip


def report(run: Run) -> None:
  """Writes report.json and report.html, and prints the main figures."""
  trained = stages.read_done(run.training, 'train', run)
  figures = stages.read_done(run.evaluation, 'evaluate', run)
  exported = stages.read_done(run.export, 'export', run)
  serving = stages.read_done(run.serving, 'quickstart', run)
  synthetic = stages.read_done(run.synthetic_stage, 'synthesize', run)
  compared = storage.read_json(
    run.restricted / run.config.synthesis.release / 'comparison.json'
  )
  with stages.stage('report'):
    content = {
      'schema': report_schema.SCHEMA,
      'training': _training(run, trained),
      'privacy': _privacy(run, trained),
      'verification': _verification(figures),
      'retrieval': {
        'recall_at_1': figures['trained']['recall_at_1']['value'],
        'interval': figures['trained']['recall_at_1'],
        'mean_average_precision': figures['trained']['mean_average_precision'][
          'value'
        ],
      },
      'export': {
        'saved_model': exported['saved_model'],
        'tflite': exported['tflite'],
        'min_cosine': exported['min_cosine'],
        'digest': exported['model_digest'],
      },
      'serving': {
        'lookups': serving['lookups'],
        'agreement_with_exact': serving['agreement_with_exact'],
        'seconds': serving['seconds'],
      },
      'synthetic': {
        'examples': synthetic['examples'],
        'epsilon': synthetic['epsilon'],
        'delta': synthetic['delta'],
        'classes': synthetic['classes'],
        'accuracy': compared['accuracy']['value'],
        'accuracy_on_real': compared['accuracy_on_real']['value'],
        'chance': compared['chance'],
        'share_of_real': compared['share_of_real'],
      },
      'run': _facts(run),
    }
    report_schema.validate_report(content)
    # An operator's view: it holds figures without noise.
    storage.atomic_write_json(run.report_json, content, is_private=True)
    report_page.render(
      content, pictures=_pictures(run, figures), output=run.report_html
    )
  click.echo(_summary(content, run))


def _training(run: Run, trained: dict[str, Any]) -> dict[str, Any]:
  # Expected numbers, which are public; exact ones are in restricted/.
  training = run.config.training
  examples = (
    trained['rounds']
    * trained['plan']['users_per_round']
    * min(training.max_examples_per_user, run.config.data.images_per_identity)
    * training.backbone_epochs
  )
  return {
    'rounds': trained['rounds'],
    'replayed_rounds': trained['replayed_rounds'],
    'population': trained['plan']['population'],
    'users_per_round': trained['plan']['users_per_round'],
    'virtual_clients': trained['plan']['virtual_clients'],
    'seconds': trained['seconds'],
    'examples_per_second': examples / max(trained['seconds'], 1e-9),
  }


def _privacy(run: Run, trained: dict[str, Any]) -> dict[str, Any]:
  """Epsilon of the run as executed: every draw in the ledger is counted."""
  plan = stages.private_plan(run)
  with stages.open_ledger(run) as ledger:
    draws = stages.draws_of(ledger, run, stages.model_release(run))
    population = run.config.privacy.population
    spent = ledger.spent(population, plan.delta)
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


def _facts(run: Run) -> dict[str, Any]:
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


def _pictures(run: Run, figures) -> report_page.ReportPictures:
  # Private users are never pictured. Held-out ones are people too, unless the
  # data are the bundled glyphs or the page says that they may be shown.
  settings = run.config.data
  shown = settings.show_images or not settings.directory
  sheets = []
  if run.store('public').exists():
    sheets.append(
      _sheet(run, 'public', 'Public users, for pretraining: one a row')
    )
  if shown:
    sheets.append(
      _sheet(run, 'test', 'Held-out test users, for evaluation: one a row')
    )
  curve = storage.read_json(run.training / 'curve.json')
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


def _sheet(run: Run, name: str, caption: str) -> report_page.ContactSheet:
  store = user_store.UserStore.open(run.store(name))
  step = max(1, store.num_users // _SHEET_USERS)
  users = list(range(0, store.num_users, step))[:_SHEET_USERS]
  rows = [store.read_user(user).images[:_SHEET_IMAGES] for user in users]
  fewest = min(map(len, rows))
  return report_page.ContactSheet(
    name, caption, np.stack([row[:fewest] for row in rows])
  )


def _gallery(run: Run) -> list[report_page.GalleryRow]:
  """Evenly spaced test queries; every image but the query is the gallery."""
  test = user_store.UserStore.open(run.store('test'))
  images, labels, _ = test.read_all()
  embeddings = registry.open_export(run.export).embed(images)
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


def _summary(content: dict[str, Any], run: Run) -> str:
  def epsilon(value: float | None) -> str:
    return guarantee.epsilon_text(guarantee.epsilon_from_json(value))

  privacy, pairs = content['privacy'], content['verification']
  synthetic = content['synthetic']
  lines = ['', f'{run.config.name}: held-out identities']
  for far, value in pairs['recall_at_far'].items():
    lines.append(
      f'  recall@FAR {far:<6} {value:.3f}   (pretraining only'
      f' {pairs["pretraining_only"][far]:.3f}, pixels'
      f' {pairs["pixels"][far]:.3f})'
    )
  lines += [
    f'  recall@1          {content["retrieval"]["recall_at_1"]:.3f}',
    'privacy of this run (user level,'
    f' delta {privacy["delta"]:.2g}, {privacy["draws"]} noise draws)',
    f'  epsilon           {epsilon(privacy["epsilon"])}'
    f'   (naive {epsilon(privacy["epsilon_naive"])}, without amplification'
    f' {epsilon(privacy["epsilon_unamplified"])})',
  ]
  for item in privacy['extrapolated']:
    lines.append(
      f'  extrapolated to {item["population"]:>11,} users,'
      f' {item["users_per_round"]:,.0f} a round: {epsilon(item["epsilon"])}'
      '   (not run)'
    )
  lines += [
    'synthetic embeddings'
    f' (user-level epsilon {epsilon(synthetic["epsilon"])})',
    f'  accuracy          {synthetic["accuracy"]:.3f}   (trained on real'
    f' {synthetic["accuracy_on_real"]:.3f}, chance {synthetic["chance"]:.3f})',
    f'report: {run.report_html}',
  ]
  return '\n'.join(lines)
