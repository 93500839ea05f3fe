"""Two ways of images to a worker: as uint8 tensors, or as files it opens."""

import io
import pathlib
import statistics
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import runner
from tff_dpemb import config

_SIDES = (28, 64, 224)
_CLIENTS = 4
_IMAGES = 32  # of each client
_ROUNDS = 5


def measure() -> list[runner.Measure]:
  """Seconds of a round that only reads, against local training on the images.

  `tensors` is what this project does: the coordinator decodes JPEG files of a
  user store, in the thread that reads ahead, and sends pixels. `files` sends
  names; the worker, on the same disk, reads and decodes in its graph.
  """
  measures = []
  for side in _SIDES:
    with tempfile.TemporaryDirectory() as folder:
      measures += _measure_side(pathlib.Path(folder), side)
  return measures


def _measure_side(folder: pathlib.Path, side: int) -> list[runner.Measure]:
  from tff_dpemb.data import images
  from tff_dpemb.training import executors

  encoded = _files(folder, side)
  paths = np.array(
    [str(folder / f'{i}.jpg').encode() for i in range(len(encoded))]
  ).reshape(_CLIENTS, _IMAGES)
  shape = (side, side, 3)
  decode, ship, by_name = [], [], []
  with executors.local():
    of_pixels, of_files = _sums(shape)
    for turn in range(_ROUNDS + 1):
      start = time.monotonic()
      pixels = np.stack([images.decode(data, shape) for data in encoded])
      decoded = time.monotonic()
      parts = list(pixels.reshape(_CLIENTS, _IMAGES, *shape))
      got = of_pixels(np.float32(0), parts)
      shipped = time.monotonic()
      other = of_files(np.float32(0), list(paths))
      end = time.monotonic()
      if abs(got[1] - other[1]) > 0.02 * abs(other[1]):
        raise runner.BenchmarkError('both ways must bring the same images.')
      if turn:
        decode.append(decoded - start)
        ship.append(shipped - decoded)
        by_name.append(end - shipped)
    train = _train(shape, parts)
  decode_s, ship_s, name_s = map(statistics.median, (decode, ship, by_name))
  name = f'{side} x {side}'
  return [
    runner.noted(
      f'{name}, tensors: decode ahead of the round', decode_s, unit='s'
    ),
    runner.noted(f'{name}, tensors: ship', ship_s, unit='s'),
    runner.noted(
      f'{name}, files: read and decode in the worker', name_s, unit='s'
    ),
    runner.noted(f'{name}: one local epoch of MobileNetV2', train, unit='s'),
    runner.at_most(
      f'{name}: shipping tensors / (shipping and training)',
      100 * ship_s / (ship_s + train),
      target=5,
      unit='%',
    ),
  ]


def _files(folder: pathlib.Path, side: int) -> list[bytes]:
  """Returns JPEG files, smooth enough to be as large as photographs are."""
  from PIL import Image

  rng = np.random.default_rng(0)
  encoded = []
  for number in range(_CLIENTS * _IMAGES):
    small = rng.integers(0, 256, [side // 4, side // 4, 3], np.uint8)
    image = Image.fromarray(small).resize(
      (side, side), Image.Resampling.BICUBIC
    )
    buffer = io.BytesIO()
    image.save(buffer, 'JPEG', quality=90)
    encoded.append(buffer.getvalue())
    (folder / f'{number}.jpg').write_bytes(encoded[-1])
  return encoded


def _sums(shape) -> tuple[Any, Any]:
  """Returns two rounds that sum all pixels: of tensors, and of files."""
  import tensorflow as tf
  import tensorflow_federated as tff

  @tff.tensorflow.computation(tff.TensorType(np.uint8, [None, *shape]))
  def sum_pixels(batch):
    return tf.reduce_sum(tf.cast(batch, tf.float32)) / 255

  @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
  def sum_files(names):
    batch = tf.map_fn(
      lambda name: tf.io.decode_jpeg(tf.io.read_file(name), channels=3),
      names,
      fn_output_signature=tf.TensorSpec(shape, tf.uint8),
      parallel_iterations=_IMAGES,
    )
    return tf.reduce_sum(tf.cast(batch, tf.float32)) / 255

  def round_of(work):
    @tff.federated_computation(
      tff.FederatedType(np.float32, tff.SERVER),
      tff.FederatedType(work.type_signature.parameter, tff.CLIENTS),
    )
    def run(state, data):
      return state, tff.federated_sum(tff.federated_map(work, data))

    return run

  return round_of(sum_pixels), round_of(sum_files)


def _train(shape, parts) -> float:
  """Returns the seconds of local training in a round on the same images."""
  from benchmarks import rounds
  from tff_dpemb.models import embedding_model
  from tff_dpemb.training import client_work
  from tff_dpemb.training import executors
  from tff_dpemb.training import process

  backbone = embedding_model.build_backbone(
    config.ModelConfig(backbone='mobilenet_v2'), shape
  )
  iterative = rounds.build_process(
    backbone,
    virtual_clients=32,
    local_tuning='joint',
    backbone_epochs=1,
  )
  data = [
    client_work.ClientData(
      images=part,
      labels=(np.arange(_IMAGES) % 8).astype(np.int32),
      seed=np.array([number, 0], np.int32),
    )
    for number, part in enumerate(parts)
  ]
  state = iterative.initialize()
  for _ in range(2):  # The second is timed.
    state, _ = iterative.next(process.with_fresh_noise(state), data)
  found = executors.last_round()
  if found is None:
    raise runner.BenchmarkError('the executor must say how long it trained.')
  return found.train
