"""Audits are kept beside each other."""

from launch.run import audits
from launch.run import directory
from tff_dpemb import config
from tff_dpemb.artifacts import storage


def test_a_block_is_kept_beside_those_of_other_audits(tmp_path):
  page = config.from_mapping({'name': 'some'})
  paths = directory.RunDirectory(page, runs=tmp_path)
  assert audits.for_certificate(paths, 'training') is None
  path = audits.audit_path(paths)
  audits.write(path, paths, 'training', {'claim': (1, 2)})
  audits.write(path, paths, 'synthetic', {'claim': 3})
  assert audits.for_certificate(paths, 'training') == {'claim': [1, 2]}
  assert audits.for_certificate(paths, 'synthetic') == {'claim': 3}
  assert audits.for_certificate(paths, 'other') is None
  content = storage.read_json(path)
  assert content['schema'] == audits.SCHEMA
  assert content['config_digest'] == page.digest()
