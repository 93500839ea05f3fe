"""The commands `certificate`."""

import json

import pytest

from launch.commands import certificate as certificate_commands
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.certificate import build
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
    content = build.build_for_synthesis(
      charged=build.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=build.Context(simulation=False),
      provenance=build.Provenance(),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  path = tmp_path / 'certificate.json'
  build.write(path, content)
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
    content
  )
  assert json.loads(run(group, 'show', '--schema').output)['title'] == (
    'dpemb.certificate/3'
  )
  content['accounting']['epsilon'] *= 0.5
  build.write(path, content)
  result = run(group, 'verify', path)
  assert result.exit_code == 5
  assert 'problem: accounting.epsilon must be' in result.errors


@pytest.fixture(name='certified')
def _certified(url, tmp_path):
  """A directory with a certificate and its page."""
  directory = tmp_path / 'export'
  directory.mkdir()
  with ledger_lib.Ledger.open(url) as book:
    content = build.build_for_synthesis(
      charged=build.Charged(book, 'glyphs', 'quick', 'quick/synthetic'),
      context=build.Context(simulation=False),
      provenance=build.Provenance(),
      population_size=5000,
      delta=1e-5,
      queries=[],
    )
  build.write(directory / 'certificate.json', content)
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
  forged = json.loads(path.read_text())
  forged['setting']['trust'] = 'nobody'
  build.write(path, build.seal(forged))
  result = run(*verify, f'{key}.pub')
  assert result.exit_code == 5
  assert 'was altered' in result.errors


def test_a_signed_export_can_still_be_opened(run, certified, tmp_path):
  run('certificate', 'keygen', tmp_path / 'key')
  path, manifest = (
    certified / name for name in ('certificate.json', 'manifest.json')
  )
  listed = {'files': {}, 'certificate_sha256': storage.sha256_of(path)}
  storage.atomic_write_json(manifest, listed)
  sign = ('certificate', 'sign', certified, '--key', tmp_path / 'key')
  assert run(*sign).exit_code == 0
  assert storage.read_json(manifest) == {
    'files': {},
    'certificate_sha256': storage.sha256_of(path),
  }
  assert storage.read_json(manifest) != listed


def test_what_does_not_hold_is_not_signed(run, certified, tmp_path):
  run('certificate', 'keygen', tmp_path / 'key')
  path = certified / 'certificate.json'
  content = json.loads(path.read_text())
  content['accounting']['epsilon'] *= 0.5
  build.write(path, build.seal(content))
  before = path.read_bytes()
  result = run('certificate', 'sign', certified, '--key', tmp_path / 'key')
  assert result.exit_code == 5
  assert 'accounting.epsilon must be' in result.errors
  assert path.read_bytes() == before


def test_certificate_errors_are_one_line(run, tmp_path):
  result = run('certificate', 'show', tmp_path / 'none.json')
  assert result.exit_code == 2
  assert len(result.errors.splitlines()) == 1
