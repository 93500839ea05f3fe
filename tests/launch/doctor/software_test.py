import importlib.metadata
import pathlib
import sys
import tomllib

import pytest

from launch.doctor import software

_ROOT = pathlib.Path(__file__).resolve().parents[3]


def _versions(**installed):
  def version_of(name):
    try:
      return installed[name.replace('-', '_')]
    except KeyError:
      raise importlib.metadata.PackageNotFoundError(name) from None

  return version_of


class TestPackages:
  def test_right_versions(self):
    (finding,) = software.check_packages(
      ['numpy>=1.26,<2', 'other==1; python_version < "3"'],
      version_of=_versions(numpy='1.26.4'),
    )
    assert (finding.status, finding.detail) == ('ok', '1 at their versions')

  @pytest.mark.parametrize(
    ('requirement', 'installed', 'detail'),
    [
      ('jaxlib==0.4.13', {}, 'missing; needed ==0.4.13'),
      ('numpy>=1.26,<2', {'numpy': '2.1.0'}, '2.1.0; needed <2,>=1.26'),
      (
        'tensorflow-federated==0.87.0',
        {'tensorflow_federated': '0.17.0'},
        'falls back to an old TFF',
      ),
    ],
  )
  def test_wrong_versions(self, requirement, installed, detail):
    (finding,) = software.check_packages(
      [requirement], version_of=_versions(**installed)
    )
    assert finding.status == 'FAULT'
    assert detail in finding.detail
    assert 'uv sync --frozen' in finding.remedy

  def test_packaging_itself_is_missing(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'packaging', None)
    (finding,) = software.check_packages(['numpy'])
    assert finding.detail == 'packaging is not installed'

  def test_forced_versions_are_those_of_the_project(self):
    project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
    overrides = project['tool']['uv']['override-dependencies']
    assert set(software.FORCED) <= set(overrides)

  def test_required_versions_of_the_tree(self):
    required = software.required_versions()
    assert 'tensorflow-federated==0.87.0' in required
    assert 'jaxlib==0.4.13' in required

  def test_required_versions_of_an_installed_copy(self, tmp_path, monkeypatch):
    monkeypatch.setattr(
      importlib.metadata,
      'requires',
      lambda name: ['numpy<2', 'x==1; extra == "gpu"'],
    )
    required = software.required_versions(tmp_path)
    assert required == ['numpy<2', *software.FORCED]


class TestPython:
  def test_python(self):
    assert software.check_python((3, 11, 7)).status == 'ok'
    assert 'python install 3.11' in software.check_python((3, 12, 0)).remedy


class TestWorker:
  def test_missing_then_not_executable_then_good(self, tmp_path):
    assert 'is missing' in software.check_worker(tmp_path).detail
    binary = tmp_path / 'data' / 'worker_binary'
    binary.parent.mkdir()
    binary.write_bytes(bytes(2**20))
    binary.chmod(0o644)
    assert software.check_worker(tmp_path).remedy.startswith('chmod +x')
    binary.chmod(0o755)
    assert software.check_worker(tmp_path).detail == '1 MiB binary'


class TestImports:
  def test_good(self):
    finding = software.check_imports('print("2.14.1 0.87.0 0")')
    assert finding.status == 'ok'
    assert finding.detail.startswith('2.14.1 0.87.0 0 GPUs')

  def test_broken(self):
    finding = software.check_imports('import no_such_module_here')
    assert finding.status == 'FAULT'
    assert 'no_such_module_here' in finding.detail
