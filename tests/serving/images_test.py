"""Tests of serving.images; TensorFlow is not imported."""

import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from protos.gen.dpemb.serving.v1 import image_pb2
from serving import images as images_lib
from serving import status
from tff_dpemb import images as image_codec
from tff_dpemb.export import signature as signature_lib

SIGNATURE = signature_lib.build_signature((12, 10, 3), 4)
GREY = signature_lib.build_signature((12, 10, 1), 4)
LIMITS = images_lib.Limits(
  max_images=3, max_pixels=10_000, max_request_pixels=12_000
)


def _file(image, form='PNG', **options):
  file = io.BytesIO()
  PIL.Image.fromarray(image).save(file, form, **options)
  return file.getvalue()


def _png_header(width, height):
  """A PNG that states its size and holds nothing else."""
  content = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
  chunk = b'IHDR' + content
  return (
    b'\x89PNG\r\n\x1a\n'
    + struct.pack('>I', len(content))
    + chunk
    + struct.pack('>I', zlib.crc32(chunk))
    + struct.pack('>I', 0)
    + b'IDAT'
    + struct.pack('>I', zlib.crc32(b'IDAT'))
  )


def _raw(**changes):
  values = {
    'pixels': bytes(360),
    'count': 1,
    'height': 12,
    'width': 10,
    'channels': 3,
  } | changes
  return image_pb2.ImageBatch(raw=image_pb2.RawImages(**values))


def _files(*contents):
  return image_pb2.ImageBatch(
    encoded=image_pb2.EncodedImages(contents=contents)
  )


def _decode(batch, signature=SIGNATURE):
  return images_lib.images_from_batch(batch, signature=signature, limits=LIMITS)


_RNG = np.random.default_rng(0)
_COLOUR = _RNG.integers(0, 256, [12, 10, 3], dtype=np.uint8)
_WHOLE = _file(np.repeat(np.repeat(_COLOUR, 6, 0), 6, 1), 'JPEG')
_ICO = _file(_COLOUR, 'ICO')

