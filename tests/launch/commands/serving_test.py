"""Tests of launch.commands.serving; TensorFlow is not imported."""

import io
import json
import pathlib

import numpy as np
import PIL.Image
import pytest

from launch import cli
from serving import index as index_lib
from serving import model_store
from serving import server
from serving import servicer
from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage
from tff_dpemb.export import manifest as manifest_lib
from tff_dpemb.export import registry
from tff_dpemb.export import signature

_SHAPE = (6, 5, 3)
_CERTIFICATE = {
  'kind': 'model',
  'simulation': False,
  'accounting': {'epsilon': 2.0, 'delta': 1e-5},
}


def _embed(images):
  """Stands for a model: unit rows of the pixels."""
  rows = images.reshape(len(images), -1).astype(np.float64) - 100
  return index_lib.unit_rows(rows, name='rows')


class _Model(model_store.ServedModel):
  """A served model without TensorFlow."""

  def __init__(self, export):
    self.export = export

  def embed(self, images):
    return _embed(images)


@pytest.fixture
def make_export(tmp_path):
  """Returns a function: certificate -> path of a version with no graph."""

  def make(certificate):
    path = tmp_path / 'export' / '1'
    (path / registry.SAVED_MODEL).mkdir(parents=True)
    (path / registry.SAVED_MODEL / 'saved_model.pb').write_bytes(b'graph')
    (path / registry.TFLITE).write_bytes(b'graph')
    files = {
      name: storage.sha256_of(path / name)
      for name in ('saved_model/saved_model.pb', registry.TFLITE)
    }
    digest = documents.digest_of_files(files)
    stated = None
    if certificate is not None:
      named = {'artifact_digest': digest}
      certificate = {**certificate, 'provenance': named}
      storage.atomic_write_json(path / registry.CERTIFICATE, certificate)
      stated = storage.sha256_of(path / registry.CERTIFICATE)
    manifest_lib.Manifest(
      name='faces',
      version=1,
      created='2026-01-01T00:00:00+00:00',
      model_digest=digest,
      signature=signature.build_signature(_SHAPE, 90),
      files=files,
      parity=manifest_lib.Parity(
        saved_model=1.0, saved_model_bytes=1.0, tflite=1.0, num_images=1
      ),
      min_cosine=0.9999,
      certificate_sha256=stated,
    ).write(path / registry.MANIFEST)
    return path

  return make


@pytest.fixture
def images():
  return np.random.default_rng(0).integers(0, 256, [7, *_SHAPE], dtype=np.uint8)


def _index(path, images, digest):
  names = [f'item-{i}' for i in range(len(images))]
  return index_lib.build(
    path, _embed(images), names, names, model_digest=digest
  )


def _refused(capsys, *arguments):
  """Returns the one line that a refused command prints."""
  capsys.readouterr()
  assert cli.run(arguments) == 2
  printed = capsys.readouterr()
  assert printed.out == ''
  assert printed.err.count('\n') == 1
  return printed.err


class TestServeRefuses:
  def test_uncertified(self, capsys, make_export):
    path = make_export(None)
    assert _refused(capsys, 'serve', str(path)) == (
      f'dpemb: error: export {str(path)!r} must have a certificate of a real'
      ' run, got no certificate; publish a certified model, or serve it'
      ' knowingly with --allow-unprotected.\n'
    )

  def test_simulation(self, capsys, make_export):
    path = make_export({**_CERTIFICATE, 'simulation': True})
    line = _refused(capsys, 'serve', str(path))
    assert 'got a certificate of a simulation; ' in line

  def test_missing_export(self, capsys, tmp_path):
    line = _refused(capsys, 'serve', str(tmp_path / 'export'))
    assert 'must hold a published version, got none' in line

  def test_half_copied_export(self, capsys, make_export):
    path = make_export(_CERTIFICATE)
    (path / registry.TFLITE).unlink()
    line = _refused(capsys, 'serve', str(path))
    assert "'model.tflite' is missing" in line

  def test_index_of_another_model(self, capsys, make_export, images, tmp_path):
    path = make_export(_CERTIFICATE)
    _index(tmp_path / 'index', images, '0' * 64)
    line = _refused(
      capsys, 'serve', str(path), '--index', str(tmp_path / 'index')
    )
    assert 'the index must be of the served model' in line

  def test_missing_index(self, capsys, make_export, tmp_path):
    path = make_export(_CERTIFICATE)
    line = _refused(
      capsys, 'serve', str(path), '--index', str(tmp_path / 'index')
    )
    assert 'must be a readable file' in line

  def test_port_in_use(self, capsys, make_export):
    path = make_export(_CERTIFICATE)
    service = servicer.Service(_Model(registry.open_export(path)))
    with server.running(service) as address:
      port = address.rpartition(':')[2]
      line = _refused(capsys, 'serve', str(path), '--port', port)
    assert f'127.0.0.1:{port} must be free to listen on, but it is in' in line


