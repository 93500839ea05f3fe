"""How coordinator and workers reach each other, and who may.

A worker runs whatever graph it is sent, and the updates that it returns are
private and not noised: a channel is on this machine, or both of its sides prove
with TLS certificates who they are, or somebody has said that the network itself
is protected.
"""

import dataclasses
import pathlib
import ssl

import grpc

from tff_dpemb.training.execution.workers import process

_LOOPBACK = ('localhost', '127.0.0.1', '::1')


class ChannelError(process.ExecutorError):
  """An address or a certificate that may not be used."""


@dataclasses.dataclass(frozen=True)
class Tls:
  """PEM files with which one side of a channel proves who it is.

  Attributes:
    authority: Certificate of the authority that both sides trust.
    certificate: Of this side, signed by the authority. A worker's must name
      the host that coordinators call it by.
    key: The certificate's private key.
  """

  authority: str
  certificate: str
  key: str

  def coordinator_credentials(self) -> grpc.ChannelCredentials:
    """Returns what the coordinator's side of a gRPC channel needs.

    Raises:
      ChannelError: As of `worker_context`.
    """
    self.worker_context()  # gRPC would say nothing of a wrong file.
    return grpc.ssl_channel_credentials(
      _read(self.authority), _read(self.key), _read(self.certificate)
    )

  def worker_context(self) -> ssl.SSLContext:
    """Returns what the worker's side needs: it refuses who has no certificate.

    Raises:
      ChannelError: A file cannot be read or is not what it should be.
    """
    for path in (self.authority, self.certificate, self.key):
      _read(path)
    try:
      context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=self.authority
      )
      context.load_cert_chain(self.certificate, self.key)
    except ssl.SSLError as error:
      raise ChannelError(
        f'{self.certificate!r}, {self.key!r} and {self.authority!r} must be a'
        f' PEM certificate, its key and an authority, got: {error.reason}.'
      ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(['h2'])
    return context


def tls_from_files(authority: str, certificate: str, key: str) -> Tls | None:
  """Returns them as one value, None if none is named.

  Raises:
    ChannelError: Some are named and not all.
  """
  named = [bool(path) for path in (authority, certificate, key)]
  if not any(named):
    return None
  if not all(named):
    raise ChannelError(
      'tls_authority, tls_certificate and tls_key must all be set, or none.'
    )
  return Tls(authority, certificate, key)


def split_address(address: str, *, any_port: bool = False) -> tuple[str, int]:
  """Returns host and port of 'host:port'; an IPv6 host stands in brackets.

  Args:
    address: What to split.
    any_port: Whether 0 is a port, that of a listener which may choose.

  Raises:
    ChannelError: It is something else.
  """
  host, _, port = address.rpartition(':')
  number = int(port) if port.isdecimal() and len(port) < 6 else -1
  bare = host.removeprefix('[').removesuffix(']')
  if not bare or (':' in bare) != host.startswith('['):
    number = -1
  if not (0 if any_port else 1) <= number < 65536:
    raise ChannelError(
      f'an address must be host:port, got {address!r}; for example'
      ' "10.0.0.7:8470" or "[::1]:8470".'
    )
  return bare, number


def check_is_protected(
  address: str, tls: Tls | None, *, insecure_network: bool
) -> None:
  """Refuses an address beyond this machine without protection.

  Raises:
    ChannelError: Says which, and what to do.
  """
  host, _ = split_address(address, any_port=True)
  if host in _LOOPBACK or tls is not None or insecure_network:
    return
  raise ChannelError(
    f'{address} must have TLS, it is not on loopback: set tls_authority,'
    ' tls_certificate and tls_key, or keep to loopback and go through an SSH'
    ' tunnel. insecure_network allows it where a mesh or VPN encrypts the'
    ' network and lets nobody else in.'
  )


def _read(path: str) -> bytes:
  try:
    return pathlib.Path(path).read_bytes()
  except OSError as error:
    raise ChannelError(
      f'{path!r} must be a readable PEM file ({error.strerror}).'
    ) from error
