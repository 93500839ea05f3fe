import io
import zlib

import numpy as np
import pytest
from PIL import Image

from tff_dpemb import images


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

  def test_sixteen_bit_grey_is_scaled(self):
    deep = np.array([[0, 257, 65535]], np.uint16)
    decoded = images.decode(_encoded(deep), (1, 3, 1))
    assert decoded.ravel().tolist() == [0, 1, 255]

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

  def test_too_many_pixels_are_refused_before_decoding(self):
    # The header declares what is not there: no pixel needs to be decoded.
    data = _encoded(np.zeros((1, 1), np.uint8))
    for side in (9_000, 40_000):
      head = b'IHDR' + side.to_bytes(4, 'big') * 2 + data[24:29]
      bomb = data[:12] + head + zlib.crc32(head).to_bytes(4, 'big') + data[33:]
      with pytest.raises(images.ImageError, match='at most 64000000 pixels'):
        images.decode(bomb, (8, 8, 1))
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


def test_normalise():
  values = images.normalise(np.array([0, 51, 255], np.uint8))
  assert values.dtype == np.float32
  np.testing.assert_allclose(values, [-1, -0.6, 1], atol=1e-7)
  with pytest.raises(images.ImageError, match='float64'):
    images.normalise(np.zeros(3))


def test_encode_png_refuses_other_types():
  with pytest.raises(images.ImageError, match='uint8'):
    images.encode_png(np.zeros((2, 2, 1)))