@pytest.mark.parametrize('name', ['serve', 'index', 'embed', 'search'])
def test_help_fits_a_screen_and_shows_an_example(capsys, name):
  assert cli.run([name, '--help']) == 0
  text = capsys.readouterr().out
  assert f'dpemb {name} ' in text.partition('Example:')[2]
  lines = text.splitlines()
  assert len(lines) <= 40
  assert max(map(len, lines)) <= 80


def test_index_of_a_store(capsys, make_export, images, tmp_path, monkeypatch):
  from tff_dpemb.data import user_store

  monkeypatch.setattr(registry.Export, 'embed', lambda self, x: _embed(x))
  export = make_export(_CERTIFICATE)
  with user_store.StoreWriter(
    tmp_path / 'store',
    name='test',
    image_shape=_SHAPE,
    label_names={'identity': ['ann', 'bob'], 'category': ['x']},
  ) as writer:
    for user, part in enumerate([images[:4], images[4:]]):
      labels = {
        'identity': np.full(len(part), user, np.int32),
        'category': np.zeros(len(part), np.int32),
      }
      writer.add_user('ab'[user], part, labels)
  command = ['index', str(export), str(tmp_path / 'store')]
  assert cli.run([*command, str(tmp_path / 'index')]) == 0
  assert 'indexed 7 images' in capsys.readouterr().out
  index = index_lib.load(tmp_path / 'index')
  assert index.model_digest == registry.open_export(export).digest
  assert index.ids == ('a/0', 'a/1', 'a/2', 'a/3', 'b/0', 'b/1', 'b/2')
  assert index.labels == ('ann',) * 4 + ('bob',) * 3
  found = index.neighbours(_embed(images), 1)
  assert [item[0].position for item in found] == list(range(7))
  line = _refused(capsys, *command, str(tmp_path / 'index'))
  assert '--replace' in line
  line = _refused(capsys, *command, str(tmp_path / 'new'), '--label', 'age')
  assert "--label must be in ['category', 'identity'], got 'age'" in line
  line = _refused(capsys, 'index', str(export), 'no-store', 'x')
  assert "'no-store' must be a user store" in line


class TestClientCommands:
  @pytest.fixture
  def files(self, images, tmp_path):
    paths = []
    for position in (3, 5):
      file = io.BytesIO()
      PIL.Image.fromarray(images[position]).save(file, 'PNG')
      paths.append(str(tmp_path / f'{position}.png'))
      pathlib.Path(paths[-1]).write_bytes(file.getvalue())
    return paths

  @pytest.fixture
  def address(self, make_export, images, tmp_path):
    export = registry.open_export(make_export(_CERTIFICATE))
    index = _index(tmp_path / 'index', images, export.digest)
    service = servicer.Service(_Model(export), index=index)
    with server.running(service) as bound:
      yield bound

  def test_search(self, capsys, address, files):
    assert cli.run(['search', *files, '--server', address, '-k', '2']) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    best = [line['neighbours'][0] for line in lines]
    assert [item['id'] for item in best] == ['item-3', 'item-5']
    assert [item['score'] for item in best] == pytest.approx([1, 1])
    assert [len(line['neighbours']) for line in lines] == [2, 2]

  def test_a_turned_picture_is_looked_up_upright(
    self, capsys, address, images, tmp_path
  ):
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # The camera was held on its side.
    file = str(tmp_path / 'turned.png')
    PIL.Image.fromarray(np.rot90(images[4])).save(file, exif=exif)
    assert cli.run(['search', file, '--server', address, '-k', '1']) == 0
    (found,) = json.loads(capsys.readouterr().out)['neighbours']
    assert found['id'] == 'item-4'
    assert found['score'] == pytest.approx(1)

  def test_embed(self, capsys, address, files, images, tmp_path):
    assert cli.run(['embed', *files, '--server', address]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    printed = [line['embedding'] for line in lines]
    np.testing.assert_allclose(printed, _embed(images[[3, 5]]), atol=1e-6)
    output = str(tmp_path / 'out.npy')
    assert (
      cli.run(['embed', *files, '--server', address, '--output', output]) == 0
    )
    np.testing.assert_array_equal(np.load(output), _embed(images[[3, 5]]))

  def test_failures_are_explained(self, capsys, address, files, tmp_path):
    for command in ('embed', 'search'):
      line = _refused(
        capsys, command, str(tmp_path / 'none.png'), '--server', address
      )
      assert 'none.png' in line
    pathlib.Path(files[1]).write_bytes(b'bad')
    line = _refused(capsys, 'search', *files, '--server', address)
    assert 'images.encoded.contents[1] must be one of PNG, JPEG, ' in line

  def test_no_server(self, capsys, files):
    line = _refused(
      capsys, 'embed', *files, '--server', '127.0.0.1:1', '--deadline', '5'
    )
    assert 'the server must answer, got' in line
