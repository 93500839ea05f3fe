import hashlib
import io
import json
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.golden_images import make
from tff_dpemb import images

_GOLDEN = json.loads((make.FOLDER / 'expected.json').read_text())

# How the picture of a camera is turned to stand upright, by EXIF orientation.
_TURNS = {
  1: lambda stored: stored,
  2: np.fliplr,
  3: lambda stored: np.rot90(stored, 2),
  4: np.flipud,
  5: lambda stored: stored.swapaxes(0, 1),
  6: lambda stored: np.rot90(stored, -1),
  7: lambda stored: np.rot90(stored, 2).swapaxes(0, 1),
  8: np.rot90,
}


def _on_black(colours, alpha):
  return np.rint(colours * (alpha[..., np.newaxis] / 255.0))


def _as_colour(grey):
  return np.repeat(grey[..., np.newaxis], 3, 2)


def _exact():
  """Returns what the lossless golden files hold, by NumPy: {name: pixels}."""
  picture, alpha = make.picture(), make.alpha()
  grey = picture[..., 0]
  indices, colours, alphas = make.palette()
  exact = dict.fromkeys(
    (
      'orientation_6.png', 'orientation_3.webp', 'colour_16.png',
      'interlaced.png', 'animated.webp', 'animated.gif', 'colour.bmp',
      'colour.ppm', 'colour.tiff',
    ),
    picture,
  )  # fmt: skip
  return exact | {
    'grey_16.png': _as_colour(grey),
    'one_bit.png': _as_colour(np.where(grey > 100, 255, 0)),
    'palette_transparent.png': _on_black(colours[indices], alphas[indices]),
    'grey_alpha.png': _on_black(_as_colour(grey), alpha),
    'colour_alpha.png': _on_black(picture, alpha),
    'lossless_alpha.webp': _on_black(picture, alpha),
  }


class TestGolden:
  @pytest.mark.parametrize('at', range(len(make.SHAPES)))
  @pytest.mark.parametrize('name', _GOLDEN['sha256'])
  def test_pixels_are_those_that_models_were_trained_on(self, name, at):
    content = (make.FOLDER / name).read_bytes()
    pixels = images.decode(content, make.SHAPES[at])
    assert pixels.shape == make.SHAPES[at]
    found = hashlib.sha256(pixels.tobytes()).hexdigest()
    assert found == _GOLDEN['sha256'][name][at]

  def test_table_is_whole(self):
    assert _GOLDEN['shapes'] == [list(shape) for shape in make.SHAPES]
    others = {'expected.json', 'make.py'}
    committed = {p.name for p in make.FOLDER.iterdir() if p.is_file()} - others
    assert set(_GOLDEN['sha256']) == committed == set(make.files())

  @pytest.mark.parametrize('name', _exact())
  def test_lossless_pixels(self, name):
    content = (make.FOLDER / name).read_bytes()
    np.testing.assert_array_equal(
      images.decode(content, (12, 10, 3)), _exact()[name]
    )

  @pytest.mark.parametrize('orientation', _TURNS)
  def test_orientation(self, orientation):
    content = (make.FOLDER / f'orientation_{orientation}.jpg').read_bytes()
    stored = np.asarray(Image.open(io.BytesIO(content)))
    upright = images.decode(content, (12, 10, 3))
    np.testing.assert_array_equal(upright, _TURNS[orientation](stored))
    # JPEG at quality 95: the picture, but for what is lost.
    assert np.abs(upright.astype(int) - make.picture()).max() <= 20

  @pytest.mark.parametrize(
    ('name', 'largest'),
    [
      ('cmyk.jpg', 8),
      ('progressive.jpg', 20),
      ('orientation_6_reduced.jpg', 24),  # The filter rings at the corner.
    ],
  )
  def test_lossy_pixels(self, name, largest):
    content = (make.FOLDER / name).read_bytes()
    pixels = images.decode(content, (12, 10, 3))
    assert np.abs(pixels.astype(int) - make.picture()).max() <= largest

  def test_grey_jpeg(self):
    pixels = images.decode((make.FOLDER / 'grey.jpg').read_bytes(), (12, 10, 3))
    assert (pixels == pixels[..., :1]).all()
    off = pixels[..., 0].astype(int) - make.picture()[..., 0]
    assert np.abs(off).max() <= 12


def _encoded(pixels, kind='PNG', **options):
  buffer = io.BytesIO()
  Image.fromarray(pixels).save(buffer, format=kind, **options)
  return buffer.getvalue()


@pytest.fixture
def colour():
  return np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)


