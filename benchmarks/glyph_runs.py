"""Runs of the quick start's page with other settings, sharing what is equal.

Data and public pretraining are made once and linked into each run.
"""

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from launch.run import directory
from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.planning import plan as plan_lib

PAGE = pathlib.Path(__file__).parent.parent / 'launch/configs/quickstart.toml'


def train_and_evaluate(
  name: str, *, runs: pathlib.Path, overrides: Sequence[str] = ()
) -> tuple[dict[str, Any], directory.RunDirectory]:
  """Trains and evaluates one variant; returns its figures on test identities.

  Args:
    name: Of the run.
    runs: Directory of the runs, of their ledger, and of the shared stages.
    overrides: `section.key=value` on the quick start's page.
  """
  from launch.run import opened
  from launch.steps import evaluate
  from launch.steps import pretrain
  from launch.steps import train

  page = config.load(
    PAGE,
    overrides=[
      f'name={name}',
      f'data.directory={runs / "glyphs"}',
      'training.evaluate_every=0',
      *overrides,
    ],
  )
  paths = directory.RunDirectory(page, runs=runs)
  if not paths.data.exists():
    from tff_dpemb.data.sources.glyphs import source

    source.build_glyphs(paths.data, config=page.data)
  shared = runs / f'pretrained-{page.digest("model", "pretraining")[:16]}'
  with paths.lock(), opened.open_run(paths) as run:
    paths.record_config()
    if shared.exists():
      shutil.copytree(shared, paths.pretrained, dirs_exist_ok=True)
    pretrain.pretrain(run)
    if not shared.exists():
      shutil.copytree(paths.pretrained, shared)
    train.train(run)
    evaluate.evaluate(run)
  return storage.read_json(paths.evaluation / 'stage.json'), paths


def plan_of(paths: directory.RunDirectory) -> plan_lib.PrivacyPlan:
  """Returns the plan of a run."""
  from launch.run import opened

  with opened.open_run(paths) as run:
    return run.plan


def recall(figures: dict[str, Any], far: str, *, of: str = 'trained') -> float:
  """Returns recall at a false accept rate of one kind of embedding."""
  return figures[of]['recall_at_far'][far]['value']
