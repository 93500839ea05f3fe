"""Public pretraining; the backbone's first weights if it is disabled."""

import dataclasses
import time
from typing import Any

from launch.run import opened
from launch.run import progress
from launch.run import stamps
from tff_dpemb.data import user_store
from tff_dpemb.models import embedding_model
from tff_dpemb.training import pretraining


def pretrain(run: opened.OpenRun) -> None:
  """Writes `weights.npz` of the backbone that private training starts from."""
  enabled = run.config.pretraining.enabled
  has_public = enabled or run.paths.store('public').exists()
  # Of the private store, the shape of its images alone.
  store = run.public if has_public else run.private
  source = store.digest if has_public else ''
  stamp = stamps.stamp_of(
    run.paths.pretrained, run.config.digest('model', 'pretraining'), source
  )
  if stamp.read() is not None:
    return
  backbone = embedding_model.build_backbone(run.config.model, store.image_shape)
  content: dict[str, Any] = {'enabled': enabled, 'steps': 0}
  if enabled:
    content.update(_train(run, backbone))
  content['public_store'] = source
  embedding_model.save_weights(
    run.paths.pretrained / 'weights.npz', embedding_model.get_weights(backbone)
  )
  stamp.write(content)


def _train(run: opened.OpenRun, backbone) -> dict[str, Any]:
  """Trains the backbone in place; returns figures of it and the seconds."""
  settings = run.config.pretraining
  images, labels, _ = run.public.read_all()
  with (
    progress.stage('pretraining on public images'),
    progress.bar(settings.steps, 'pretrain', 'step') as bar,
  ):

    def on_progress(done: int, loss: float) -> None:
      run.paths.stop_if_requested()
      bar.set_postfix(loss=f'{loss:.3f}')
      bar.update(done - bar.n)

    start = time.monotonic()
    result = pretraining.pretrain(
      backbone,
      settings,
      images=images,
      labels=labels[user_store.IDENTITY],
      head_scale=run.config.model.head_scale,
      on_progress=on_progress,
    )
    return {**dataclasses.asdict(result), 'seconds': time.monotonic() - start}
