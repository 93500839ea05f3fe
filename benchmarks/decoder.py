"""One decoder: a file has the same pixels by import, client and server."""

import functools
import io
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks import golden
from benchmarks import runner

_GRAPH_SHAPES = ((28, 28, 1), (112, 112, 3))
_GRAPH_SIZES = ((28, 28), (9, 11), (130, 97), (480, 640), (1000, 77))
_TURNS = 7


def measure() -> list[runner.Measure]:
  """Pixels of the golden table, embeddings over the wire, graph and speed."""
  table = golden.Golden()
  measures = [runner.noted('golden files', len(table.files))]
  for shape in table.shapes:
    measures += _measure_pixels(table, shape)
  measures += measure_embeddings(table)
  measures += _measure_graph()
  measures += _measure_speed()
  return measures


def _measure_pixels(
  table: golden.Golden, shape: golden.Shape
) -> list[runner.Measure]:
  title = ' x '.join(map(str, shape))
  found = golden.readings(table, shape)
  measures = [
    runner.equal_to(
      f'{title}, {way}: golden files with other pixels',
      len(table.mismatches(images, shape)),
      target=0,
    )
    for way, images in found.items()
  ]
  before = np.stack([_plainly(item, shape) for item in table.files.values()])
  measures.append(
    runner.noted(
      f'{title}: golden files with other pixels if read without EXIF, alpha'
      ' and Lanczos',
      len(table.mismatches(before, shape)),
    )
  )
  return measures


def measure_embeddings(table: golden.Golden) -> list[runner.Measure]:
  """Stored pictures against their own files, looked up over the wire."""
  from serving import client as client_lib
  from serving import index as index_lib
  from serving import model_store
  from serving import server
  from serving import servicer
  from tff_dpemb.export import registry
  from tff_dpemb.models import lenet

  shape = (28, 28, 3)
  stored = golden.by_import(table, shape)
  contents = list(table.files.values())
  with tempfile.TemporaryDirectory() as name:
    directory = pathlib.Path(name)
    published = registry.publish(
      directory / 'export',
      lenet.build_lenet(shape, 64),
      image_shape=shape,
      parity_images=stored,
      min_cosine=0.9999,
      certificate=None,
    )
    export = registry.open_export(published.path)
    gallery = export.embed(stored)
    index = index_lib.build(
      directory / 'index',
      gallery,
      list(table.files),
      model_digest=export.digest,
    )
    service = servicer.Service(model_store.ServedModel(export), index=index)
    with server.running(service) as address:
      with client_lib.Client(address) as client:
        embeddings = client.embed(contents)
        found = client.search(images=contents, k=1)
  plain = export.embed(np.stack([_plainly(item, shape) for item in contents]))
  return [
    runner.at_least(
      'smallest cosine of a stored picture and its own file',
      (embeddings * gallery).sum(axis=1).min(),
      target=0.99999,
    ),
    runner.at_least(
      'smallest score of the first neighbour of a file',
      min(items[0].score for items in found),
      target=0.99999,
    ),
    runner.noted(
      'smallest such cosine if files are read without EXIF, alpha and Lanczos',
      (plain * gallery).sum(axis=1).min(),
    ),
  ]


def _measure_graph() -> list[runner.Measure]:
  """The export's graph against the one decoder, on upright pictures."""
  import tensorflow as tf

  from tff_dpemb import images
  from tff_dpemb.export import saved_model
  from tff_dpemb.export import signature

  stated = signature.Decoding()
  largest, largest_mean, count = 0, 0.0, 0
  for shape in _GRAPH_SHAPES:
    decode = tf.function(
      functools.partial(saved_model.decode_image, image_shape=shape),
      input_signature=[tf.TensorSpec([], tf.string)],
    )
    for content in _upright_files():
      expected = images.decode(content, shape).astype(int)
      off = np.abs(decode(content).numpy() - expected)
      largest = max(largest, int(off.max()))
      largest_mean = max(largest_mean, float(off.mean()))
      count += 1
  return [
    runner.noted('graph: upright pictures compared', count),
    runner.at_most(
      'graph: largest difference of a value, of 255',
      largest,
      target=stated.max_difference,
    ),
    runner.at_most(
      'graph: largest mean difference of a picture',
      largest_mean,
      target=stated.max_mean_difference,
    ),
  ]


