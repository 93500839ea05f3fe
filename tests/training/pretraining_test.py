import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.models import embedding_model
from tff_dpemb.training import pretraining


@pytest.fixture
def backbone():
  return embedding_model.build_backbone(
    config.ModelConfig(embedding_dim=8), (8, 8, 1)
  )


def _pictures(rng, count):
  """Identity 0 is bright in its upper half, identity 1 in its lower one."""
  labels = rng.integers(0, 2, count).astype(np.int32)
  images = rng.integers(0, 60, (count, 8, 8, 1))
  images[labels == 0, :4] += 180
  images[labels == 1, 4:] += 180
  return images.astype(np.uint8), labels


def _pretrain(backbone, images, labels, *, steps=60, rate=1e-2, **options):
  return pretraining.pretrain(
    backbone,
    config.PretrainingConfig(steps=steps, batch_size=16, learning_rate=rate),
    images=images,
    labels=labels,
    head_scale=10.0,
    **options,
  )


def test_it_learns_to_tell_identities_apart(backbone):
  images, labels = _pictures(np.random.default_rng(0), 80)
  told = []
  result = _pretrain(
    backbone, images, labels, on_progress=lambda *x: told.append(x)
  )
  assert (result.steps, result.identities, result.examples) == (60, 2, 80)
  assert [steps for steps, _ in told] == [25, 50, 60]
  assert result.loss == told[-1][1] < 0.2 * told[0][1]
  fresh, who = _pictures(np.random.default_rng(1), 40)
  embeddings = backbone(embedding_model.normalise(fresh)).numpy()
  embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
  cosines = embeddings @ embeddings.T
  same = who[:, None] == who
  assert cosines[same].mean() > cosines[~same].mean() + 0.5


def test_one_identity_is_too_few(backbone):
  images, _ = _pictures(np.random.default_rng(0), 4)
  with pytest.raises(pretraining.PretrainingError, match='at least 2.*got 1'):
    _pretrain(backbone, images, np.zeros([4], np.int32))
  with pytest.raises(pretraining.PretrainingError, match='at least 2.*got 0'):
    _pretrain(backbone, images[:0], np.zeros([0], np.int32))


def test_more_images_than_memory_may_take_are_refused(backbone, monkeypatch):
  images, labels = _pictures(np.random.default_rng(0), 4)
  monkeypatch.setattr(pretraining, '_MAX_BYTES', images.nbytes - 1)
  with pytest.raises(pretraining.PretrainingError, match='at most 255 bytes'):
    _pretrain(backbone, images, labels)


def test_a_rate_that_breaks_the_weights_is_named(backbone):
  images, labels = _pictures(np.random.default_rng(0), 8)
  with pytest.raises(
    pretraining.PretrainingError, match='learning_rate 1e.38 must be smaller'
  ):
    _pretrain(backbone, images, labels, rate=1e38)
