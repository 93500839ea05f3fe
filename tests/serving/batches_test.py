"""Tests of serving.batches; TensorFlow is not imported."""

import dataclasses
import struct
import zlib

import numpy as np
import pytest

from serving import batches
from serving import status
from tff_dpemb import images

_LIMITS = batches.Limits(
  image_shape=(4, 5, 3),
  max_message_bytes=4096 + 1000,
  max_images=7,
  max_pixels=5000,
  max_request_pixels=9000,
)


def _picture(height, width, *, padding=0):
  """A PNG whose file is longer by `padding` and 12 bytes."""
  png = images.encode_png(np.full((height, width, 1), 9, np.uint8))
  chunk = b'teXt' + bytes(padding)
  extra = struct.pack('>I', padding) + chunk
  return png[:33] + extra + struct.pack('>I', zlib.crc32(chunk)) + png[33:]


@pytest.mark.parametrize(
  ('count', 'limits', 'sizes'),
  [
    (0, {}, []),
    (7, {}, [7]),
    (8, {}, [7, 1]),
    (8, {'max_message_bytes': 4096 + 180}, [3, 3, 2]),  # 60 bytes each.
    (2, {'max_message_bytes': 1}, [1, 1]),
  ],
)
def test_pixels(count, limits, sizes):
  pixels = np.arange(count * 60).reshape(-1, 4, 5, 3).astype(np.uint8)
  limits = dataclasses.replace(_LIMITS, **limits)
  found = list(batches.of_images(pixels, limits))
  assert [batch.raw.count for batch in found] == sizes
  assert b''.join(batch.raw.pixels for batch in found) == pixels.tobytes()


@pytest.mark.parametrize(
  ('files', 'sizes'),
  [
    ([], []),
    ([_picture(9, 9)] * 8, [7, 1]),
    ([_picture(9, 9, padding=300)] * 5, [2, 2, 1]),  # By bytes.
    ([_picture(50, 90)] * 3, [2, 1]),  # 4500 pixels each.
    ([b'no image'] * 3, [3]),  # The server will tell.
  ],
)
def test_files(files, sizes):
  found = list(batches.of_images(files, _LIMITS))
  assert [len(batch.encoded.contents) for batch in found] == sizes
  assert [c for batch in found for c in batch.encoded.contents] == files


def test_a_file_without_room_is_decoded_in_its_place():
  small, large = _picture(9, 9), _picture(9, 9, padding=2000)
  first, second, third = batches.of_images([small, large, small], _LIMITS)
  assert list(first.encoded.contents) == list(third.encoded.contents) == [small]
  assert second.raw.count == 1
  assert second.raw.pixels == images.decode(large, (4, 5, 3)).tobytes()


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (bytes(2000), r'images\[1\] must be one of PNG, .*, got 2000 other'),
    (
      _picture(60, 90, padding=2000),
      r'images\[1\] must have at most 5000 pixels, got 90 x 60',
    ),
  ],
)
def test_a_file_that_cannot_be_decoded_here(content, message):
  with pytest.raises(status.InvalidRequest, match=message) as caught:
    list(batches.of_images([_picture(9, 9), content], _LIMITS))
  assert caught.value.field == 'images'


def test_embeddings():
  rows = np.arange(30, dtype=np.float64).reshape(10, 3)
  found = list(batches.of_embeddings(rows, _LIMITS))
  assert [batch.count for batch in found] == [7, 3]
  values = b''.join(batch.values for batch in found)
  np.testing.assert_array_equal(np.frombuffer(values, '<f4'), rows.ravel())
  with pytest.raises(status.InvalidRequest, match=r'embeddings must be \[N, D'):
    list(batches.of_embeddings(rows[0], _LIMITS))
