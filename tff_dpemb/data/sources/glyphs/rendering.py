"""Renders glyph pictures from fonts, in several processes.

Each identity is drawn in faces chosen without replacement and distorted from
a high resolution; its random numbers depend on the seed and its code point
only, so that the result does not depend on the number of processes.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from tff_dpemb.data.sources.glyphs import faces as glyph_faces
from tff_dpemb.data.sources.glyphs import nuisance
from tff_dpemb.data.sources.glyphs import renderer

# Twice the resolution of the frame in which glyphs move. Larger ink is shrunk
# to the em square, as in the bundle, so that no glyph leaves the frame.
_EM = 80
_CHUNK = 32  # identities a task


def render(
  faces: Sequence[glyph_faces.InstalledFace],
  code_points: Sequence[int],
  *,
  images: int,
  seed: int,
  processes: int | None = None,
) -> Iterator[np.ndarray]:
  """Yields the pictures of the characters, in order, in chunks.

  Args:
    faces: At least `images` faces.
    code_points: The characters.
    images: Pictures of each character, each in another face.
    seed: Public seed of faces and nuisance.
    processes: Number of processes; None: one a core; 1: this one.

  Yields:
    uint8 [identities, images, 28, 28, 1].

  Raises:
    glyph_faces.FaceError: Fewer than `images` faces draw some character.
  """
  chunks = [
    list(code_points[start : start + _CHUNK])
    for start in range(0, len(code_points), _CHUNK)
  ]
  if processes is None:
    processes = len(os.sched_getaffinity(0))
  processes = min(processes, len(chunks))
  arguments = (list(faces), images, seed)
  if processes <= 1:
    drawer = _Drawer(*arguments)
    for chunk in chunks:
      yield drawer.draw(chunk)
    return
  context = multiprocessing.get_context('spawn')
  with context.Pool(
    processes, initializer=_start_worker, initargs=(os.getpid(), *arguments)
  ) as pool:
    yield from pool.imap(_draw_in_worker, chunks)


class _Drawer:
  """The open fonts of one process."""

  def __init__(
    self,
    faces: Sequence[glyph_faces.InstalledFace],
    images: int,
    seed: int,
  ):
    self._renderers = [renderer.FaceRenderer(face, em=_EM) for face in faces]
    self._images = images
    self._seed = seed

  def draw(self, code_points: Sequence[int]) -> np.ndarray:
    """Returns uint8 [identities, images, 28, 28, 1]."""
    return np.stack([self._draw_one(point) for point in code_points])

  def _draw_one(self, point: int) -> np.ndarray:
    rng = np.random.default_rng((self._seed, point))
    drawn = []
    for face in rng.permutation(len(self._renderers)):
      glyph = self._renderers[face].draw(point, canvas=_EM)
      if glyph is not None:
        drawn.append(glyph)
      if len(drawn) == self._images:
        break
    if len(drawn) < self._images:
      raise glyph_faces.FaceError(
        f'{self._images} faces must draw U+{point:04X}, got {len(drawn)};'
        ' install more fonts or ask for fewer images.'
      )
    return nuisance.distort(np.stack(drawn), rng=rng, em=_EM)


_worker: _Drawer  # One in each worker process.


def _start_worker(parent: int, *arguments) -> None:
  """Opens the fonts of a worker, which dies when its parent does."""
  global _worker
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends the pool.
  if sys.platform == 'linux':
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(1)  # It died before the call.
  _worker = _Drawer(*arguments)


def _draw_in_worker(code_points: Sequence[int]) -> np.ndarray:
  return _worker.draw(code_points)
