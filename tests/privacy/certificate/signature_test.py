"""Signatures: by the right key, of this content, or not at all."""

import pathlib
import stat

import pytest

from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import signature as signature_lib

_KEPT = pathlib.Path(__file__).parents[1] / 'kept'
_CONTENT = document.read(_KEPT / 'certificate_poisson.json')
_OTHER = _CONTENT.model_copy(update={'run': 'other'})


@pytest.fixture(name='key')
def _key(tmp_path):
  signature_lib.make_key(tmp_path / 'key')
  return tmp_path / 'key'


def _problems(content, key=None):
  public = None if key is None else f'{key}.pub'
  return signature_lib.problems(content, public_key=public)


def test_a_key_is_secret_and_never_replaced(key):
  assert stat.S_IMODE(key.stat().st_mode) == 0o600
  public = key.with_name('key.pub')
  assert stat.S_IMODE(public.stat().st_mode) == 0o644
  assert 'PRIVATE' not in public.read_text()
  before = key.read_bytes()
  with pytest.raises(document.CertificateError, match='never replaced'):
    signature_lib.make_key(key)
  assert key.read_bytes() == before


def test_a_signature_is_of_the_digest_and_outside_it(key):
  signed = signature_lib.sign(_CONTENT, key)
  assert signed.digest == _CONTENT.digest
  assert signed.sealed() == signed
  assert _problems(signed, key) == []
  assert _problems(signed) == []
  assert signature_lib.sign(signed, key) == signed  # Ed25519 has no chance.


def test_a_missing_signature_is_found_where_a_key_is_given(key):
  assert _problems(_CONTENT) == []
  (problem,) = _problems(_CONTENT, key)
  assert 'is not signed' in problem


def test_another_key_is_found(key, tmp_path):
  signature_lib.make_key(tmp_path / 'other')
  signed = signature_lib.sign(_CONTENT, tmp_path / 'other')
  assert _problems(signed) == []
  (problem,) = _problems(signed, key)
  assert 'must be of key' in problem
  # Naming the right key does not make it that key's.
  own = signature_lib.sign(_CONTENT, key).signature.public_key
  forged = signed.signature.model_copy(update={'public_key': own})
  (problem,) = _problems(signed.model_copy(update={'signature': forged}), key)
  assert 'of this content' in problem


@pytest.mark.parametrize('reseal', [False, True])
def test_altered_content_is_found(key, reseal):
  signed = signature_lib.sign(_CONTENT, key)
  signed = signed.model_copy(update={'run': 'other'})
  if reseal:
    signed = signed.sealed()
  for given in (key, None):
    (problem,) = _problems(signed, given)
    assert 'was altered' in problem


def test_a_signature_of_another_certificate_is_found(key):
  other = signature_lib.sign(_OTHER.sealed(), key)
  moved = _CONTENT.model_copy(update={'signature': other.signature})
  (problem,) = _problems(moved, key)
  assert 'of another one' in problem


def test_what_is_not_whole_is_not_signed(key):
  with pytest.raises(signature_lib.SignatureError, match='must be whole'):
    signature_lib.sign(_OTHER, key)


def test_a_key_that_others_may_read_is_refused(key):
  key.chmod(0o640)
  with pytest.raises(document.CertificateError, match='chmod 600'):
    signature_lib.sign(_CONTENT, key)


def test_files_that_are_no_keys_are_refused(key, tmp_path):
  wrong = tmp_path / 'wrong'
  wrong.write_text('no key at all')
  wrong.chmod(0o600)
  for place in (wrong, f'{key}.pub'):
    if place != wrong:
      key.with_name('key.pub').chmod(0o600)
    with pytest.raises(document.CertificateError, match='must be a priv'):
      signature_lib.sign(_CONTENT, place)
  for place in (wrong, key):
    with pytest.raises(document.CertificateError, match='a public key'):
      signature_lib.problems(_CONTENT, public_key=place)
  for ask in (
    lambda: signature_lib.sign(_CONTENT, tmp_path / 'none'),
    lambda: signature_lib.problems(_CONTENT, public_key=tmp_path / 'none'),
  ):
    with pytest.raises(document.CertificateError, match='readable file'):
      ask()


def test_keys_of_another_kind_are_refused(tmp_path):
  from cryptography.hazmat.primitives import serialization
  from cryptography.hazmat.primitives.asymmetric import ec

  other = ec.generate_private_key(ec.SECP256R1())
  private, public = tmp_path / 'ec', tmp_path / 'ec.pub'
  private.write_bytes(
    other.private_bytes(
      serialization.Encoding.PEM,
      serialization.PrivateFormat.PKCS8,
      serialization.NoEncryption(),
    )
  )
  private.chmod(0o600)
  public.write_bytes(
    other.public_key().public_bytes(
      serialization.Encoding.PEM,
      serialization.PublicFormat.SubjectPublicKeyInfo,
    )
  )
  with pytest.raises(document.CertificateError, match='Ed25519'):
    signature_lib.sign(_CONTENT, private)
  with pytest.raises(document.CertificateError, match='Ed25519'):
    signature_lib.problems(_CONTENT, public_key=public)
