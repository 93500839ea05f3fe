"""From stores to a published set: content, guarantee, resume, refusals."""

import json
import shutil

import numpy as np
import pytest
from dp_accounting import pld
from pyarrow import parquet

from tff_dpemb.artifacts import storage
from tff_dpemb.clustering import errors
from tff_dpemb.clustering import mixture as mixture_lib
from tff_dpemb.clustering import noise
from tff_dpemb.clustering import projection as projection_lib
from tff_dpemb.evaluation import classification
from tff_dpemb.pipelines import accumulate
from tff_dpemb.pipelines import assessment
from tff_dpemb.pipelines import embed
from tff_dpemb.pipelines import publish
from tff_dpemb.synthesis import sampling

DELTA = 1e-3


@pytest.fixture(scope='session')
def embedded(stores, tmp_path_factory, encoder):
  """Returns a restricted folder in which the stores are embedded already."""
  restricted = tmp_path_factory.mktemp('embedded')
  for name, directory in (
    ('private', 'embeddings'),
    ('public', 'public-embeddings'),
  ):
    embed.embed(
      store=stores / name,
      export='model-1',
      label='category',
      directory=restricted / directory,
      open_export=encoder,
    )
  return restricted


@pytest.fixture
def call(stores, tmp_path, encoder, settings, embedded):
  charged = []

  def run(**overrides):
    restricted = overrides.get('restricted', tmp_path / 'restricted')
    if not restricted.exists():
      shutil.copytree(embedded, restricted)
    arguments = dict(
      private_store=stores / 'private',
      public_store=stores / 'public',
      export='model-1',
      output=tmp_path / 'synthetic',
      restricted=tmp_path / 'restricted',
      config=settings,
      delta=DELTA,
      charge=lambda event, name: charged.append((event, name)),
      release='run/synthetic',
      open_export=encoder,
      source=noise.SeededGaussian(0),
    )
    return publish.run(**{**arguments, **overrides})

  run.charged = charged
  return run


def test_release_is_whole(call, tmp_path, settings):
  found = call()
  embeddings, labels = publish.read(found.path)
  assert embeddings.shape == (400, 8) and found.examples == 400
  np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
  assert sorted(set(labels.tolist())) == [0, 1, 2, 3] == list(found.classes)
  schema = parquet.read_schema(found.path / 'embeddings.parquet')
  assert str(schema.field('label').type) == 'int32'
  assert str(schema.field('embedding').type).startswith('list<')
  assert str(schema.field('embedding').type.value_type) == 'float'

  assert len(call.charged) == 1 and call.charged[0][1] == 'run/synthetic'
  epsilon = pld.PLDAccountant().compose(found.event).get_epsilon(DELTA)
  assert epsilon <= settings.epsilon and found.epsilon <= settings.epsilon
  assert found.epsilon == pytest.approx(epsilon, rel=1e-2)
  manifest = storage.read_json(found.path / 'manifest.json')
  assert manifest == found.manifest
  assert manifest['certifiable'] is False  # A seed is for tests.
  assert manifest['class_rule'] == 'declared in synthesis.class_names'
  assert manifest['epsilon_is'].startswith('in addition to the training')
  assert [item['outcome'] for item in manifest['classes']] == ['kept'] * 4


def test_certificate_arguments_account_for_every_charge(call):
  found = call()
  arguments = found.certificate_arguments()
  revealed = sum(
    item['times'] / item['noise_multiplier'] ** 2
    for item in arguments['queries']
  )
  assert revealed == pytest.approx(found.plan.noise_multiplier**-2)
  assert arguments['fixed_seed'] is True
  assert arguments['covariance_floor'] > 0
  assert arguments['dropped_classes'] == []


def test_nothing_restricted_is_published(call):
  found = call()
  assert sorted(item.name for item in found.path.iterdir()) == [
    'embeddings.parquet',
    'manifest.json',
  ]
  text = json.dumps(found.manifest)
  assert 'user-' not in text and 'store_digest' not in text


def _files(path):
  return {item.name: item.read_bytes() for item in path.iterdir()}


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
    found.append(_files(made.path))
  assert found[0] == found[1]


def test_labels_are_positions_in_the_declared_set(call, settings):
  names = ('class 3', 'nobody', 'class 0')
  found = call(config=settings.model_copy(update={'class_names': names}))
  assert found.class_names == names
  assert found.classes == (0, 2)
  outcomes = [item['outcome'] for item in found.manifest['classes']]
  assert outcomes == ['kept', 'dropped', 'kept']
  assert found.certificate_arguments()['dropped_classes'] == ['nobody']
  assert sorted(set(publish.read(found.path)[1].tolist())) == [0, 2]


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
    assert release.path == self._output
    assert len(release.embeddings) == len(release.labels) == release.examples
    self.calls.append(hashes)
    return {name: json.dumps(hashes).encode() for name in self._files}


