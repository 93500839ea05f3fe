"""A file has the same pixels by import, client and server, over the wire."""

import json

import numpy as np
import pytest

from benchmarks import decoder
from benchmarks import golden
from launch import cli
from tff_dpemb import images


@pytest.fixture(scope='module')
def table():
  return golden.Golden()


@pytest.fixture(scope='module', params=golden.Golden().shapes, ids=str)
def found(request, table):
  """The shape, and the pixels of all files by each way."""
  return request.param, golden.readings(table, request.param)


@pytest.mark.parametrize(
  'way', ['import', 'import of files', 'server', 'client']
)
def test_golden_pixels(table, found, way):
  shape, pixels = found
  assert len(table.files) >= 20
  assert pixels[way].shape == (len(table.files), *shape)
  assert pixels[way].dtype == np.uint8
  assert table.mismatches(pixels[way], shape) == []


def test_a_wrong_pixel_is_found(table, found):
  shape, pixels = found
  wrong = pixels['server'].copy()
  wrong[3, 0, 0, 0] ^= 1
  assert table.mismatches(wrong, shape) == [list(table.files)[3]]


def test_command_line(table, tmp_path, capsys):
  """`dpemb embed` of the files in a directory."""
  shape = table.shapes[0]
  paths = []
  for name, content in table.files.items():
    paths.append(str(tmp_path / name))
    (tmp_path / name).write_bytes(content)
  with golden.pixel_server(shape) as address:
    assert cli.run(['embed', *paths, '--server', address]) == 0
  lines = capsys.readouterr().out.splitlines()
  pixels = [json.loads(line)['embedding'] for line in lines]
  pixels = np.array(pixels).astype(np.uint8).reshape(-1, *shape)
  assert table.mismatches(pixels, shape) == []


@pytest.mark.parametrize(
  'name', ['orientation_6.jpg', 'orientation_6_reduced.jpg', 'cmyk.jpg']
)
def test_ways_are_the_one_decoder(table, found, name):
  shape, pixels = found
  at = list(table.files).index(name)
  expected = images.decode(table.files[name], shape)
  for way in pixels.values():
    np.testing.assert_array_equal(way[at], expected)


def test_stored_pictures_are_found_by_their_own_files(table):
  """A real export, index, server and client."""
  measures = decoder.measure_embeddings(table)
  claims = [measure for measure in measures if measure.holds is not None]
  assert [measure.target for measure in claims] == ['>= 0.99999'] * 2
  assert all(measure.holds for measure in claims), claims
