import json

import pytest

from tff_dpemb import config


@pytest.fixture
def page(tmp_path):
  def write(text, name='demo.toml'):
    path = tmp_path / name
    path.write_text(text, encoding='utf-8')
    return path

  return write


class TestLoad:
  def test_defaults_and_the_name_of_the_file(self, page):
    run = config.load(page('[training]\nrounds = 7\n'))
    assert run.name == 'demo'
    assert run.training.rounds == 7
    assert run.privacy.virtual_clients == config.PrivacyConfig().virtual_clients

  def test_overrides_are_typed(self, page):
    run = config.load(
      page('name = "a"\n'),
      overrides=(
        'training.rounds=10',
        'privacy.noise_multiplier = 0.5',
        'data.directory=/data/faces',
        'evaluation.false_accept_rates=[0.01]',
        'pretraining.enabled=false',
      ),
    )
    assert run.training.rounds == 10
    assert run.privacy.noise_multiplier == 0.5
    assert run.data.directory == '/data/faces'
    assert run.evaluation.false_accept_rates == (0.01,)
    assert run.pretraining.enabled is False

  def test_later_override_wins(self, page):
    run = config.load(
      page('[training]\nrounds = 1\n'),
      overrides=('training.rounds=2', 'training.rounds=3'),
    )
    assert run.training.rounds == 3

  @pytest.mark.parametrize(
    ('text', 'match'),
    [
      ('[training]\nround = 5', "unknown key 'training.round'.*'training.rou"),
      ('[trainning]\nrounds = 5', "unknown key 'trainning'.*'training'"),
      ('[training]\nrounds = 0', 'training.rounds must be.*got 0'),
      ('[training]\nrounds = "many"', 'training.rounds must be.*integer'),
      ('[training]\nserver_learning_rate = nan', 'must be a finite number'),
      ('[privacy]\nnoise_multiplier = inf', 'must be a finite number'),
      ('[privacy]\nnoise_multiplier = -1', 'noise_multiplier must be'),
      ('[privacy]\nclipping = "none"', "must be 'adaptive' or 'fixed'"),
      ('[privacy]\nsampler = "all"', "must be 'poisson', 'fixed-size' or"),
      ('[privacy]\nnoise = "white"', "must be 'independent', 'tree', 'banded'"),
      ('[privacy]\nadjacency = "none"', 'privacy.adjacency must be'),
      ('[privacy]\nmin_separation = 0', 'privacy.min_separation must be'),
      ('[privacy]\nmax_participations = 0', 'max_participations must be'),
      ('[privacy]\nrestart_every = -1', 'privacy.restart_every must be'),
      ('[privacy]\nblt_buffers = 6', 'privacy.blt_buffers must be'),
      ('[privacy]\nbands = 33', 'privacy.bands must be'),
      ('[privacy]\nbudget_epsilon = inf', 'must be a finite number'),
      ('name = "../up"', 'name must be'),
      ('[privacy]\ndelta = 1.0', 'privacy.delta must be'),
      ('rounds = [', 'must be TOML'),
    ],
  )
  def test_illegal_page(self, page, text, match):
    with pytest.raises(config.ConfigError, match=match):
      config.load(page(text))

  @pytest.mark.parametrize(
    ('override', 'match'),
    [
      ('training.rounds', 'must be section.key=value'),
      ('=3', 'must be section.key=value'),
      ('training..rounds=3', 'must be section.key=value'),
      ('name.x=3', "'name' must be a section"),
      ('training.rouns=3', "nearest right one is 'training.rounds'"),
    ],
  )
  def test_illegal_override(self, page, override, match):
    with pytest.raises(config.ConfigError, match=match):
      config.load(page('name = "a"'), overrides=(override,))

  def test_missing_file(self, tmp_path):
    with pytest.raises(config.ConfigError, match='must be a readable file'):
      config.load(tmp_path / 'none.toml')

  def test_directory_and_binary_file(self, tmp_path):
    with pytest.raises(config.ConfigError, match='must be a readable file'):
      config.load(tmp_path)
    binary = tmp_path / 'x.toml'
    binary.write_bytes(b'\xff\xfe\x00')
    with pytest.raises(config.ConfigError, match='must be TOML'):
      config.load(binary)

  def test_every_fault_is_named(self, page):
    with pytest.raises(config.ConfigError) as caught:
      config.load(page('[training]\nrounds = 0\nround = 1\n'))
    assert 'training.rounds' in str(caught.value)
    assert "'training.round'" in str(caught.value)
    assert '\n' not in str(caught.value)


class TestRunConfig:
  def test_is_frozen(self):
    run = config.RunConfig(name='a')
    with pytest.raises(ValueError, match='frozen'):
      run.name = 'b'

  def test_json_round_trip(self):
    run = config.RunConfig(name='a')
    again = config.from_mapping(json.loads(run.model_dump_json()))
    assert again == run
    assert again.digest() == run.digest()

  def test_digest_of_the_page_ignores_where_rounds_run(self):
    run = config.RunConfig(name='a')
    other = config.RunConfig(
      name='a', runtime=config.RuntimeConfig(executor='workers', processes=2)
    )
    assert run.digest() == other.digest()
    assert run.digest('runtime') != other.digest('runtime')

  def test_digest_of_a_section_ignores_the_others(self):
    run = config.RunConfig(name='a')
    other = config.from_mapping({'name': 'b', 'serving': {'neighbours': 3}})
    assert run.digest('training', 'privacy') == other.digest(
      'training', 'privacy'
    )
    assert run.digest() != other.digest()
    assert run.digest('serving') != other.digest('serving')
    assert len(run.digest()) == 64

  @pytest.mark.parametrize('bad', [float('nan'), float('inf')])
  @pytest.mark.parametrize(
    ('section', 'model'),
    [
      ('training', config.TrainingConfig),
      ('privacy', config.PrivacyConfig),
      ('pretraining', config.PretrainingConfig),
      ('synthesis', config.SynthesisConfig),
      ('export', config.ExportConfig),
      ('model', config.ModelConfig),
    ],
  )
  def test_every_number_of_a_section_is_finite(self, section, model, bad):
    names = [
      name
      for name in model.model_fields
      if not isinstance(getattr(model(), name), (str, tuple))
    ]
    assert names
    for name in names:
      with pytest.raises(config.ConfigError, match=name):
        config.from_mapping({'name': 'a', section: {name: bad}})


def test_relative_paths_are_relative_to_the_page(tmp_path, monkeypatch):
  folder = tmp_path / 'pages'
  folder.mkdir()
  page = folder / 'some.toml'
  page.write_text(
    '[data]\ndirectory = "../data"\n'
    '[privacy]\nledger = "ledger.sqlite"\n'
    '[runtime]\ntls_authority = "ca.pem"\ntls_certificate = "/etc/c.pem"\n'
    'tls_key = "k.pem"\n'
  )
  monkeypatch.chdir(tmp_path)
  for path in (page, 'pages/some.toml'):
    found = config.load(path)
    assert found.data.directory == str(tmp_path / 'data')
    assert found.privacy.ledger == str(folder / 'ledger.sqlite')
    assert found.runtime.tls_authority == str(folder / 'ca.pem')
    assert found.runtime.tls_certificate == '/etc/c.pem'
  page.write_text('[privacy]\nledger = "postgresql://host/ledger"\n')
  found = config.load(page, overrides=['data.directory=here'])
  assert found.privacy.ledger == 'postgresql://host/ledger'
  assert found.data.directory == 'here'  # A shell's words, from where it is.
