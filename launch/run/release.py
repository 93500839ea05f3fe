"""A release: what is certified and recorded before it becomes visible."""

import hmac
import secrets
from typing import Any

from launch.run import audits as run_audits
from launch.run import opened
from launch.run import revision
from launch.run import stamps
from tff_dpemb.artifacts import storage
from tff_dpemb.privacy.certificate import against_ledger
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import facts

PAGE = 'certificate.html'


def charged(run: opened.OpenRun, release: str) -> facts.Charged:
  """Returns where the draws of a release were charged."""
  return facts.Charged(
    run.ledger, run.config.privacy.population, run.config.name, release
  )


def provenance(
  run: opened.OpenRun, *, private_digest: str, **of_artefact: Any
) -> facts.Provenance:
  """Returns from what a release was made; the rest is of its artefact."""
  return facts.Provenance(
    config_digest=run.config.digest(),
    code_revision=revision.code_revision(),
    data_digest=blinded(run, private_digest),
    lock_digest=revision.lock_digest(),
    **of_artefact,
  )


def record(
  run: opened.OpenRun, certificate: document.Certificate, digest: str
) -> None:
  """Records that an artefact leaves, with the certificate that it leaves with."""
  run.ledger.record_release(
    population=run.config.privacy.population,
    release=certificate.release,
    run=run.config.name,
    digest=digest,
    config_digest=run.config.digest(),
    code_revision=revision.code_revision(),
    details={against_ledger.CERTIFICATE: certificate.sealed_digest},
  )


def audits(run: opened.OpenRun, what: str) -> list[dict[str, Any]]:
  """Returns the audit that was made before this release, if one was.

  Raises:
    StageError: The audit contradicts the claim; nothing may be published.
  """
  found = run_audits.for_certificate(run.paths, what)
  if found is None:
    return []
  if found['verdict'] != 'consistent':
    raise stamps.StageError(
      f'the {what} audit of run {run.config.name!r} must be consistent with the'
      f' claim, got {found["verdict"]!r}; nothing was published. See'
      f' {str(run_audits.audit_path(run.paths))!r}.'
    )
  return [found]


def blinded(run: opened.OpenRun, digest: str) -> str:
  """Returns a digest of private data that only its owner can check.

  The plain one would tell who knows all users but one whether a guess of that
  one's images is right. The key stays in the restricted folder.
  """
  key = storage.read_or_make_secret(
    run.paths.make_restricted() / 'provenance.key',
    lambda: secrets.token_bytes(32),
  )
  return hmac.digest(key, digest.encode(), 'sha256').hex()
