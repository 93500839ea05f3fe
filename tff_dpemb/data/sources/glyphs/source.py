"""The glyph data set: rendered characters, a user is a character.

An identity is a character and a user owns one identity's pictures, as in
DigiFace (arXiv 2210.02579), where an identity is a rendered face. Nuisance is
the typeface and `nuisance`. Kanji (or all unified ideographs) are the
private users, Hangul syllables are public, held-out kanji evaluate. These are
rendered pictures, not photographs.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tff_dpemb import config as config_lib
from tff_dpemb.artifacts import storage
from tff_dpemb.data import data_sets
from tff_dpemb.data import user_store
from tff_dpemb.data.sources.glyphs import bundle
from tff_dpemb.data.sources.glyphs import classes
from tff_dpemb.data.sources.glyphs import faces as glyph_faces
from tff_dpemb.data.sources.glyphs import nuisance
from tff_dpemb.data.sources.glyphs import rendering

IMAGE_SHAPE = (nuisance.IMAGE_SIZE, nuisance.IMAGE_SIZE, 1)

_CHUNK = 128  # identities at once: 4 MB of unpacked glyphs
_BUNDLE_LICENCE = 'pictures of freely licensed faces; see LICENCES.md'

Progress = Callable[[int, int], None]  # (identities done, identities in all)


def build_glyphs(
  output_dir: str | os.PathLike[str],
  *,
  config: config_lib.DataConfig,
  replace: bool = False,
) -> pathlib.Path:
  """Makes the glyph data set of the bundled glyphs; needs no font.

  Args:
    output_dir: Directory of the data set; it appears when all is written.
    config: Images per identity, held-out identities and the two seeds. The
      same config gives the same stores. With more than 12 images an identity
      the faces repeat, under other nuisance.
    replace: Whether a data set there may be replaced.

  Returns:
    `output_dir`.

  Raises:
    glyph_bundle.BundleError: The package's data file is damaged.
    data_sets.DataError: More identities are held out than there are, or what
      is to be replaced is not a data set.
    artifacts.ArtifactError: The directory exists or the disk refused.
  """
  data_sets.check_output(output_dir, replace=replace)
  sets = bundle.load()
  splits = _splits(len(sets['kanji'].code_points), config)
  with storage.atomic_directory(output_dir, replace=replace) as directory:
    for name, parts in (('hangul', None), ('kanji', splits)):
      glyphs = sets[name]
      _write_stores(
        directory,
        glyphs.code_points.tolist(),
        _bundled_images(glyphs, config, stream=sorted(sets).index(name)),
        splits=parts,
        source=f'bundled {name} glyphs',
        licence=_BUNDLE_LICENCE,
      )
    data_sets.write_manifest(
      directory,
      source='bundled glyphs',
      options=config.model_dump(exclude={'directory'}),
    )
  return pathlib.Path(output_dir)


def render_glyphs(
  output_dir: str | os.PathLike[str],
  *,
  config: config_lib.DataConfig,
  character_set: str = 'kanji',
  identities: int | None = None,
  directories: Sequence[str | os.PathLike[str]] = (),
  processes: int | None = None,
  replace: bool = False,
  progress: Progress | None = None,
) -> pathlib.Path:
  """Makes a larger glyph data set from the fonts of this host.

  Args:
    output_dir: Directory of the data set; it appears when all is written.
    config: As `build_glyphs`; each image of an identity has another face.
    character_set: 'kanji' (6 355, JIS X 0208) or 'unified' (20 902, URO).
    identities: How many of them; None: all. Fewer are drawn with the split
      seed.
    directories: Where fonts are; empty: the host's installed fonts.
    processes: Rendering processes; None: one a core.
    replace: Whether a data set there may be replaced.
    progress: Called after each step.

  Returns:
    `output_dir`.

  Raises:
    glyph_faces.FaceError: Too few fonts are installed.
    data_sets.DataError, artifacts.ArtifactError: As `build_glyphs`.
  """
  data_sets.check_output(output_dir, replace=replace)
  points = _points_of(character_set, identities, seed=config.split_seed)
  splits = _splits(len(points), config)
  syllables = classes.ks_hangul()
  images = config.images_per_identity
  total = len(points) + len(syllables)
  done = 0

  def counted(chunks: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    nonlocal done
    for chunk in chunks:
      yield chunk
      done += len(chunk)
      if progress is not None:
        progress(done, total)

  with storage.atomic_directory(output_dir, replace=replace) as directory:
    for name, these, parts in (
      ('hangul', syllables, None),
      (character_set, points, splits),
    ):
      faces = glyph_faces.require_faces(name, images, directories=directories)
      chunks = rendering.render(
        faces,
        these,
        images=images,
        seed=config.nuisance_seed,
        processes=processes,
      )
      packages = sorted({item.face.package for item in faces})
      _write_stores(
        directory,
        these,
        counted(chunks),
        splits=parts,
        source=f'{name} glyphs rendered in {len(faces)} faces',
        licence='made on this host from ' + ', '.join(packages),
      )
    data_sets.write_manifest(
      directory,
      source=f'rendered {character_set} glyphs',
      options=config.model_dump(exclude={'directory'}),
    )
  return pathlib.Path(output_dir)


def _splits(count: int, config: config_lib.DataConfig) -> dict[str, np.ndarray]:
  return data_sets.split_identities(
    count,
    validation=config.validation_identities,
    test=config.test_identities,
    seed=config.split_seed,
  )


def _points_of(
  character_set: str, identities: int | None, *, seed: int
) -> list[int]:
  sets = {
    'kanji': classes.jis_kanji,
    'unified': classes.unified_ideographs,
  }
  if character_set not in sets:
    raise data_sets.DataError(
      f'character set must be one of {sorted(sets)}, got {character_set!r}.'
    )
  points = sets[character_set]()
  if identities is None:
    return sorted(points)
  if not 0 < identities <= len(points):
    raise data_sets.DataError(
      f'identities must be in [1, {len(points)}] for the {character_set} set,'
      f' got {identities}.'
    )
  rng = np.random.default_rng((seed, 1))
  return sorted(rng.choice(points, identities, replace=False).tolist())


def _bundled_images(
  glyphs: bundle.GlyphSet,
  config: config_lib.DataConfig,
  *,
  stream: int,
) -> Iterable[np.ndarray]:
  """Yields uint8 [identities, images, 28, 28, 1] chunks of the bundle."""
  images = config.images_per_identity
  count = len(glyphs.code_points)
  size = glyphs.strips.shape[3]
  faces = np.arange(images) % glyphs.strips.shape[1]
  rng = np.random.default_rng((config.nuisance_seed, stream))
  for start in range(0, count, _CHUNK):
    pixels = glyphs.pixels(start, min(count, start + _CHUNK))[:, faces]
    pictures = nuisance.distort(pixels.reshape(-1, size, size), rng=rng)
    yield pictures.reshape(-1, images, *IMAGE_SHAPE)


def _write_stores(
  directory: pathlib.Path,
  points: Sequence[int],
  chunks: Iterable[np.ndarray],
  *,
  splits: dict[str, np.ndarray] | None,
  source: str,
  licence: str,
) -> None:
  """Writes the stores of one character set; without splits, `public`."""
  splits = splits or {'public': np.arange(len(points))}
  split_of = np.empty(len(points), object)
  for split, members in splits.items():
    split_of[members] = split
  categories = (
    classes.RADICAL_NAMES
    if points[0] <= classes.URO_LAST
    else classes.CONSONANT_NAMES
  )
  category = np.array([classes.category_index(p) for p in points])
  user_ids = np.array([f'U+{point:04X}' for point in points], object)
  with contextlib.ExitStack() as stack:
    writers = {
      split: stack.enter_context(
        user_store.StoreWriter(
          directory / split,
          name=f'glyphs-{split}',
          image_shape=IMAGE_SHAPE,
          label_names={
            'identity': [chr(point) for point in points],
            'category': categories,
          },
          source=source,
          licence=licence,
        )
      )
      for split in splits
      if len(splits[split])
    }
    start = 0
    for chunk in chunks:
      here = np.arange(start, start + len(chunk))
      start += len(chunk)
      for split, writer in writers.items():
        rows = np.flatnonzero(split_of[here] == split)
        if len(rows):
          writer.add_users(
            user_ids[here[rows]].tolist(),
            chunk[rows],
            {'identity': here[rows], 'category': category[here[rows]]},
          )