def _measure_speed() -> list[runner.Measure]:
  """What the reduction of large JPEGs gains, and what it changes."""
  from tff_dpemb import images

  measures = []
  rng = np.random.default_rng(1)
  for height, width, side in ((3024, 4032, 112), (600, 800, 112)):
    content = _encoded(_photograph(rng, height, width), 'JPEG', quality=90)
    shape = (side, side, 3)
    ways: dict[str, Callable[[], np.ndarray]] = {
      'one': functools.partial(images.decode, content, shape),
      'whole': functools.partial(_wholly, content, shape),
      'plain': functools.partial(_plainly, content, shape),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_TURNS):
      for name, call in ways.items():
        start = time.perf_counter()
        call()
        seconds[name].append(time.perf_counter() - start)
    took = {name: statistics.median(spent) for name, spent in seconds.items()}
    off = np.abs(ways['one']().astype(int) - ways['whole']())
    title = f'JPEG of {width} x {height} to {side} x {side}'
    measures += [
      runner.noted(f'{title}: milliseconds', 1000 * took['one'], unit='ms'),
      runner.at_least(
        f'{title}: speed / Lanczos on all pixels',
        took['whole'] / took['one'],
        target=1.5,
      ),
      runner.noted(
        f'{title}: speed / bilinear on all pixels', took['plain'] / took['one']
      ),
      runner.noted(f'{title}: largest difference by reducing', off.max()),
      runner.noted(f'{title}: mean difference by reducing', off.mean()),
    ]
  content = _encoded(_drawing(rng, 600, 800), 'JPEG', quality=90)
  shape = (112, 112, 3)
  off = np.abs(images.decode(content, shape) - _wholly(content, shape) * 1.0)
  measures += [
    runner.noted('drawing of 800 x 600: largest difference', off.max()),
    runner.noted('drawing of 800 x 600: mean difference', off.mean()),
  ]
  return measures


def _upright_files() -> Iterator[bytes]:
  """Yields pictures of several sizes in the forms that the graph reads."""
  rng = np.random.default_rng(0)
  for height, width in _GRAPH_SIZES:
    for image in (
      _photograph(rng, height, width),
      rng.integers(0, 256, [height, width, 3], np.uint8),
      255 * rng.integers(0, 2, [height, width, 3], np.uint8),
    ):
      opacity = rng.integers(0, 256, [height, width, 1], np.uint8)
      yield _encoded(image, 'PNG')
      yield _encoded(np.dstack([image, opacity]), 'PNG')
      yield _encoded(image[..., 0].astype(np.uint16) * 256 + 99, 'PNG')
      yield _encoded(image, 'JPEG', quality=90)
      yield _encoded(image, 'JPEG', quality=75, progressive=True)
      yield _encoded(image[..., 0], 'JPEG')


def _photograph(
  rng: np.random.Generator, height: int, width: int
) -> np.ndarray:
  """Returns uint8 [H, W, 3], smooth but for some grain."""
  from PIL import Image

  small = rng.integers(0, 256, [height // 16 + 2, width // 16 + 2, 3], np.uint8)
  smooth = Image.fromarray(small).resize(
    (width, height), Image.Resampling.BICUBIC
  )
  grain = rng.integers(-6, 7, [height, width, 3])
  return (np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)


def _drawing(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
  """Returns uint8 [H, W, 3]: lines, which are hard to make smaller."""
  from PIL import Image
  from PIL import ImageDraw

  image = Image.new('RGB', (width, height), 'white')
  draw = ImageDraw.Draw(image)
  for _ in range(200):
    x0, x1 = rng.integers(0, width, 2).tolist()
    y0, y1 = rng.integers(0, height, 2).tolist()
    red, green, blue, thick = rng.integers(1, 256, 4).tolist()
    draw.line([(x0, y0), (x1, y1)], (red, green, blue), 1 + thick // 16)
  return np.asarray(image)


def _encoded(image: np.ndarray, kind: str, **options: Any) -> bytes:
  from PIL import Image

  file = io.BytesIO()
  Image.fromarray(image).save(file, kind, **options)
  return file.getvalue()


def _wholly(content: bytes, shape: golden.Shape) -> np.ndarray:
  """Returns an upright RGB picture decoded whole, then filtered."""
  from PIL import Image

  image = Image.open(io.BytesIO(content)).convert('RGB')
  return np.asarray(image.resize(shape[1::-1], Image.Resampling.LANCZOS))


def _plainly(content: bytes, shape: golden.Shape) -> np.ndarray:
  """Returns what a reader makes that knows none of the rules."""
  from PIL import Image

  height, width, channels = shape
  opened = Image.open(io.BytesIO(content))
  image = opened.convert('L' if channels == 1 else 'RGB')
  image = image.resize((width, height), Image.Resampling.BILINEAR)
  return np.asarray(image).reshape(shape)
