"""The export carries the certificate of its training, or is not made."""

import pytest

from launch.pages import certificate_page
from launch.run import audits
from launch.run import release
from launch.run import stamps
from launch.steps import export
from tff_dpemb.export import registry
from tff_dpemb.privacy.certificate import document
from tff_dpemb.privacy.certificate import verification


def test_a_version_its_certificate_and_the_record_in_the_ledger(trained):
  export.export(trained)
  opened = registry.open_export(trained.paths.export)
  done = stamps.read_any(trained.paths.export)
  assert (done['version'], done['model_digest']) == (1, opened.digest)
  certified = document.read(opened.path / 'certificate.json')
  assert verification.verify(opened.path / 'certificate.json') == []
  assert verification.verify(certified, ledger=trained.ledger) == []
  assert certified.mechanism.draws == 2
  assert certified.provenance.data_digest == release.blinded(
    trained, trained.private.digest
  )
  page = (opened.path / release.PAGE).read_text()
  assert page == certificate_page.to_html(certified)
  (record,) = trained.ledger.entries(kind='release')
  assert record.release == trained.model_release
  export.export(trained)  # Done, from the same inputs.
  assert registry.versions(trained.paths.export) == [1]


def test_an_audit_that_contradicts_leaves_no_version(trained):
  path = audits.audit_path(trained.paths)
  audits.write(path, trained.paths, 'training', {'verdict': 'VIOLATION'})
  with pytest.raises(stamps.StageError, match='nothing was published'):
    export.export(trained)
  assert registry.versions(trained.paths.export) == []
  assert trained.ledger.entries(kind='release') == []


def test_a_ledger_of_other_draws_leaves_no_version(trained):
  trained.ledger.charge(
    population=trained.config.privacy.population,
    release=trained.model_release,
    run='some',
    event=trained.plan.round_event(),
    round_number=7,
  )
  with pytest.raises(document.CertificateError, match='and no other'):
    export.export(trained)
  assert registry.versions(trained.paths.export) == []
