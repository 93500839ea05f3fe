"""`dpemb worker`: who may reach it, and that it leaves nothing behind."""

import contextlib
import datetime
import ipaddress
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import tensorflow_federated as tff
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from launch import cli
from launch.commands import worker
from tff_dpemb.training.execution import executors
from tff_dpemb.training.execution.workers import channels
from tff_dpemb.training.execution.workers import pool
from tff_dpemb.training.execution.workers import remote

_ROOT = pathlib.Path(__file__).resolve().parents[3]


class _Authority:
  """A certificate authority, and what it signs, as PEM files."""

  def __init__(self, folder: pathlib.Path):
    folder.mkdir()
    self._folder = folder
    self._key = ec.generate_private_key(ec.SECP256R1())
    self._name = _name(folder.name)
    certificate = self._build(self._name, self._key.public_key()).add_extension(
      x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    self.path = self._write(
      'ca.pem', certificate.sign(self._key, hashes.SHA256())
    )

  def sign(self, name: str) -> channels.Tls:
    key = ec.generate_private_key(ec.SECP256R1())
    alternative = x509.SubjectAlternativeName(
      [x509.IPAddress(ipaddress.ip_address('127.0.0.1'))]
    )
    certificate = self._build(_name(name), key.public_key()).add_extension(
      alternative, critical=False
    )
    key_path = self._folder / f'{name}.key'
    key_path.write_bytes(
      key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
      )
    )
    path = self._write(
      f'{name}.pem', certificate.sign(self._key, hashes.SHA256())
    )
    return channels.Tls(self.path, path, str(key_path))

  def _build(self, name, public_key):
    now = datetime.datetime.now(datetime.UTC)
    return (
      x509.CertificateBuilder()
      .subject_name(name)
      .issuer_name(self._name)
      .public_key(public_key)
      .serial_number(x509.random_serial_number())
      .not_valid_before(now - datetime.timedelta(hours=1))
      .not_valid_after(now + datetime.timedelta(days=1))
    )

  def _write(self, file, certificate) -> str:
    path = self._folder / file
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return str(path)


def _name(text):
  return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@contextlib.contextmanager
def _worker(*options):
  """Runs `dpemb worker` and yields the process and its address."""
  with subprocess.Popen(
    [
      *(sys.executable, '-m', 'launch.cli', 'worker'),
      *('--listen', '127.0.0.1:0', *options),
    ],
    cwd=_ROOT,
    stdout=subprocess.PIPE,
    text=True,
  ) as program:
    try:
      line = program.stdout.readline()
      address = re.match(r'worker ready on (127\.0\.0\.1:\d+) \(', line)[1]
      yield program, address
    finally:
      program.kill()


def _tls_options(tls):
  return (
    *('--tls-authority', tls.authority),
    *('--tls-certificate', tls.certificate),
    *('--tls-key', tls.key),
  )


@tff.tensorflow.computation(np.int32)
def _double(x):
  return 2 * x


def test_a_certified_coordinator_is_served_and_no_other(tmp_path):
  authority, stranger = (_Authority(tmp_path / name) for name in ('ours', 'no'))
  with _worker(*_tls_options(authority.sign('worker'))) as (_, address):
    with executors.workers([address], tls=authority.sign('coordinator')):
      assert _double(21) == 42
    # Trusts the worker, but shows a certificate of another authority.
    other = stranger.sign('other')
    mixed = channels.Tls(authority.path, other.certificate, other.key)
    for tls in (mixed, None):
      connection = remote.RemoteWorker(
        address, credentials=tls.coordinator_credentials() if tls else None
      )
      with pytest.raises(remote.WorkerLost, match='must answer within'):
        connection.connect(deadline_seconds=1.0)
      connection.abandon()


def test_a_worker_trains_on_the_devices_it_is_given():
  with _worker('--device', 'CPU:0') as (_, address):
    with executors.workers([address]):
      assert _double(21) == 42


def test_a_device_that_is_not_there_is_refused(capsys):
  assert cli.run(['worker', '--device', 'GPU:7']) == 2
  assert "got 'GPU:7'" in capsys.readouterr().err


def test_the_worker_comes_back_and_ends_with_its_program():
  with _worker() as (program, address):
    parent = psutil.Process(program.pid)
    assert [c.laddr.ip for c in parent.connections('tcp')] == ['127.0.0.1']
    (child,) = parent.children()
    with executors.workers([address]):
      assert _double(1) == 2
      os.kill(child.pid, signal.SIGKILL)
      psutil.wait_procs([child], timeout=20)
      # The next one is asked as soon as the gateway has it.
      assert _double(2) == 4
    children = parent.children(recursive=True)
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=20) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []
  with (
    pytest.raises(pool.NoWorkersError, match='must answer within'),
    executors.workers([address], start_seconds=0.5),
  ):
    pass


def _other_child(parent, known):
  """Returns the worker that took the place of a known one."""
  deadline = time.monotonic() + 30
  while time.monotonic() < deadline:
    for child in parent.children():
      if child.pid != known.pid and child.status() != psutil.STATUS_ZOMBIE:
        return child
    time.sleep(0.05)
  raise AssertionError('the worker was not started again')


def test_a_worker_forgets_a_coordinator_that_is_gone():
  """TFF's worker would keep what it was sent, and go on computing."""
  with _worker() as (program, address):
    parent = psutil.Process(program.pid)
    (first,) = parent.children()
    with executors.workers([address]):
      assert _double(1) == 2
      assert first.is_running()  # Not while somebody is connected.
    second = _other_child(parent, first)
    with executors.workers([address]):
      assert _double(2) == 4
      assert second.is_running()


def test_a_worker_that_is_cut_off_is_started_again():
  """What leads to a sealed worker is a process of its own."""
  with _worker() as (program, address):
    parent = psutil.Process(program.pid)
    (first,) = parent.children()
    deadline = time.monotonic() + 10
    while not (forwarders := first.children()):
      if time.monotonic() > deadline:
        pytest.skip('workers cannot be sealed here')
      time.sleep(0.05)
    forwarders[0].kill()
    _other_child(parent, first)
    with executors.workers([address]):
      assert _double(3) == 6


def test_an_address_of_another_machine_is_refused_in_words(capsys):
  options = ['--listen', '192.0.2.1:8470', '--insecure-network']
  assert cli.run(['worker', *options]) == 2
  assert 'must be a free port on an address of this' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (['--listen', '0.0.0.0:1'], '0.0.0.0:1 must have TLS'),
    (['--listen', 'here'], "must be host:port, got 'here'"),
    (['--tls-key', 'x'], 'must all be set, or none'),
    (
      [
        *('--tls-key', 'x', '--tls-certificate', 'x'),
        *('--tls-authority', '/none/ca.pem'),
      ],
      "'/none/ca.pem' must be a readable PEM file",
    ),
  ],
)
def test_what_is_not_protected_is_refused(options, message, capsys):
  assert cli.run(['worker', *options]) == 2
  assert message in capsys.readouterr().err


def test_without_a_network_of_its_own_a_worker_needs_a_word(
  monkeypatch, capsys
):
  class Unsealed(worker.worker_process.OwnedWorker):
    def restart(self):
      self.is_sealed = False

  monkeypatch.setattr(worker.worker_process, 'OwnedWorker', Unsealed)
  assert cli.run(['worker', '--listen', '127.0.0.1:0']) == 2
  assert 'must have a network of its own' in capsys.readouterr().err
