"""Ed25519 signatures of certificates: who vouches for one.

A certificate's digest shows that it is whole, not who made it: whoever alters a
certificate can make the digest anew. A signature over the digest, checked with
a public key that was handed over by another way, shows that too.
"""

import os
import pathlib
import stat

from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from tff_dpemb.privacy.certificate import document

# So that a key's signature on anything else is none on a certificate.
_CONTEXT = b'dpemb certificate digest: '
_ENCODING = serialization.Encoding.PEM


class SignatureError(document.CertificateError):
  """A certificate that must not be signed."""

  exit_code = 5


def make_key(path: str | os.PathLike[str]) -> pathlib.Path:
  """Writes a new private key (mode 0600) and `<path>.pub`; returns the latter.

  Raises:
    CertificateError: A file is there already, or cannot be written.
  """
  private = pathlib.Path(path)
  public = private.with_name(private.name + '.pub')
  key = ed25519.Ed25519PrivateKey.generate()
  files = (
    (
      private,
      0o600,
      key.private_bytes(
        _ENCODING,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
      ),
    ),
    (
      public,
      0o644,
      key.public_key().public_bytes(
        _ENCODING, serialization.PublicFormat.SubjectPublicKeyInfo
      ),
    ),
  )
  for place, mode, content in files:
    try:
      handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
      with os.fdopen(handle, 'wb') as file:
        os.fchmod(handle, mode)
        file.write(content)
    except FileExistsError as error:
      raise document.CertificateError(
        f'{str(place)!r} must not exist; a key is never replaced. Give another'
        ' name.'
      ) from error
    except OSError as error:
      raise document.CertificateError(
        f'{str(place)!r} must be writable ({error.strerror}).'
      ) from error
  return public


def sign(
  certificate: document.Certificate, key: str | os.PathLike[str]
) -> document.Certificate:
  """Returns a certificate with the signature of a private key file.

  Raises:
    SignatureError: Its digest is not that of its content.
    CertificateError: The file is no Ed25519 private key, or others may read
      it.
  """
  digest = certificate.digest
  if certificate.sealed_digest != digest:
    raise SignatureError(
      'a certificate must be whole to be signed; its digest is another one.'
    )
  private = _private_key(pathlib.Path(key))
  signature = document.Signature(
    public_key=_hex(private.public_key()),
    value=private.sign(_CONTEXT + digest.encode()).hex(),
  )
  return certificate.model_copy(update={'signature': signature})


def problems(
  certificate: document.Certificate,
  *,
  public_key: str | os.PathLike[str] | None = None,
) -> list[str]:
  """Returns what is wrong with the signature, one sentence each.

  Args:
    certificate: Whose signature.
    public_key: File of the key that must have signed it; without one, a
      signature must be that of the key that it names, and may be missing.

  Raises:
    CertificateError: The file is no Ed25519 public key.
  """
  trusted = None if public_key is None else _public_key(public_key)
  signature = certificate.signature
  if signature is None:
    if trusted is None:
      return []
    return ['signature must be there: the certificate is not signed.']
  found = []
  if trusted is not None and signature.public_key != _hex(trusted):
    found.append(
      f'signature must be of key {_hex(trusted)[:16]}, got one of key'
      f' {signature.public_key[:16]}.'
    )
  try:
    named = ed25519.Ed25519PublicKey.from_public_bytes(
      bytes.fromhex(signature.public_key)
    )
    # The digest of what is there, whatever it says of itself.
    named.verify(
      bytes.fromhex(signature.value), _CONTEXT + certificate.digest.encode()
    )
  except (ValueError, exceptions.InvalidSignature):
    found.append(
      'signature must be of this content; the certificate was altered, or the'
      ' signature is of another one.'
    )
  return found


def _private_key(path: pathlib.Path) -> ed25519.Ed25519PrivateKey:
  try:
    mode = stat.S_IMODE(path.stat().st_mode)
    content = path.read_bytes()
  except OSError as error:
    raise document.CertificateError(
      f'private key {str(path)!r} must be a readable file ({error.strerror});'
      ' `dpemb certificate keygen` makes one.'
    ) from error
  if mode & 0o077:
    raise document.CertificateError(
      f'private key {str(path)!r} must be readable by its owner alone, got mode'
      f' {mode:04o}; chmod 600 it.'
    )
  try:
    key = serialization.load_pem_private_key(content, None)
  except (ValueError, TypeError, exceptions.UnsupportedAlgorithm) as error:
    raise document.CertificateError(
      f'{str(path)!r} must be a private key in PEM without a password.'
    ) from error
  if not isinstance(key, ed25519.Ed25519PrivateKey):
    raise document.CertificateError(
      f'private key {str(path)!r} must be an Ed25519 key.'
    )
  return key


def _public_key(path: str | os.PathLike[str]) -> ed25519.Ed25519PublicKey:
  name = os.fspath(path)
  try:
    key = serialization.load_pem_public_key(pathlib.Path(path).read_bytes())
  except OSError as error:
    raise document.CertificateError(
      f'public key {name!r} must be a readable file ({error.strerror}).'
    ) from error
  except (ValueError, exceptions.UnsupportedAlgorithm) as error:
    raise document.CertificateError(
      f'{name!r} must be a public key in PEM (the .pub file).'
    ) from error
  if not isinstance(key, ed25519.Ed25519PublicKey):
    raise document.CertificateError(
      f'public key {name!r} must be an Ed25519 key.'
    )
  return key


def _hex(key: ed25519.Ed25519PublicKey) -> str:
  return key.public_bytes_raw().hex()