BAD = {
  'nothing': (image_pb2.ImageBatch(), 'images', 'images must be set'),
  'no raw image': (
    _raw(count=0, pixels=b''),
    'images.raw',
    'must hold 1 to 3 images, got 0',
  ),
  'too many raw': (
    _raw(count=4, pixels=bytes(1440)),
    'images.raw',
    'must hold 1 to 3 images, got 4; split',
  ),
  'height': (
    _raw(height=10, width=12),
    'images.raw',
    r'\(12, 10, 3\), got \(10, 12, 3\); resize',
  ),
  'short': (
    _raw(pixels=bytes(359)),
    'images.raw.pixels',
    'must be 360 bytes .*, got 359; send uint8',
  ),
  'floats': (
    _raw(pixels=bytes(1440)),
    'images.raw.pixels',
    'must be 360 bytes .*, got 1440',
  ),
  'count too high for pixels': (
    _raw(count=2),
    'images.raw.pixels',
    'must be 720 bytes',
  ),
  'no file': (
    image_pb2.ImageBatch(encoded=image_pb2.EncodedImages()),
    'images.encoded.contents',
    'must hold 1 to 3 images, got 0',
  ),
  'too many files': (
    _files(*[_file(_COLOUR)] * 4),
    'images.encoded.contents',
    'must hold 1 to 3 images, got 4',
  ),
  'empty file': (
    _files(b''),
    'images.encoded.contents[0]',
    'must not be empty, got 0 bytes',
  ),
  'not an image': (
    _files(_file(_COLOUR), b'hello'),
    'images.encoded.contents[1]',
    'must be one of PNG, JPEG, WEBP, .*, got 5 other bytes',
  ),
  'another format': (
    _files(_ICO),
    'images.encoded.contents[0]',
    'must be one of PNG, JPEG, WEBP, BMP, GIF, PPM, TIFF, got',
  ),
  'bomb': (
    _files(_png_header(30_000, 30_000)),
    'images.encoded.contents[0]',
    'at most 10000 pixels, got',
  ),
  'over the cap': (
    _files(_png_header(101, 100)),
    'images.encoded.contents[0]',
    'at most 10000 pixels, got 101 x 100; shrink it first',
  ),
  'over the cap together': (
    _files(_png_header(100, 100), _png_header(100, 100)),
    'images.encoded.contents',
    'at most 12000 pixels together, got 20000 in the first 2',
  ),
  'header only': (
    _files(_png_header(10, 12)),
    'images.encoded.contents[0]',
    'must be whole, got a damaged one',
  ),
  'truncated': (
    _files(_WHOLE[: len(_WHOLE) // 2]),
    'images.encoded.contents[0]',
    'must be whole, got a damaged one',
  ),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_batch(name):
  batch, field, message = BAD[name]
  with pytest.raises(status.InvalidRequest, match=message) as caught:
    _decode(batch)
  assert caught.value.field == field
  assert str(caught.value).startswith(field)


def test_raw_pixels_are_kept():
  np.testing.assert_array_equal(
    _decode(_raw(pixels=_COLOUR.tobytes()))[0], _COLOUR
  )


def test_lossless_files_are_kept():
  grey = _COLOUR[..., 0]
  np.testing.assert_array_equal(_decode(_files(_file(_COLOUR)))[0], _COLOUR)
  np.testing.assert_array_equal(
    _decode(_files(_file(grey)), GREY)[0, ..., 0], grey
  )


def test_transparency_is_laid_on_black():
  alpha = np.full([12, 10, 1], 128, np.uint8)
  actual = _decode(_files(_file(np.concatenate([_COLOUR, alpha], axis=2))))[0]
  np.testing.assert_array_equal(actual, np.rint(_COLOUR * (128 / 255)))


def test_sixteen_bit_grey_keeps_the_high_byte():
  wide = (_COLOUR[..., 0].astype(np.uint16) << 8) + 37
  np.testing.assert_array_equal(
    _decode(_files(_file(wide)), GREY)[0, ..., 0], _COLOUR[..., 0]
  )


@pytest.mark.parametrize('form', ['WEBP', 'GIF', 'BMP', 'TIFF', 'PPM'])
def test_reads_what_import_reads(form):
  options = {'lossless': True} if form == 'WEBP' else {}
  np.testing.assert_array_equal(
    _decode(_files(_file(_COLOUR, form, **options)))[0], _COLOUR
  )


def test_colour_becomes_luminance():
  expected = _COLOUR @ np.array([0.299, 0.587, 0.114])
  actual = _decode(_files(_file(_COLOUR)), GREY)[0, ..., 0]
  assert np.abs(actual - expected).max() <= 1.0


def test_other_sizes_are_resized():
  large = np.full([50, 70, 3], 200, np.uint8)
  actual = _decode(_files(_file(large), _file(_COLOUR)))
  assert actual.shape == (2, 12, 10, 3)
  assert (actual[0] == 200).all()


def test_the_last_bad_header_is_found_before_the_first_file_is_decoded():
  """The first file is damaged, which only decoding finds out."""
  damaged = _WHOLE[: len(_WHOLE) // 2]
  with pytest.raises(status.InvalidRequest, match='at most 10000') as caught:
    _decode(_files(damaged, _png_header(101, 100)))
  assert caught.value.field == 'images.encoded.contents[1]'


def test_large_files_are_decoded_one_at_a_time(monkeypatch):
  monkeypatch.setattr(images_lib, '_LARGE_PIXELS', 120)
  held = []
  decode = images_lib.image_codec.decode

  def watched(*arguments, **options):
    held.append(images_lib._LARGE.locked())
    return decode(*arguments, **options)

  monkeypatch.setattr(images_lib.image_codec, 'decode', watched)
  _decode(_files(_file(_COLOUR), _WHOLE, _file(_COLOUR)))
  assert held == [False, True, False]
  assert not images_lib._LARGE.locked()
  monkeypatch.setattr(images_lib, '_TURN_SECONDS', 0.0)
  with images_lib._LARGE:
    with pytest.raises(status.Overloaded, match='over 120 pixels .*try again'):
      _decode(_files(_WHOLE))
    _decode(_files(_file(_COLOUR)))


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'max_images': 0}, 'max_images must be >= 1, got 0'),
    (
      {'max_pixels': 100, 'max_request_pixels': 99},
      'max_request_pixels must be >= max_pixels, 100, got 99',
    ),
  ],
)
def test_bad_limits(values, message):
  with pytest.raises(ValueError, match=message):
    images_lib.Limits(**values)


def test_a_file_that_import_takes_is_taken_by_default():
  limits = images_lib.Limits()
  assert limits.max_pixels == image_codec.MAX_PIXELS
  assert limits.max_request_pixels >= limits.max_pixels
