"""Ways of images to a worker: as pixels, as JPEG bytes, as names of files."""

import io
import os
import pathlib
import statistics
import tempfile
import time
from concurrent import futures
from typing import Any

import numpy as np

from benchmarks import runner
from tff_dpemb import config

_CLIENTS = 4
_IMAGES = 32  # of each client
_TURNS = 5
# Images of each client that are trained on: seconds follow in proportion.
_TRAINED = {28: 32, 64: 32, 224: 4}
_MOST_SHARE = 5.0  # percent


def measure() -> list[runner.Measure]:
  """Seconds of a round that only reads, against local training on the images.

  `pixels` is what this project does: the coordinator decodes the JPEG files of
  a user store in threads, while the round before is trained, and sends uint8
  tensors. `bytes` sends the files' content and `names` their names; the worker
  decodes in its graph, and for names reads from a disk that both share.
  """
  measures = []
  for side in _TRAINED:
    with tempfile.TemporaryDirectory() as folder:
      measures += _measure_side(pathlib.Path(folder), side)
  return measures


def _measure_side(folder: pathlib.Path, side: int) -> list[runner.Measure]:
  from tff_dpemb import images
  from tff_dpemb.training.execution import executors

  encoded = _files(folder, side)
  as_bytes = np.array(encoded, object).reshape(_CLIENTS, _IMAGES)
  names = np.array(
    [str(folder / f'{i}.jpg').encode() for i in range(len(encoded))], object
  ).reshape(_CLIENTS, _IMAGES)
  shape = (side, side, 3)
  seconds: dict[str, list[float]] = {
    name: [] for name in ('decode', 'pixels', 'bytes', 'names')
  }
  with (
    futures.ThreadPoolExecutor(os.cpu_count()) as pool,
    executors.local(),
  ):
    of_pixels, of_bytes, of_names = _sums(shape)
    for _ in range(_TURNS + 1):
      marks = [time.monotonic()]
      pixels = np.stack(
        list(pool.map(lambda data: images.decode(data, shape), encoded))
      )
      marks.append(time.monotonic())
      sums = []
      for run, data in (
        (of_pixels, pixels.reshape(_CLIENTS, _IMAGES, *shape)),
        (of_bytes, as_bytes),
        (of_names, names),
      ):
        sums.append(float(run(np.float32(0), list(data))[1]))
        marks.append(time.monotonic())
      if np.ptp(sums) > 0.02 * abs(sums[0]):
        raise runner.BenchmarkError(f'all ways must bring the same: {sums}.')
      for name, spent in zip(seconds, np.diff(marks), strict=True):
        seconds[name].append(float(spent))
    trained = _train(
      shape, list(pixels.reshape(_CLIENTS, _IMAGES, *shape)), _TRAINED[side]
    )
  train = trained * _IMAGES / _TRAINED[side]
  found = {
    name: statistics.median(spent[1:]) for name, spent in seconds.items()
  }
  title = f'{side} x {side}'
  size = sum(map(len, encoded))
  return [
    runner.noted(f'{title}, JPEG / pixels', size / pixels.nbytes),
    runner.noted(
      f'{title}, pixels: decode, ahead of the round', found['decode'], unit='s'
    ),
    runner.noted(f'{title}, pixels: ship', found['pixels'], unit='s'),
    runner.noted(
      f'{title}, bytes: ship, decode in the worker', found['bytes'], unit='s'
    ),
    runner.noted(
      f'{title}, names: read, decode in the worker', found['names'], unit='s'
    ),
    runner.noted(
      f'{title}: a local epoch of MobileNetV2 on them', train, unit='s'
    ),
    runner.at_most(
      f'{title}: shipping pixels / (shipping and training)',
      100 * found['pixels'] / (found['pixels'] + train),
      target=_MOST_SHARE,
      unit='%',
    ),
    runner.noted(
      f'{title}: the better other way / (pixels, with decoding)',
      min(found['bytes'], found['names']) / (found['decode'] + found['pixels']),
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


def _sums(shape) -> tuple[Any, Any, Any]:
  """Returns rounds that sum all pixels: of tensors, of bytes, of names."""
  import tensorflow as tf
  import tensorflow_federated as tff

  def total(batch):
    return tf.reduce_sum(tf.cast(batch, tf.float32)) / 255

  def decode_all(strings, load):
    return tf.map_fn(
      lambda text: tf.io.decode_jpeg(load(text), channels=3),
      strings,
      fn_output_signature=tf.TensorSpec(shape, tf.uint8),
      parallel_iterations=_IMAGES,
    )

  @tff.tensorflow.computation(tff.TensorType(np.uint8, [None, *shape]))
  def sum_pixels(batch):
    return total(batch)

  @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
  def sum_bytes(contents):
    return total(decode_all(contents, lambda content: content))

  @tff.tensorflow.computation(tff.TensorType(np.str_, [None]))
  def sum_names(names):
    return total(decode_all(names, tf.io.read_file))

  def round_of(work):
    @tff.federated_computation(
      tff.FederatedType(np.float32, tff.SERVER),
      tff.FederatedType(work.type_signature.parameter, tff.CLIENTS),
    )
    def run(state, data):
      return state, tff.federated_sum(tff.federated_map(work, data))

    return run

  return round_of(sum_pixels), round_of(sum_bytes), round_of(sum_names)


def _train(shape, parts, examples: int) -> float:
  """Returns the seconds of local training on the first images of each part."""
  from benchmarks import rounds
  from tff_dpemb.models import embedding_model
  from tff_dpemb.training import client_work
  from tff_dpemb.training import process
  from tff_dpemb.training.execution import executors

  backbone = embedding_model.build_backbone(
    config.ModelConfig(backbone='mobilenet_v2'), shape
  )
  iterative = rounds.build_process(
    backbone,
    virtual_clients=32,  # What adaptive clipping needs at least.
    local_tuning='joint',
    backbone_epochs=1,
  )
  data = [
    client_work.ClientData(
      images=part[:examples],
      labels=(np.arange(examples) % 8).astype(np.int32),
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
