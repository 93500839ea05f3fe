import importlib.metadata
import json
import pathlib
import sys
import tomllib

import pytest

from launch import cli
from launch.doctor import checks

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
    (finding,) = checks.check_packages(
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
    (finding,) = checks.check_packages(
      [requirement], version_of=_versions(**installed)
    )
    assert finding.status == 'FAULT'
    assert detail in finding.detail
    assert 'uv sync --frozen' in finding.remedy

  def test_packaging_itself_is_missing(self, monkeypatch):
    monkeypatch.setitem(sys.modules, 'packaging', None)
    (finding,) = checks.check_packages(['numpy'])
    assert finding.detail == 'packaging is not installed'

  def test_forced_versions_are_those_of_the_project(self):
    project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())
    overrides = project['tool']['uv']['override-dependencies']
    assert set(checks.FORCED) <= set(overrides)

  def test_required_versions_of_the_tree(self):
    required = checks.required_versions()
    assert 'tensorflow-federated==0.87.0' in required
    assert 'jaxlib==0.4.13' in required

  def test_required_versions_of_an_installed_copy(self, tmp_path, monkeypatch):
    monkeypatch.setattr(
      importlib.metadata,
      'requires',
      lambda name: ['numpy<2', 'x==1; extra == "gpu"'],
    )
    required = checks.required_versions(tmp_path)
    assert required == ['numpy<2', *checks.FORCED]


class TestMachine:
  def test_python(self):
    assert checks.check_python((3, 11, 7)).status == 'ok'
    assert 'python install 3.11' in checks.check_python((3, 12, 0)).remedy

  @pytest.mark.parametrize(
    ('machine', 'detail'),
    [
      ({'system': 'Darwin', 'machine': 'arm64'}, 'Linux x86-64 only'),
      ({'machine': 'aarch64'}, 'Linux x86-64 only'),
      ({'glibc': '2.28'}, 'glibc 2.28; at least 2.31'),
      ({'glibc': ''}, 'musl'),
      ({'glibc': '2.36', 'cpu_flags': 'flags: sse2 avx2x'}, 'no AVX'),
    ],
  )
  def test_wrong_platform(self, machine, detail):
    given = {'system': 'Linux', 'machine': 'x86_64', **machine}
    finding = checks.check_platform(**given)
    assert finding.status == 'FAULT'
    assert detail in finding.detail

  def test_right_platform(self):
    finding = checks.check_platform(
      system='Linux', machine='x86_64', glibc='2.31', cpu_flags='sse2 avx fma'
    )
    assert finding.status == 'ok'

  def test_disk(self, tmp_path):
    assert checks.check_disk(tmp_path, free_bytes=2**31).status == 'ok'
    assert checks.check_disk(tmp_path, free_bytes=2**29).status == 'FAULT'

  def test_cores_and_memory(self):
    assert checks.check_cores(2).status == 'ok'
    assert checks.check_cores(1).status == 'warning'
    assert checks.check_memory(4 * 2**30).status == 'ok'
    assert checks.check_memory(2**30).status == 'warning'

  def test_accelerator(self, tmp_path):
    device = tmp_path / 'nvidia0'
    assert checks.check_accelerator(device).status == 'ok'
    device.touch()
    missing = checks.check_accelerator(device, installed=lambda name: None)
    assert missing.remedy == 'uv sync --frozen --extra gpu'
    there = checks.check_accelerator(device, installed=lambda name: object())
    assert there.status == 'ok'

  def test_isolation(self):
    assert checks.check_isolation(can_seal=lambda: True).status == 'ok'
    finding = checks.check_isolation(can_seal=lambda: False)
    assert finding.status == 'warning'
    assert 'open on all interfaces' in finding.detail


class TestWorker:
  def test_missing_then_not_executable_then_good(self, tmp_path):
    assert 'is missing' in checks.check_worker(tmp_path).detail
    binary = tmp_path / 'data' / 'worker_binary'
    binary.parent.mkdir()
    binary.write_bytes(bytes(2**20))
    binary.chmod(0o644)
    assert checks.check_worker(tmp_path).remedy.startswith('chmod +x')
    binary.chmod(0o755)
    assert checks.check_worker(tmp_path).detail == '1 MiB binary'


class TestOrphans:
  def _process(self, proc, *, pid, parent, command):
    directory = proc / str(pid)
    directory.mkdir()
    directory.joinpath('cmdline').write_text(command)
    directory.joinpath('stat').write_text(f'{pid} (a (b) c) S {parent} 7 7')

  def test_only_workers_without_a_program_count(self, tmp_path):
    worker = '/x/data/worker_binary\0--port=1\0'
    self._process(tmp_path, pid=41, parent=1, command=worker)
    self._process(tmp_path, pid=42, parent=40, command=worker)
    self._process(tmp_path, pid=43, parent=1, command='python3\0x.py\0')
    self._process(tmp_path, pid=44, parent=1, command=worker)
    finding = checks.check_orphans(tmp_path)
    assert finding.status == 'warning'
    assert finding.remedy == 'kill 41 44'

  def test_none(self, tmp_path):
    assert checks.check_orphans(tmp_path).status == 'ok'


class TestImports:
  def test_good(self):
    finding = checks.check_imports('print("2.14.1 0.87.0 0")')
    assert finding.status == 'ok'
    assert finding.detail.startswith('2.14.1 0.87.0 0 GPUs')

  def test_broken(self):
    finding = checks.check_imports('import no_such_module_here')
    assert finding.status == 'FAULT'
    assert 'no_such_module_here' in finding.detail


class TestCommand:
  def test_this_environment_is_good(self, capsys):
    assert cli.run(['doctor']) == 0
    assert 'FAULT' not in capsys.readouterr().out

  def test_fault_is_exit_code_2_with_its_remedy(self, capsys, monkeypatch):
    fault = checks.Finding('python', 'FAULT', '3.12.0', 'uv python install')
    monkeypatch.setattr(checks, 'examine', lambda deep: [fault])
    assert cli.run(['doctor']) == 2
    assert 'remedy: uv python install' in capsys.readouterr().out

  def test_json(self, capsys):
    cli.run(['doctor', '--json'])
    findings = json.loads(capsys.readouterr().out)
    assert {'name', 'status', 'detail', 'remedy'} == set(findings[0])

  def test_finding_has_a_remedy_unless_ok(self):
    with pytest.raises(ValueError, match='a remedy if and only if'):
      checks.Finding('x', 'FAULT', 'bad')
