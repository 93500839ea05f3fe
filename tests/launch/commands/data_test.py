"""`dpemb data`, through the program's own front door."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from launch import cli


def _run(capsys, *arguments):
  code = cli.run(['data', *map(str, arguments)])
  captured = capsys.readouterr()
  return code, captured.out, captured.err


@pytest.fixture
def faces(tmp_path):
  for i, identity in enumerate('abcdef'):
    (tmp_path / 'faces' / identity).mkdir(parents=True)
    pixels = np.full((8, 8, 3), 20 * i, np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'faces' / identity / '0.png')
  return tmp_path / 'faces'


@pytest.mark.parametrize('name', ['', 'glyphs', 'folder', 'show', 'verify'])
def test_help_fits_a_screen_and_shows_an_example(capsys, name):
  code, out, _ = _run(capsys, *name.split(), '--help')
  assert code == 0
  assert 'Example: dpemb data' in out
  lines = out.splitlines()
  assert len(lines) <= 30
  assert max(map(len, lines)) <= 80


def test_help_imports_nothing_heavy():
  code = (
    'import sys; from launch import cli; cli.run(["data", "glyphs", "--help"]);'
    ' print(sorted({"numpy", "pyarrow", "PIL", "tensorflow"} &'
    ' sys.modules.keys()))'
  )
  result = subprocess.run(
    [sys.executable, '-c', code], check=True, capture_output=True, text=True
  )
  assert result.stdout.splitlines()[-1] == '[]'


def test_folder_show_and_verify(capsys, faces, tmp_path):
  output = tmp_path / 'set'
  code, out, err = _run(
    capsys, 'folder', '--input', faces, '--output', output, '--size', '8x8x3',
    '--validation', 1, '--test', 2, '--licence', 'CC0',
  )  # fmt: skip
  assert (code, err) == (0, '')
  assert '3 users' in out and '8 x 8 x 3' in out and 'CC0' in out
  code, shown, _ = _run(capsys, 'show', output)
  assert (code, shown) == (0, out)
  code, out, _ = _run(capsys, 'show', output / 'test')
  assert code == 0 and '2 users' in out
  code, out, _ = _run(capsys, 'verify', output)
  assert code == 0
  assert 'whole. Users: private 3, validation 1, test 2.' in out
  shard = output / 'test' / 'shard-00000.arrow'
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 255
  shard.write_bytes(bytes(content))
  for path in (output, output / 'test'):
    code, out, err = _run(capsys, 'verify', path)
    assert code == 2
    assert 'shard-00000.arrow' in err and err.count('\n') == 1


def test_ignored_files_are_counted(capsys, faces, tmp_path):
  (faces / 'notes.txt').touch()
  (faces / 'a' / 'a.svg').touch()
  code, _, err = _run(
    capsys, 'folder', '--input', faces, '--output', tmp_path / 'set',
    '--size', '8x8', '--validation', 1, '--test', 2,
  )  # fmt: skip
  assert code == 0
  assert err.startswith('note: 2 files or folders were ignored')
  assert err.count('\n') == 1


def test_replace_spares_what_is_no_data_set(capsys, faces):
  for arguments in (
    ['folder', '--input', faces, '--size', '8x8'],
    ['glyphs', '--bundled'],
    ['glyphs'],
  ):
    code, _, err = _run(capsys, *arguments, '--output', faces, '--replace')
    assert code == 2 and err.count('\n') == 1
    assert len(list(faces.glob('*/*.png'))) == 6


def test_huge_size(capsys, faces, tmp_path):
  code, _, err = _run(
    capsys, 'folder', '--input', faces, '--output', tmp_path / 'set',
    '--size', '100000x100000x3', '--validation', 1, '--test', 2,
  )  # fmt: skip
  assert code == 2 and '--size' in err and err.count('\n') == 1
  assert not (tmp_path / 'set').exists()


def test_bundled_glyphs(capsys, tmp_path):
  output = tmp_path / 'glyphs'
  arguments = (
    'glyphs', '--bundled', '--output', output, '--images', 1,
    '--validation', 10, '--test', 20, '--split-seed', 3, '--nuisance-seed', 4,
  )  # fmt: skip
  code, out, _ = _run(capsys, *arguments)
  assert code == 0
  assert '2970 users' in out
  code, _, err = _run(capsys, *arguments)
  assert code == 2 and 'remove it first' in err
  code, out, _ = _run(capsys, *arguments, '--replace')
  assert code == 0 and '2970 users' in out


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['glyphs', '--bundled', '--set', 'unified'], '--bundled must stand'),
    (['glyphs', '--images', '0'], 'images_per_identity must be'),
    (['glyphs', '--bundled', '--test', '2999'], 'got 200 + 2999'),
    (['glyphs', '--fonts', 'no-such-fonts'], "'no-such-fonts'"),
    (['folder', '--input', 'no-such-faces'], "'no-such-faces'"),
    (['folder', '--input', 'x', '--size', '28x28x9'], '1 or 3 channels'),
    (['folder', '--input', 'x', '--validation', '0'], "'--validation'"),
    (['glyphs', '--bundled', '--test', '0'], "'--test'"),
    (['folder', '--input', 'x', '--size', '8'], 'must be HxW or'),
  ],
)
def test_wrong_input_is_one_line_and_code_2(
  capsys, tmp_path, arguments, message
):
  code, _, err = _run(capsys, *arguments, '--output', tmp_path / 'set')
  assert code == 2
  assert message in err
  assert err.count('\n') == 1
  assert not any(tmp_path.iterdir())


def test_show_of_nothing(capsys, tmp_path):
  for command in ('show', 'verify'):
    code, _, err = _run(capsys, command, tmp_path / 'nothing')
    assert code == 2 and 'data set directory' in err
