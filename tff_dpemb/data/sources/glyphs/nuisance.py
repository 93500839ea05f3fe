"""Nuisance: what makes two pictures of one character differ.

Clean glyphs are turned, scaled, sheared, stretched, shifted, dimmed and made
noisy, all glyphs of a batch at once in NumPy. The ranges are public constants.
"""

import numpy as np

_FRAME = 56  # pixels of the frame in which the glyph moves
_EM = 40.0  # pixels of the em square in that frame
IMAGE_SIZE = 28  # pixels of the image: the frame, halved

_ROTATION_DEGREES = 11.0
_SCALE = (0.85, 1.25)
_SHEAR = 0.2
_ASPECT = (0.88, 1.12)
_SHIFT = 3.0  # frame pixels
_CONTRAST = (0.6, 1.2)
_OFFSET = (0.0, 40.0)  # grey levels
_NOISE = 14.0  # grey levels, standard deviation

_BATCH = 256  # glyphs at once: the working set stays in the CPU's cache


def distort(
  glyphs: np.ndarray,
  *,
  rng: np.random.Generator,
  em: int | None = None,
) -> np.ndarray:
  """Returns pictures of clean glyphs, each under its own nuisance.

  Args:
    glyphs: uint8 [n, size, size], centred; ink is 1 where nothing is above 1
      (bits), else 255.
    rng: Source of the nuisance.
    em: Pixels of the em square in `glyphs`; default: `size`.

  Returns:
    uint8 [n, 28, 28, 1], bright glyphs on a dark ground.
  """
  glyphs = np.asarray(glyphs)
  em = em or glyphs.shape[1]
  ink = 1 if glyphs.max(initial=0) <= 1 else 255
  result = np.empty((len(glyphs), IMAGE_SIZE, IMAGE_SIZE, 1), np.uint8)
  for start in range(0, len(glyphs), _BATCH):
    batch = glyphs[start : start + _BATCH]
    # An image pixel covers two frame pixels each way: average them first,
    # then sample once.
    blurred = _box_mean(batch, width=max(1, round(2 * em / _EM)), ink=ink)
    maps = _draw_maps(len(batch), rng) * np.float32(em / _EM)
    grey = _sample(blurred, maps)
    result[start : start + len(batch), :, :, 0] = _expose(grey, rng)
  return result


def _draw_maps(count: int, rng: np.random.Generator) -> np.ndarray:
  """Returns affine maps from the centred frame to the centred em square.

  Returns:
    float32 [count, 2, 3]: rows (x, y), columns (x, y, 1), in frame pixels.
  """
  angle = np.deg2rad(rng.uniform(-_ROTATION_DEGREES, _ROTATION_DEGREES, count))
  scale = rng.uniform(*_SCALE, count)
  shear = rng.uniform(-_SHEAR, _SHEAR, count)
  aspect = rng.uniform(*_ASPECT, count)
  shift = rng.uniform(-_SHIFT, _SHIFT, (count, 2))
  cosine, sine = np.cos(angle), np.sin(angle)
  # The glyph is mapped to the frame by rotation . shear . stretch . scale; its
  # inverse is written out, since a batch of tiny matrices is slow in LAPACK.
  maps = np.empty((count, 2, 3), np.float32)
  maps[:, 0, 0] = (cosine + sine * shear) / (scale * aspect)
  maps[:, 0, 1] = (sine - cosine * shear) / (scale * aspect)
  maps[:, 1, 0] = -sine / scale
  maps[:, 1, 1] = cosine / scale
  maps[:, :, 2] = -np.einsum('nij,nj->ni', maps[:, :, :2], shift)
  return maps


def _box_mean(glyphs: np.ndarray, *, width: int, ink: int) -> np.ndarray:
  """Returns the means of all width x width boxes that touch the glyphs.

  Args:
    glyphs: uint8 [n, size, size].
    width: Side of the box in pixels.
    ink: The value of full ink.

  Returns:
    float32 [n, size + width - 1, size + width - 1], 1 = ink; same centre.
  """
  size = glyphs.shape[1]
  edge = width - 1
  padded = np.pad(glyphs, ((0, 0), (edge, edge), (edge, edge)))
  padded = padded.astype(np.float32 if width > 2 or ink > 1 else np.uint8)
  rows = padded[:, : size + edge].copy()
  for shift in range(1, width):
    rows += padded[:, shift : shift + size + edge]
  boxes = rows[:, :, : size + edge].astype(np.float32)
  for shift in range(1, width):
    boxes += rows[:, :, shift : shift + size + edge]
  boxes *= np.float32(1 / (ink * width**2))
  return boxes


def _sample(pictures: np.ndarray, maps: np.ndarray) -> np.ndarray:
  """Returns images sampled bilinearly from pictures, 0 outside of them.

  Args:
    pictures: float32 [n, size, size].
    maps: float32 [n, 2, 3] from the centred frame to centred picture pixels.

  Returns:
    float32 [n, 28, 28].
  """
  count, size, _ = pictures.shape
  padded = np.pad(pictures, ((0, 0), (1, 2), (1, 2)))
  stride = size + 3
  # Centres of image pixels, in frame pixels from the frame's centre.
  axis = np.arange(IMAGE_SIZE, dtype=np.float32)
  axis = (axis - np.float32((IMAGE_SIZE - 1) / 2)) * (_FRAME // IMAGE_SIZE)
  centre = np.float32((size - 1) / 2 + 1)

  def coordinate(row: int) -> np.ndarray:
    m = maps[:, row, :, None, None]
    values = m[:, 0] * axis[None, None, :] + m[:, 1] * axis[None, :, None]
    values += m[:, 2] + centre
    return np.clip(values, 0, size + 1, out=values)

  x, y = coordinate(0), coordinate(1)
  left, top = x.astype(np.int32), y.astype(np.int32)
  x -= left
  y -= top
  corner = top * stride + left
  corner += (np.arange(count, dtype=np.int32) * stride**2)[:, None, None]
  flat = padded.ravel()
  upper = flat[corner]
  upper += x * (flat[corner + 1] - upper)
  corner += stride
  lower = flat[corner]
  lower += x * (flat[corner + 1] - lower)
  return upper + y * (lower - upper)


def _expose(grey: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns uint8 pictures of coverages in [0, 1]."""
  count = len(grey)
  contrast = rng.uniform(*_CONTRAST, (count, 1, 1)).astype(np.float32)
  offset = rng.uniform(*_OFFSET, (count, 1, 1)).astype(np.float32)
  noise = rng.standard_normal(grey.shape, np.float32)
  levels = 255 * contrast * grey + offset + np.float32(_NOISE) * noise
  return np.clip(levels + np.float32(0.5), 0, 255).astype(np.uint8)
