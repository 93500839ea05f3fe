"""Folders of colour pictures, made of the icons of a Debian package.

An identity is an icon; its pictures differ in background, rotation, scale, hue
and file format, and one is turned as its camera says. Icons are drawings, not
photographs: what they share with own pictures is the folder.
"""

import csv
import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Sequence

import numpy as np
import PIL.Image

from benchmarks import runner

IMAGES = 8  # of an identity
_PACKAGE = 'oxygen-icon-theme'
_SOURCE = 'usr/share/icons/oxygen/base/48x48'
_PRIVATE = ('apps', 'devices', 'mimetypes', 'places', 'status', 'categories')
_PUBLIC = ('actions',)
_SIDE = 64
_ORIENTATION = 0x0112  # EXIF; 6: the camera was turned to the left.
_FORMATS = ('png', 'jpg', 'webp', 'bmp', 'gif', 'tiff', 'png', 'jpg')
# What is left of a picture in the ways that pictures break.
_DAMAGES = (
  lambda content: b'',
  lambda content: content[: len(content) // 3],
  lambda content: b'<html>404 not found</html>',
  lambda content: b'\0' * len(content),
)


@dataclasses.dataclass(frozen=True)
class Folders:
  """What was made.

  Attributes:
    private: Folder of identities.
    public: Likewise, of others.
    categories: CSV file with the class of each.
    bad: The files in `private` that are no pictures.
  """

  private: pathlib.Path
  public: pathlib.Path
  categories: pathlib.Path
  bad: tuple[pathlib.Path, ...]


def make(
  root: pathlib.Path, *, identities: int, public: int, bad: int = 0
) -> Folders:
  """Makes `photos`, `public_photos` and `categories.csv` in a folder.

  Args:
    root: The folder.
    identities: In `photos`.
    public: Identities in `public_photos`.
    bad: Files in `photos` that are no pictures, beside the good ones.

  Raises:
    BenchmarkError: The package cannot be had, or holds too few icons.
  """
  theme = _theme()
  rng = np.random.default_rng(0)
  folders = Folders(
    root / 'photos',
    root / 'public_photos',
    root / 'categories.csv',
    tuple(
      root / 'photos' / f'{number:04d}' / f'bad-{number}.jpg'
      for number in range(bad)
    ),
  )
  rows = []
  for folder, names, count in (
    (folders.private, _PRIVATE, identities),
    (folders.public, _PUBLIC, public),
  ):
    found = list(_icons(theme, names))
    if len(found) < count:
      raise runner.BenchmarkError(
        f'{_PACKAGE} must hold {count} icons of {", ".join(names)}, got'
        f' {len(found)}.'
      )
    chosen = rng.permutation(len(found))[:count]
    for number, index in enumerate(sorted(chosen.tolist())):
      prefix = 'public-' if folder is folders.public else ''
      identity = f'{prefix}{number:04d}'
      (folder / identity).mkdir(parents=True)
      with PIL.Image.open(found[index]) as icon:
        for image, suffix in enumerate(_FORMATS):
          file = folder / identity / f'{image}.{suffix}'
          _save(_varied(icon.convert('RGBA'), rng), file, image=image)
      rows.append((identity, found[index].parent.name))
  for number, file in enumerate(folders.bad):
    whole = (file.parent / '1.jpg').read_bytes()
    file.write_bytes(_DAMAGES[number % len(_DAMAGES)](whole))
  with folders.categories.open('w', newline='') as file_:
    csv.writer(file_).writerows([('identity', 'category'), *rows])
  return folders


def categories() -> Sequence[str]:
  """Returns the classes of the private identities: the theme's folders."""
  return _PRIVATE


def _varied(icon: PIL.Image.Image, rng: np.random.Generator) -> PIL.Image.Image:
  """Returns an RGB picture of an icon: another hue, size, angle, ground."""
  alpha = icon.getchannel('A')
  hue, saturation, value = icon.convert('RGB').convert('HSV').split()
  shift = int(rng.integers(-12, 13))
  turned = hue.point(lambda level: (level + shift) % 256)
  colour = PIL.Image.merge('HSV', (turned, saturation, value)).convert('RGB')
  colour.putalpha(alpha)
  side = int(_SIDE * rng.uniform(0.7, 0.95))
  colour = colour.resize((side, side), PIL.Image.Resampling.LANCZOS)
  colour = colour.rotate(
    float(rng.uniform(-15, 15)), PIL.Image.Resampling.BICUBIC
  )
  ground = tuple(rng.integers(120, 256, 3).tolist())
  picture = PIL.Image.new('RGB', (_SIDE, _SIDE), ground)
  corner = tuple(rng.integers(0, _SIDE - side + 1, 2).tolist())
  picture.paste(colour, corner, colour)
  return picture


def _save(picture: PIL.Image.Image, file: pathlib.Path, *, image: int) -> None:
  """Writes a picture; the last of an identity as a turned camera does."""
  if image == IMAGES - 1:
    exif = PIL.Image.Exif()
    exif[_ORIENTATION] = 6
    lying = picture.transpose(PIL.Image.Transpose.ROTATE_90)
    lying.save(file, quality=90, exif=exif)
  elif file.suffix == '.jpg':
    picture.save(file, quality=90)
  else:
    picture.save(file)


def _icons(theme: pathlib.Path, names: Sequence[str]) -> Iterator[pathlib.Path]:
  """Yields icons, each drawing once."""
  seen = set()
  for name in names:
    for file in sorted((theme / name).glob('*.png')):
      digest = hashlib.sha256(file.read_bytes()).digest()
      if not file.is_symlink() and digest not in seen:
        seen.add(digest)
        yield file


def _theme() -> pathlib.Path:
  """Returns the icons' folder; fetches the package into the user's cache.

  Raises:
    BenchmarkError: It is not there, and cannot be had.
  """
  installed = pathlib.Path('/') / _SOURCE
  if installed.is_dir():
    return installed
  cache = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  folder = pathlib.Path(cache) / 'dpemb-benchmarks' / _PACKAGE
  if (folder / 'complete').exists():
    return folder / _SOURCE
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  try:
    for command in (
      ['apt-get', 'download', '--quiet', _PACKAGE],
      ['sh', '-c', 'dpkg -x ./*.deb . && rm ./*.deb'],
    ):
      subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
      )
  except (OSError, subprocess.CalledProcessError) as error:
    said = getattr(error, 'stderr', '') or str(error)
    raise runner.BenchmarkError(
      f'the icons of {_PACKAGE} must be had with apt-get and dpkg, got:'
      f' {" ".join(said.split())[:200]}; apt-get update, or install it.'
    ) from error
  (folder / 'complete').touch()
  return folder / _SOURCE
