"""What is certified of private data, and when nothing may be published."""

import pytest

from launch.run import audits
from launch.run import directory
from launch.run import opened
from launch.run import release
from launch.run import stamps
from tff_dpemb import config


@pytest.fixture(name='run')
def _run(tmp_path):
  page = config.from_mapping({'name': 'some'})
  with opened.open_run(directory.RunDirectory(page, runs=tmp_path)) as run:
    yield run


def test_a_published_digest_of_private_data_is_its_owners_alone(run):
  digest = 'd' * 64
  blinded = release.blinded(run, digest)
  assert blinded != digest
  assert len(blinded) == 64
  assert release.blinded(run, digest) == blinded
  assert release.blinded(run, 'e' * 64) != blinded
  key = run.paths.restricted / 'provenance.key'
  assert key.stat().st_mode & 0o777 == 0o600
  key.unlink()
  assert release.blinded(run, digest) != blinded


def test_provenance_never_states_the_plain_digest(run):
  found = release.provenance(
    run, private_digest='d' * 64, artifact_digest='a' * 64
  )
  assert found.data_digest == release.blinded(run, 'd' * 64)
  assert found.artifact_digest == 'a' * 64
  assert found.config_digest == run.config.digest()


def test_an_audit_goes_with_a_release_unless_it_contradicts(run):
  assert release.audits(run, 'training') == []
  path = audits.audit_path(run.paths)
  good = {'verdict': 'consistent', 'lower_bound': 0.5}
  audits.write(path, run.paths, 'training', good)
  audits.write(path, run.paths, 'synthetic', {'verdict': 'VIOLATION'})
  assert release.audits(run, 'training') == [good]
  with pytest.raises(stamps.StageError, match='nothing was published'):
    release.audits(run, 'synthetic')
