"""Addresses, and who may be reached without TLS; nothing is connected."""

import pytest

from tff_dpemb.training.execution.workers import channels

_FILES = channels.Tls('ca.pem', 'own.pem', 'own.key')


@pytest.mark.parametrize(
  ('address', 'expected'),
  [
    ('localhost:8470', ('localhost', 8470)),
    ('10.0.0.7:1', ('10.0.0.7', 1)),
    ('[::1]:65535', ('::1', 65535)),
    ('worker.example.org:8470', ('worker.example.org', 8470)),
  ],
)
def test_an_address_is_host_and_port(address, expected):
  assert channels.split_address(address) == expected


@pytest.mark.parametrize(
  'address',
  [
    '',
    'localhost',
    ':8470',
    'a:b',
    'a:-1',
    'a:0',
    'a:65536',
    '::1:80',
    '[a]:1',
  ],
)
def test_anything_else_is_refused(address):
  with pytest.raises(channels.ChannelError, match='must be host:port, got'):
    channels.split_address(address)


def test_only_a_listener_may_leave_the_port_open():
  assert channels.split_address('[::1]:0', any_port=True) == (
    '::1',
    0,
  )


@pytest.mark.parametrize('address', ['localhost:1', '127.0.0.1:1', '[::1]:1'])
def test_loopback_needs_no_tls(address):
  channels.check_is_protected(address, None, insecure_network=False)


@pytest.mark.parametrize(
  'address', ['10.0.0.7:1', '0.0.0.0:1', '[::]:1', 'worker:1', '127.0.0.2:1']
)
def test_a_network_needs_tls_or_a_word(address):
  with pytest.raises(channels.ChannelError, match='must have TLS') as caught:
    channels.check_is_protected(address, None, insecure_network=False)
  assert 'SSH' in str(caught.value)
  channels.check_is_protected(address, _FILES, insecure_network=False)
  channels.check_is_protected(address, None, insecure_network=True)


def test_certificates_come_together():
  assert channels.tls_from_files('', '', '') is None
  assert channels.tls_from_files('ca.pem', 'own.pem', 'own.key') == _FILES
  with pytest.raises(channels.ChannelError, match='all be set, or none'):
    channels.tls_from_files('ca.pem', '', 'own.key')


def test_a_missing_file_is_named(tmp_path):
  files = channels.Tls(*(str(tmp_path / name) for name in 'abc'))
  for method in (files.coordinator_credentials, files.worker_context):
    with pytest.raises(channels.ChannelError, match="/a' must be a readable"):
      method()


def test_a_file_that_is_no_certificate_is_named(tmp_path):
  path = tmp_path / 'file.pem'
  path.write_text('not a certificate')
  files = channels.Tls(str(path), str(path), str(path))
  with pytest.raises(channels.ChannelError, match='must be a PEM certificate'):
    files.worker_context()
