"""The commands `certificate`."""

import json

import pytest

from launch.commands import certificate as certificate_commands
from tff_dpemb.artifacts import storage
from tff_dpemb.export import manifest as manifest_lib
from tff_dpemb.export import registry
from tff_dpemb.export import signature
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.ledger import ledger as ledger_lib


def _names(command, name):
  yield name
  for key, inner in getattr(command, 'commands', {}).items():
    yield from _names(inner, f'{name} {key}')


@pytest.mark.parametrize(
  'name',
  [name for name in _names(certificate_commands.certificate, 'certificate')],
)
def test_help_fits_a_screen_and_shows_an_example(run, name):
  result = run(*name.split(), '--help')
  assert result.exit_code == 0
  assert 'Example:' in result.output
  assert len(result.output.splitlines()) <= 24


def test_certificate_verify_and_show(run, url, tmp_path):
  with ledger_lib.Ledger.open(url) as book:
    content = build.for_synthesis(
      charged=facts.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=facts.Context(simulation=False),
      provenance=facts.Provenance(),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  path = tmp_path / 'certificate.json'
  content.write(path)
  group = 'certificate'
  for place in (path, tmp_path):
    result = run(group, 'verify', place, '--ledger', url)
    assert result.exit_code == 0, result.errors
    assert 'holds: This synthetic set' in result.output
  result = run(group, 'verify', path)
  assert 'not checked against a ledger' in result.output
  assert run(group, 'show', path).output.startswith('# Privacy certificate')
  page = run(group, 'show', path, '--format', 'html').output
  assert page.startswith('<!doctype html>')
  assert json.loads(run(group, 'show', path, '--format', 'json').output) == (
    content.to_json()
  )
  form = json.loads(run(group, 'show', '--schema').output)
  assert form == document.Certificate.json_schema()
  assert form['properties']['schema']['const'] == 'dpemb.certificate/4'
  forged = content.to_json()
  forged['accounting']['epsilon'] *= 0.5
  storage.atomic_write_json(path, forged)
  result = run(group, 'verify', path)
  assert result.exit_code == 5
  assert 'problem: accounting.epsilon must be' in result.errors


@pytest.mark.parametrize('command', ['show', 'verify', 'sign'])
def test_no_certificate_is_wrong_input(run, tmp_path, command):
  more = ('--key', tmp_path / 'key') if command == 'sign' else ()
  for place in (tmp_path, tmp_path / 'none.json'):
    result = run('certificate', command, place, *more)
    assert result.exit_code == 2
    assert 'must be a certificate; give its file' in result.errors


@pytest.fixture(name='certified')
def _certified(url, tmp_path):
  """A directory with a certificate and its page."""
  directory = tmp_path / 'export'
  directory.mkdir()
  with ledger_lib.Ledger.open(url) as book:
    content = build.for_synthesis(
      charged=facts.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=facts.Context(simulation=False),
      provenance=facts.Provenance(),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  content.write(directory / 'certificate.json')
  (directory / 'certificate.html').write_text('old page')
  return directory


def test_a_certificate_is_signed_and_checked(run, url, certified, tmp_path):
  key, other = tmp_path / 'key', tmp_path / 'other'
  for name in (key, other):
    assert run('certificate', 'keygen', name).exit_code == 0
  verify = ('certificate', 'verify', certified, '--public-key')
  result = run(*verify, f'{key}.pub')
  assert result.exit_code == 5
  assert 'is not signed' in result.errors
  sign = ('certificate', 'sign', certified, '--key', key, '--ledger', url)
  assert run(*sign).exit_code == 0
  assert run(*verify, f'{key}.pub').exit_code == 0
  assert 'signed by ed25519 key' in (
    (certified / 'certificate.html').read_text()
  )
  result = run(*verify, f'{other}.pub')
  assert result.exit_code == 5
  assert 'must be of key' in result.errors
  assert (
    'not checked whose it is' in run('certificate', 'verify', certified).output
  )

  path = certified / 'certificate.json'
  forged = document.read(path).model_copy(update={'run': 'other'})
  forged.sealed().write(path)
  result = run(*verify, f'{key}.pub')
  assert result.exit_code == 5
  assert 'was altered' in result.errors


def test_a_signed_export_can_still_be_opened(run, certified, tmp_path):
  run('certificate', 'keygen', tmp_path / 'key')
  path = certified / 'certificate.json'
  (certified / registry.SAVED_MODEL).mkdir()
  files = {'saved_model/graph.pb': '0' * 64}
  listed = manifest_lib.Manifest(
    name='faces',
    version=1,
    created='2026-01-01T00:00:00+00:00',
    model_digest='1' * 64,
    signature=signature.build_signature((8, 8, 1), 4),
    files=files,
    parity=manifest_lib.Parity(
      saved_model=1.0, saved_model_bytes=1.0, tflite=1.0, num_images=1
    ),
    min_cosine=0.9,
    certificate_sha256=storage.sha256_of(path),
  )
  listed.write(certified / registry.MANIFEST)
  sign = ('certificate', 'sign', certified, '--key', tmp_path / 'key')
  assert run(*sign).exit_code == 0
  found = manifest_lib.Manifest.read(certified / registry.MANIFEST)
  assert found.certificate_sha256 == storage.sha256_of(path)
  assert found.certificate_sha256 != listed.certificate_sha256
  assert found.files == files


def test_what_does_not_hold_is_not_signed(run, certified, tmp_path):
  run('certificate', 'keygen', tmp_path / 'key')
  path = certified / 'certificate.json'
  content = json.loads(path.read_text())
  content['accounting']['epsilon'] *= 0.5
  document.Certificate.from_json(content).sealed().write(path)
  before = path.read_bytes()
  result = run('certificate', 'sign', certified, '--key', tmp_path / 'key')
  assert result.exit_code == 5
  assert 'accounting.epsilon must be' in result.errors
  assert path.read_bytes() == before


def test_certificate_errors_are_one_line(run, tmp_path):
  result = run('certificate', 'show', tmp_path / 'none.json')
  assert result.exit_code == 2
  assert len(result.errors.splitlines()) == 1


def test_an_artefact_is_found_by_a_relative_path(
  run, url, tmp_path, monkeypatch
):
  """What must not lead away is the artefact's name, not the way to it."""
  release = tmp_path / 'runs' / 'some' / 'synthetic'
  release.mkdir(parents=True)
  (release / 'embeddings.parquet').write_bytes(b'of an artefact')
  digest = storage.sha256_of(release / 'embeddings.parquet')
  with ledger_lib.Ledger.open(url) as book:
    content = build.for_synthesis(
      charged=facts.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=facts.Context(simulation=False),
      provenance=facts.Provenance(artifacts={'embeddings.parquet': digest}),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  content.write(release / 'certificate.json')
  (tmp_path / 'elsewhere').mkdir()
  monkeypatch.chdir(tmp_path / 'elsewhere')
  way = '../runs/some/synthetic'
  assert run('certificate', 'keygen', 'key').exit_code == 0
  sign = run('certificate', 'sign', way, '--key', 'key')
  assert sign.exit_code == 0, sign.errors
  verify = ('certificate', 'verify', way, '--public-key', 'key.pub')
  assert run(*verify).exit_code == 0
  (release / 'embeddings.parquet').write_bytes(b'of another')
  result = run(*verify)
  assert result.exit_code == 5
  assert 'embeddings.parquet' in result.errors