def test_certificate_appears_with_the_set(call, tmp_path):
  certify = Certify(tmp_path / 'synthetic')
  found = call(certify=certify)
  assert sorted(_files(found.path)) == [
    'certificate.html',
    'certificate.json',
    'embeddings.parquet',
    'manifest.json',
  ]
  assert storage.read_json(found.path / 'certificate.json') == {
    name: storage.sha256_of(found.path / name)
    for name in ('embeddings.parquet', 'manifest.json')
  }
  assert storage.read_json(found.path / 'manifest.json') == found.manifest
  before = (found.path / 'certificate.json').stat().st_mtime_ns
  call(certify=certify)
  assert len(certify.calls) == 1  # Certified already: left alone.
  assert (found.path / 'certificate.json').stat().st_mtime_ns == before


def test_without_its_certificate_a_set_is_published_again(call, tmp_path):
  found = call()
  call(certify=lambda release, hashes: {'certificate.json': b'{}'})
  assert (found.path / 'certificate.json').read_bytes() == b'{}'
  (found.path / 'embeddings.parquet').write_bytes(b'damaged')
  call(certify=lambda release, hashes: {'certificate.json': b'{"a": 1}'})
  publish.read(found.path)
  assert (found.path / 'certificate.json').read_bytes() == b'{"a": 1}'
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
  np.testing.assert_array_equal(publish.read(found.path)[0], expected)


def test_same_call_returns_the_same_release(call):
  first = call()
  stamp = (first.path / 'manifest.json').stat().st_mtime_ns
  again = call(source=noise.SeededGaussian(1))  # Would draw other noise.
  assert again.manifest == first.manifest
  assert (first.path / 'manifest.json').stat().st_mtime_ns == stamp
  assert len(call.charged) == 1


def test_crash_between_passes_resumes_with_the_noise_drawn(
  call, tmp_path, monkeypatch
):
  whole = publish.read(call(restricted=tmp_path / 'other').path)[0]
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
  assert resumed.manifest['charges'] == ['plan']
  np.testing.assert_array_equal(publish.read(resumed.path)[0], whole)


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
  assert found.manifest['certifiable'] is True
  assert 'OpenDP' in found.manifest['noise']


def test_altered_set_is_found(call):
  found = call()
  (found.path / 'embeddings.parquet').write_bytes(b'x')
  with pytest.raises(storage.ArtifactError, match='SHA-256'):
    publish.read(found.path)


def test_synthetic_set_teaches_real_classes(
  call, stores, tmp_path, encoder, settings
):
  found = call()
  comparison = assessment.assess(
    synthetic=found,
    private_store=stores / 'private',
    held_out_store=stores / 'test',
    export='model-1',
    restricted=tmp_path / 'restricted',
    config=settings,
    open_export=encoder,
  )
  assert comparison.accuracy_on_real.value > 0.9
  assert comparison.share_of_real >= 0.8
  assert comparison.chance < 0.5 and comparison.uniform_chance == 0.25
  assert comparison.examples == 61 * 4


def test_assessment_goes_by_name_before_anything_is_published(
  call, stores, tmp_path, encoder, settings, write_store
):
  # The held-out store numbers its classes otherwise, and one class is no
  # longer declared.
  write_store(tmp_path / 'held-out', 60, seed=3, first_names=('a', 'b'))
  config = settings.model_copy(
    update={'class_names': ('class 3', 'class 0', 'class 2')}
  )
  found = []

  def certify(release, hashes):
    assert not release.path.exists()
    found.append(
      assessment.assess(
        synthetic=release,
        private_store=stores / 'private',
        held_out_store=tmp_path / 'held-out',
        export='model-1',
        restricted=tmp_path / 'restricted',
        config=config,
        open_export=encoder,
      )
    )
    return {publish.CERTIFICATE: b'{}'}

  call(config=config, certify=certify)
  (comparison,) = found
  assert comparison.accuracy.value > 0.8
  assert comparison.accuracy_on_real.value > 0.9
  assert comparison.uniform_chance == pytest.approx(1 / 3)
  assert 0 < comparison.examples < 61 * 4


def test_what_engineers_see_is_named():
  text = ' '.join(assessment.SEEN_WITHOUT_PROTECTION)
  for figure in classification.RESTRICTED:
    assert figure in text
  assert 'exact sums' in text and 'embeddings' in text