class TestDecode:
  def test_png_is_exact(self, colour):
    decoded = images.decode(_encoded(colour), (6, 9, 3))
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, colour)

  @pytest.mark.parametrize('channels', [1, 3])
  def test_encode_png_and_back(self, colour, channels):
    image = colour[:, :, :channels]
    np.testing.assert_array_equal(
      images.decode(images.encode_png(image), image.shape), image
    )

  def test_grey_becomes_colour_and_back(self):
    grey = np.arange(54, dtype=np.uint8).reshape(6, 9)
    decoded = images.decode(_encoded(grey), (6, 9, 3))
    np.testing.assert_array_equal(decoded, np.repeat(grey[:, :, None], 3, 2))
    again = images.decode(_encoded(decoded), (6, 9, 1))
    np.testing.assert_array_equal(again[:, :, 0], grey)

  @pytest.mark.parametrize('kind', ['PNG', 'TIFF', 'PPM'])
  def test_sixteen_bit_grey_keeps_the_high_byte(self, kind):
    deep = np.array([[0, 255, 256, 257, 0x7FFF, 65535]], np.uint16)
    decoded = images.decode(_encoded(deep, kind), (1, 6, 1))
    assert decoded.ravel().tolist() == [0, 0, 1, 1, 127, 255]

  def test_a_transparent_sixteen_bit_grey_is_black(self):
    deep = np.array([[0x0105, 0x0206, 0x0207]], np.uint16)
    data = _encoded(deep)
    head, rest = data[:33], data[33:]  # Signature and IHDR come first.
    chunk = b'tRNS' + struct.pack('>H', 0x0206)
    data = (
      head
      + struct.pack('>I', 2)
      + chunk
      + struct.pack('>I', zlib.crc32(chunk))
      + rest
    )
    assert images.decode(data, (1, 3, 1)).ravel().tolist() == [1, 0, 2]

  def test_luminance(self, colour):
    decoded = images.decode(_encoded(colour), (6, 9, 1))
    expected = colour @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decoded[..., 0] - expected).max() <= 0.51

  def test_floating_point_is_refused(self):
    data = _encoded(np.zeros((3, 4), np.float32), 'TIFF')
    with pytest.raises(images.ImageError, match="of 8 or 16 bits .*mode 'F'"):
      images.decode(data, (3, 4, 1))

  def test_transparent_pixels_are_black(self):
    pixels = np.array([[[200, 100, 50, 0], [200, 100, 50, 255]]], np.uint8)
    decoded = images.decode(_encoded(pixels), (1, 2, 3))
    assert decoded.tolist() == [[[0, 0, 0], [200, 100, 50]]]

  def test_camera_orientation_is_applied(self, colour):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    data = _encoded(colour, exif=exif)
    decoded = images.decode(data, (9, 6, 3))
    np.testing.assert_array_equal(decoded, np.rot90(colour, -1))

  def test_resized_to_the_shape(self):
    flat = np.full((20, 30, 3), 77, np.uint8)
    decoded = images.decode(_encoded(flat, 'JPEG', quality=95), (8, 4, 3))
    assert decoded.shape == (8, 4, 3)
    assert np.abs(decoded.astype(int) - 77).max() <= 2

  @pytest.mark.parametrize(('orientation', 'side'), [(1, 48), (6, 48), (1, 47)])
  def test_a_large_jpeg_is_reduced_to_no_less_than_twice(
    self, orientation, side
  ):
    """By libjpeg, then by the filter; the wanted size is turned with it."""
    rng = np.random.default_rng(3)
    small = rng.integers(0, 256, (side // 2, 64, 3), dtype=np.uint8)
    pixels = make.stored(small.repeat(4, 0).repeat(4, 1), orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = _encoded(np.ascontiguousarray(pixels), 'JPEG', exif=exif)
    image = Image.open(io.BytesIO(data))
    # 96 (92) x 256 for 12 x 32: 1/4 (1/2) leaves twice as much.
    ratio = 4 if side == 48 else 2
    image.draft(None, (image.width // ratio, image.height // ratio))
    reduced = _TURNS[orientation](np.asarray(image))
    assert reduced.shape[:2] == (small.shape[0] * 4 // ratio, 256 // ratio)
    expected = Image.fromarray(np.ascontiguousarray(reduced)).resize(
      (32, 12), Image.Resampling.LANCZOS
    )
    np.testing.assert_array_equal(
      images.decode(data, (12, 32, 3)), np.asarray(expected)
    )

  def test_formats_are_an_argument(self, colour):
    data = _encoded(colour, 'BMP')
    assert images.decode(data, (6, 9, 3), formats=('PNG', 'BMP')).any()
    for call in (
      lambda: images.decode(data, (6, 9, 3), formats=('PNG', 'JPEG')),
      lambda: images.read_header(data, formats=('PNG', 'JPEG')),
    ):
      with pytest.raises(images.ImageError, match='must be one of PNG, JPEG,'):
        call()

  def test_too_many_pixels_are_refused_before_decoding(self):
    # The header declares what is not there: no pixel needs to be decoded.
    data = _encoded(np.zeros((1, 1), np.uint8))
    for side in (9_000, 40_000):
      head = b'IHDR' + side.to_bytes(4, 'big') * 2 + data[24:29]
      bomb = data[:12] + head + zlib.crc32(head).to_bytes(4, 'big') + data[33:]
      for call in (
        lambda: images.decode(bomb, (8, 8, 1)),  # noqa: B023 -- called here.
        lambda: images.read_header(bomb),  # noqa: B023
      ):
        with pytest.raises(images.ImageError, match='at most 64000000 pixels'):
          call()
    with pytest.raises(images.ImageError, match='at most 10 pixels, got 4 x 3'):
      images.decode(
        _encoded(np.zeros((3, 4), np.uint8)), (3, 4, 1), max_pixels=10
      )

  @pytest.mark.parametrize('kind', ['PNG', 'JPEG'])
  def test_truncated(self, kind):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    data = _encoded(noise, kind)
    with pytest.raises(images.ImageError, match='damaged'):
      images.decode(data[: len(data) // 2], (64, 64, 1))

  @pytest.mark.parametrize(
    ('data', 'message'),
    [(b'', '0 bytes'), (b'not an image', 'must be one of PNG')],
  )
  def test_not_an_image(self, data, message):
    with pytest.raises(images.ImageError, match=message):
      images.decode(data, (8, 8, 1))

  def test_channels(self, colour):
    with pytest.raises(images.ImageError, match='channels must be 1 or 3'):
      images.decode(_encoded(colour), (6, 9, 4))

  def test_damage_never_escapes_as_another_error(self):
    # 300 random damages of a PNG and a JPEG: an image or an ImageError.
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
    refused = 0
    for kind in ('PNG', 'JPEG'):
      data = _encoded(noise, kind)
      for _ in range(150):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), 4):
          damaged[place] = rng.integers(256)
        try:
          assert images.decode(bytes(damaged), (16, 16, 3)).shape == (16, 16, 3)
        except images.ImageError:
          refused += 1
    assert refused > 50


def test_encode_png_refuses_other_types():
  with pytest.raises(images.ImageError, match='uint8'):
    images.encode_png(np.zeros((2, 2, 1)))


class TestHeader:
  def test_states_what_is_stored(self):
    content = (make.FOLDER / 'orientation_6.jpg').read_bytes()
    header = images.read_header(content)
    assert header == images.Header('JPEG', 12, 10)
    assert header.pixels == 120

  def test_no_pixel_is_decoded(self, colour):
    """The header of a file that ends after it can be read."""
    data = _encoded(colour, 'JPEG')
    start = data.index(b'\xff\xda')  # Start of scan.
    assert images.read_header(data[: start + 14]).pixels == 54
    with pytest.raises(images.ImageError, match='damaged'):
      images.decode(data[: start + 14], (6, 9, 3))


def test_error_tells_the_rule_without_its_subject():
  with pytest.raises(images.ImageError) as caught:
    images.read_header(b'hello')
  assert str(caught.value) == f'image {caught.value.rule}'
  assert caught.value.rule.endswith('TIFF, got 5 other bytes.')


def test_pillow_does_not_warn_of_what_is_refused():
  code = (
    'import io\n'
    'from PIL import Image\n'
    'from tff_dpemb import images\n'
    'file = io.BytesIO()\n'
    "Image.new('1', (10_000, 10_000)).save(file, 'PNG')\n"
    'try:\n'
    '  images.read_header(file.getvalue())\n'
    'except images.ImageError as error:\n'
    '  print(error)\n'
  )
  result = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert 'got 10000 x 10000' in result.stdout
  assert 'DecompressionBomb' not in result.stderr


def test_32_bit_integers_of_a_tiff_are_refused():
  """They have no stated range: black or white would be a guess."""
  buffer = io.BytesIO()
  grey = np.arange(64, dtype=np.int32).reshape(8, 8)
  Image.fromarray(grey).save(buffer, format='TIFF')
  with pytest.raises(images.ImageError, match='8 or 16 bits a channel'):
    images.decode(buffer.getvalue(), (8, 8, 1))
