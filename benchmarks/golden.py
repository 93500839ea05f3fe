"""The golden images, and each way on which the product reads a file."""

import contextlib
import hashlib
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

# Tiny files of every kind, and the SHA-256 of their pixels at two shapes; the
# `make.py` beside them says what they hold.
_GOLDEN = (
  pathlib.Path(__file__).resolve().parents[1].joinpath('tests', 'golden_images')
)

Shape = tuple[int, int, int]


class Golden:
  """The golden table.

  Attributes:
    files: Content by name, in the order of names.
    shapes: Shapes at which the pixels are known.
    sha256: The digests of the pixels, one a shape, by name.
  """

  def __init__(self) -> None:
    from tff_dpemb.artifacts import storage

    table = storage.read_json(_GOLDEN / 'expected.json')
    self.shapes: tuple[Shape, ...] = tuple(map(tuple, table['shapes']))
    self.sha256: dict[str, list[str]] = table['sha256']
    self.files = {
      name: (_GOLDEN / name).read_bytes() for name in sorted(self.sha256)
    }

  def mismatches(self, images: np.ndarray, shape: Shape) -> list[str]:
    """Returns the files of which these pixels are not the known ones.

    Args:
      images: uint8 [N, H, W, C], in the order of `files`.
      shape: (H, W, C), one of `shapes`.
    """
    at = self.shapes.index(shape)
    return [
      name
      for name, image in zip(self.files, images, strict=True)
      if hashlib.sha256(image.tobytes()).hexdigest() != self.sha256[name][at]
    ]


def by_import(
  table: Golden, shape: Shape, *, encoding: Literal['raw', 'encoded'] = 'raw'
) -> np.ndarray:
  """Returns uint8 [N, H, W, C]: what `dpemb data folder` makes of the files.

  Args:
    table: The files.
    shape: (H, W, C).
    encoding: 'raw' decodes when the store is written, 'encoded' when it is
      read.
  """
  from tff_dpemb import images
  from tff_dpemb.data import user_store
  from tff_dpemb.data.sources import folder

  blank = images.encode_png(np.zeros((1, 1, 1), np.uint8))
  with tempfile.TemporaryDirectory() as name:
    directory = pathlib.Path(name)
    for identity in ('a', 'b', 'c'):  # No data set is without private users.
      (directory / 'private' / identity).mkdir(parents=True)
      (directory / 'private' / identity / 'blank.png').write_bytes(blank)
    (directory / 'public' / 'golden').mkdir(parents=True)
    for file, content in table.files.items():
      (directory / 'public' / 'golden' / file).write_bytes(content)
    folder.build_folder(
      directory / 'private',
      directory / 'set',
      image_shape=shape,
      validation=1,
      test=1,
      public_dir=directory / 'public',
      encoding=encoding,
    )
    store = user_store.UserStore.open(directory / 'set' / 'public')
    return store.read_user(0).images


@contextlib.contextmanager
def pixel_server(shape: Shape, **limits: int) -> Iterator[str]:
  """Runs a server whose "embeddings" are the pixels that its model is given.

  Args:
    shape: (H, W, C) of the model.
    **limits: Of `serving.images.Limits`.

  Yields:
    Its address, on a free port.
  """
  from serving import images as images_lib
  from serving import model_store
  from serving import server
  from serving import servicer
  from tff_dpemb.export import signature

  class Export:
    name, version, digest, certificate = 'pixels', 1, '0' * 64, None
    image_shape, embedding_dim = shape, int(np.prod(shape))
    signature: Any = None

  Export.signature = signature.build_signature(shape, Export.embedding_dim)

  class Model(model_store.ServedModel):
    def __init__(self) -> None:
      self.export: Any = Export()

    def embed(self, images: np.ndarray) -> np.ndarray:
      return images.reshape(len(images), -1).astype(np.float32)

  service = servicer.Service(Model(), limits=images_lib.Limits(**limits))
  with server.running(service) as address:
    yield address


def by_wire(table: Golden, shape: Shape, **limits: int) -> np.ndarray:
  """Returns uint8 [N, H, W, C]: what a model gets of files that are sent."""
  from serving import client as client_lib

  with pixel_server(shape, **limits) as address:
    with client_lib.Client(address) as client:
      found = client.embed(list(table.files.values()))
  return found.astype(np.uint8).reshape(-1, *shape)


def readings(table: Golden, shape: Shape) -> dict[str, np.ndarray]:
  """Returns the pixels [N, H, W, C] of all files by each way."""
  return {
    'import': by_import(table, shape),
    'import of files': by_import(table, shape, encoding='encoded'),
    'server': by_wire(table, shape),
    # A request of this size holds no file: the client reads each by itself.
    'client': by_wire(table, shape, max_message_bytes=4097),
  }
