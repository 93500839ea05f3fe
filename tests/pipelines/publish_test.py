"""From stores to a published set: content, guarantee, resume, refusals."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
from dp_accounting import pld
from pyarrow import parquet

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.pipelines import accumulate
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import manifest as manifest_lib
from tff_dpemb.pipelines import synthetic_set
from tff_dpemb.privacy.certificate import build
from tff_dpemb.privacy.certificate import facts
from tff_dpemb.privacy.certificate import verification
from tff_dpemb.privacy.ledger import ledger as ledger_lib
from tff_dpemb.synthesis import sampling

DELTA = 1e-3  # of `call`


def _at(made):
  return pathlib.Path(made.path)


def test_release_is_whole(call, tmp_path, settings):
  found = call()
  embeddings, labels = synthetic_set.read(found.path)
  assert embeddings.shape == (400, 8) and found.examples == 400
  np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
  assert sorted(set(labels.tolist())) == [0, 1, 2, 3] == list(found.classes)
  schema = parquet.read_schema(_at(found) / 'embeddings.parquet')
  assert str(schema.field('label').type) == 'int32'
  assert str(schema.field('embedding').type).startswith('list<')
  assert str(schema.field('embedding').type.value_type) == 'float'

  assert len(call.charged) == 1 and call.charged[0][1] == 'run/synthetic'
  epsilon = pld.PLDAccountant().compose(found.event).get_epsilon(DELTA)
  assert epsilon <= settings.epsilon and found.epsilon <= settings.epsilon
  assert found.epsilon == pytest.approx(epsilon, rel=1e-2)
  manifest = manifest_lib.Manifest.read(_at(found) / 'manifest.json')
  assert manifest == found.manifest
  assert manifest.noise.certifiable is False  # A seed is for tests.
  assert manifest.class_rule == 'declared in synthesis.class_names'
  assert manifest.notes.epsilon_is.startswith('in addition to the training')
  assert [item.outcome for item in manifest.classes] == ['kept'] * 4


def test_certificate_arguments_account_for_every_charge(call):
  found = call()
  arguments = found.certificate_arguments()
  revealed = sum(
    item.times / item.noise_multiplier**2 for item in arguments['queries']
  )
  assert revealed == pytest.approx(found.plan.noise_multiplier**-2)
  assert arguments['fixed_seed'] is True
  assert arguments['covariance_floor'] > 0
  assert arguments['dropped_classes'] == []


def test_a_set_is_certified_by_what_it_says_of_itself(call, tmp_path):
  """The builder takes the arguments, and finds the charges that they name."""
  with ledger_lib.Ledger.open(tmp_path / 'ledger.sqlite') as book:
    names = {'population': 'p', 'run': 'r', 'release': 'r/set'}
    found = call(charge=lambda event, part: book.charge(**names, event=event))
    arguments = found.certificate_arguments()
    assert arguments.pop('fixed_seed') is True  # The test's own noise source.
    certificate = build.for_synthesis(
      charged=facts.Charged(book, **names),
      context=facts.Context(
        simulation=False, data_accesses=found.data_accesses()
      ),
      provenance=facts.Provenance(plan_digest=found.manifest.plan_digest),
      population_size=int(1 / found.delta) - 1,
      delta=found.delta,
      **arguments,
    )
    assert verification.verify(certificate, ledger=book) == []
  assert certificate.mechanism.overcharge == pytest.approx(0, abs=1e-6)
  assert certificate.accounting.epsilon == pytest.approx(
    found.epsilon, rel=1e-3
  )


def test_nothing_restricted_is_published(call):
  found = call()
  assert sorted(item.name for item in _at(found).iterdir()) == [
    'embeddings.parquet',
    'manifest.json',
  ]
  text = json.dumps(found.manifest.to_json())
  assert 'user-' not in text and 'store_digest' not in text


def _files(made):
  return {item.name: item.read_bytes() for item in _at(made).iterdir()}


def test_a_users_own_category_changes_nothing_published(
  call, tmp_path, write_store
):
  # Stores that differ in the vocabulary only: as if one user alone had `a`,
  # which moves the index of every other class.
  found = []
  for names in ((), ('a',)):
    store = tmp_path / f'store-{len(names)}'
    write_store(store, 300, seed=1, first_names=names)
    made = call(
      private_store=store,
      restricted=tmp_path / f'restricted-{len(names)}',
      output=tmp_path / f'synthetic-{len(names)}',
      source=noise.SeededGaussian(0),
    )
    found.append(_files(made))
  assert found[0] == found[1]


def test_labels_are_positions_in_the_declared_set(call, settings):
  names = ('class 3', 'nobody', 'class 0')
  found = call(config=settings.model_copy(update={'class_names': names}))
  assert found.class_names == names
  assert found.classes == (0, 2)
  outcomes = [item.outcome for item in found.manifest.classes]
  assert outcomes == ['kept', 'dropped', 'kept']
  assert found.certificate_arguments()['dropped_classes'] == ['nobody']
  assert sorted(set(synthetic_set.read(found.path)[1].tolist())) == [0, 2]


def test_other_classes_need_another_release(call, settings):
  call()
  other = ('class 3', 'class 2', 'class 1', 'class 0')
  with pytest.raises(
    errors.ClusteringError, match='another `synthesis.release'
  ):
    call(config=settings.model_copy(update={'class_names': other}))


class Certify:
  """Certifies, and looks whether anything is published by then."""

  def __init__(self, output, files=('certificate.json', 'certificate.html')):
    self.calls = []
    self._output = output
    self._files = files

  def __call__(self, release, hashes):
    assert not (self._output / 'manifest.json').exists()
    assert release.certificate_arguments()['queries']
    assert release.path == str(self._output)
    assert len(release.embeddings) == len(release.labels) == release.examples
    self.calls.append(hashes)
    return {name: json.dumps(hashes).encode() for name in self._files}


def test_certificate_appears_with_the_set(call, tmp_path):
  certify = Certify(tmp_path / 'synthetic')
  found = call(certify=certify)
  assert sorted(_files(found)) == [
    'certificate.html',
    'certificate.json',
    'embeddings.parquet',
    'manifest.json',
  ]
  assert storage.read_json(_at(found) / 'certificate.json') == {
    name: storage.sha256_of(_at(found) / name)
    for name in ('embeddings.parquet', 'manifest.json')
  }
  found_again = manifest_lib.Manifest.read(_at(found) / 'manifest.json')
  assert found_again == found.manifest
  before = (_at(found) / 'certificate.json').stat().st_mtime_ns
  call(certify=certify)
  assert len(certify.calls) == 1  # Certified already: left alone.
  assert (_at(found) / 'certificate.json').stat().st_mtime_ns == before


def test_without_its_certificate_a_set_is_published_again(call, tmp_path):
  found = call()
  call(certify=lambda release, hashes: {'certificate.json': b'{}'})
  assert (_at(found) / 'certificate.json').read_bytes() == b'{}'
  (_at(found) / 'embeddings.parquet').write_bytes(b'damaged')
  call(certify=lambda release, hashes: {'certificate.json': b'{"a": 1}'})
  synthetic_set.read(found.path)
  assert (_at(found) / 'certificate.json').read_bytes() == b'{"a": 1}'
  assert len(call.charged) == 1


def test_no_certificate_no_set(call, tmp_path):
  def fail(release, hashes):
    raise PermissionError('no certificate')

  with pytest.raises(PermissionError):
    call(certify=fail)
  for files in ((), ('other',), ('certificate.json', 'manifest.json')):
    with pytest.raises(errors.ClusteringError, match='certify must return'):
      call(certify=Certify(tmp_path / 'synthetic', files))
  with pytest.raises(errors.ClusteringError, match='certify must return'):
    call(certify=Certify(tmp_path / 'synthetic', ('certificate.json', '../x')))
  assert not (tmp_path / 'synthetic').exists()
  assert not list(tmp_path.glob('.synthetic*'))


def test_equals_the_function_on_the_whole_array(
  call, stores, tmp_path, encoder, settings
):
  found = call()
  arrays = {
    name: embed.embed(
      store=stores / name,
      export='model-1',
      label='category',
      directory=tmp_path / 'restricted' / directory,
      open_export=encoder,
    ).read_all()
    for name, directory in (
      ('private', 'embeddings'),
      ('public', 'public-embeddings'),
    )
  }
  x, labels, _ = arrays['public']
  projection = projection_lib.fit(x, 5, public_labels=labels)
  mixture = mixture_lib.fit_array(
    found.plan, projection, *arrays['private'], source=noise.SeededGaussian(0)
  )
  expected, _ = sampling.sample(
    mixture,
    projection,
    examples_per_class=settings.examples_per_class,
    seed=sampling.seed_of('run/synthetic'),
  )
  np.testing.assert_array_equal(synthetic_set.read(found.path)[0], expected)


def test_same_call_returns_the_same_release(call):
  first = call()
  stamp = (_at(first) / 'manifest.json').stat().st_mtime_ns
  again = call(source=noise.SeededGaussian(1))  # Would draw other noise.
  assert again.manifest == first.manifest
  assert (_at(first) / 'manifest.json').stat().st_mtime_ns == stamp
  assert len(call.charged) == 1


def test_crash_between_passes_resumes_with_the_noise_drawn(
  call, tmp_path, monkeypatch
):
  whole = synthetic_set.read(call(restricted=tmp_path / 'other').path)[0]
  original = accumulate.accumulate
  calls = []

  def crash_at_the_second(*args, **kwargs):
    calls.append(1)
    if len(calls) == 2:
      raise KeyboardInterrupt
    return original(*args, **kwargs)

  source = noise.SeededGaussian(0)
  with monkeypatch.context() as patch:
    patch.setattr(accumulate, 'accumulate', crash_at_the_second)
    with pytest.raises(KeyboardInterrupt):
      call(source=source)
  resumed = call(source=source)
  assert len(call.charged) == 2  # One for each of the two releases.
  assert resumed.manifest.charges == ('plan',)
  np.testing.assert_array_equal(synthetic_set.read(resumed.path)[0], whole)


def test_refused_charge_publishes_nothing(call, tmp_path):
  def refuse(event, name):
    raise PermissionError('spent')

  with pytest.raises(PermissionError):
    call(charge=refuse)
  assert not (tmp_path / 'synthetic').exists()
  assert not list((tmp_path / 'restricted').rglob('noisy-*'))


def test_id_cannot_be_used_for_other_settings(call, settings):
  call()
  with pytest.raises(
    errors.ClusteringError, match='another `synthesis.release'
  ):
    call(config=settings.model_copy(update={'epsilon': 2.0}))


def test_production_noise_is_certifiable(call):
  found = call(source=noise.DiscreteGaussian(), release='other')
  assert found.manifest.noise.certifiable is True
  assert 'OpenDP' in found.manifest.noise.source


def test_altered_set_is_found(call):
  found = call()
  (_at(found) / 'embeddings.parquet').write_bytes(b'x')
  with pytest.raises(storage.ArtifactError, match='SHA-256'):
    synthetic_set.read(found.path)


_THREADS = ('--direct_running_mode=multi_threading', '--direct_num_workers=3')


def test_a_bucket_gets_the_bytes_that_a_disk_gets(call, tmp_path, memory):
  """Embeddings, sums and the set: all that workers write and read."""
  other = call(
    restricted=tmp_path / 'other',
    shared='memory://bucket/run',
    output='memory://bucket/synthetic',
    certify=lambda release, hashes: {'certificate.json': b'{}'},
    pipeline_options=_THREADS,
  )
  local = call(certify=lambda release, hashes: {'certificate.json': b'{}'})
  assert other.manifest == local.manifest
  bucket = memory.objects
  for root, there in (
    (tmp_path / 'restricted', 'memory://bucket/run'),
    (tmp_path / 'synthetic', 'memory://bucket/synthetic'),
  ):
    ours = {
      f'{there}/{path.relative_to(root)}': path.read_bytes()
      for path in root.rglob('*')
      if path.is_file()
    }
    log = {name for name in ours if '/release-' in name and 'sum' not in name}
    log -= {name for name in log if 'rows_of_user' in name}
    assert {n for n in bucket if n.startswith(there)} == set(ours) - log
    for name in set(ours) - log:
      assert bucket[name] == ours[name], name
  # What was charged and drawn is on the disk, and synced, for both.
  logs = [
    {path.name: path.read_bytes() for path in (tmp_path / name).rglob('*.json')}
    for name in ('other', 'restricted')
  ]
  assert 'charges.json' in logs[0]
  assert {n: logs[0][n] for n in logs[0] if n != 'manifest.json'} == {
    n: logs[1][n] for n in logs[1] if n != 'manifest.json'
  }
  np.testing.assert_array_equal(
    synthetic_set.read(other.path)[0], synthetic_set.read(local.path)[0]
  )
  assert len(memory.threads) > 1  # Workers wrote, not the driver alone.


def test_a_release_resumes_from_a_bucket(call, tmp_path, memory):
  arguments = dict(
    shared='memory://bucket/run',
    output='memory://bucket/synthetic',
    certify=lambda release, hashes: {'certificate.json': b'{}'},
  )
  first = call(**arguments)
  before = dict(memory.objects)
  again = call(**arguments, source=noise.SeededGaussian(1))
  assert again.manifest == first.manifest
  assert memory.objects == before
  # A set whose manifest never came is none: it is written again.
  del memory.objects['memory://bucket/synthetic/manifest.json']
  call(**arguments)
  assert memory.objects == before
  assert len(call.charged) == 1


def test_requests_that_cannot_be_kept_are_refused(call):
  call()
  # A lost log would let noise be drawn again that nobody has charged.
  with pytest.raises(
    errors.ClusteringError, match='restricted must be a local'
  ):
    dataclasses.replace(call.request, restricted='memory://bucket/run')
  with pytest.raises(errors.ClusteringError, match='release must be an id'):
    dataclasses.replace(call.request, release='')
