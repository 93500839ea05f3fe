import pytest

from launch.doctor import machine


class TestMachine:
  @pytest.mark.parametrize(
    ('given', 'detail'),
    [
      ({'system': 'Darwin', 'machine': 'arm64'}, 'Linux x86-64 only'),
      ({'machine': 'aarch64'}, 'Linux x86-64 only'),
      ({'glibc': '2.28'}, 'glibc 2.28; at least 2.31'),
      ({'glibc': ''}, 'musl'),
      ({'glibc': '2.36', 'cpu_flags': 'flags: sse2 avx2x'}, 'no AVX'),
    ],
  )
  def test_wrong_platform(self, given, detail):
    values = {'system': 'Linux', 'machine': 'x86_64', **given}
    finding = machine.check_platform(**values)
    assert finding.status == 'FAULT'
    assert detail in finding.detail

  def test_right_platform(self):
    finding = machine.check_platform(
      system='Linux', machine='x86_64', glibc='2.31', cpu_flags='sse2 avx fma'
    )
    assert finding.status == 'ok'

  def test_disk(self, tmp_path):
    assert machine.check_disk(tmp_path, free_bytes=2**31).status == 'ok'
    assert machine.check_disk(tmp_path, free_bytes=2**29).status == 'FAULT'

  def test_cores_and_memory(self):
    assert machine.check_cores(2).status == 'ok'
    assert machine.check_cores(1).status == 'warning'
    assert machine.check_memory(4 * 2**30).status == 'ok'
    assert machine.check_memory(2**30).status == 'warning'

  def test_accelerator(self, tmp_path):
    device = tmp_path / 'nvidia0'
    assert machine.check_accelerator(device).status == 'ok'
    device.touch()
    missing = machine.check_accelerator(device, installed=lambda name: None)
    assert missing.remedy == 'uv sync --frozen --extra gpu'
    there = machine.check_accelerator(device, installed=lambda name: object())
    assert there.status == 'ok'

  def test_isolation(self):
    assert machine.check_isolation(can_seal=lambda: True).status == 'ok'
    finding = machine.check_isolation(can_seal=lambda: False)
    assert finding.status == 'warning'
    assert 'open on all interfaces' in finding.detail


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
    finding = machine.check_orphans(tmp_path)
    assert finding.status == 'warning'
    assert finding.remedy == 'kill 41 44'

  def test_none(self, tmp_path):
    assert machine.check_orphans(tmp_path).status == 'ok'
