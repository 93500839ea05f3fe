"""`dpemb data`, through the program's own front door."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from launch import cli
from launch.commands import data as commands_data
from tff_dpemb.data.sources.glyphs import source


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
  assert err.startswith(
    'note: 2 files or folders were ignored: .svg 1, .txt 1; read are .png,'
  )
  assert err.count('\n') == 1


def _import(capsys, faces, *arguments):
  output = faces.parent / 'set'
  return _run(
    capsys, 'folder', '--input', faces, '--output', output, '--size', '8x8',
    *arguments,
  )  # fmt: skip


def _spoil(faces, count):
  """Puts bad files beside good ones; returns their names, in order."""
  files = [f'{"abcdef"[i % 6]}/{i:03d}.png' for i in range(count)]
  for file in files:
    (faces / file).write_bytes(b'no picture')
  return sorted(files)


def test_held_out_sizes_are_proposed_and_shown(capsys, faces):
  for number in range(14):
    shutil.copytree(faces / 'a', faces / f'more{number}')
  code, out, _ = _import(capsys, faces)
  assert code == 0
  assert out.splitlines()[-1] == (
    'Identities: private 14 (70 %), validation 2 (10 %), test 4 (20 %). Choose'
    ' others with --validation N and --test N.'
  )
  code, out, _ = _import(capsys, faces, '--test', 10, '--replace')
  assert 'private 8 (40 %), validation 2 (10 %), test 10 (50 %)' in out
  code, _, err = _import(capsys, faces, '--test', 19, '--replace')
  assert code == 2
  assert '--validation + --test must leave at least one' in err
  assert 'of 20, got 2 + 19' in err


@pytest.mark.parametrize('name', ['folder', 'glyphs'])
def test_help_shows_the_defaults(capsys, name):
  _, out, _ = _run(capsys, name, '--help')
  out = ' '.join(out.split())
  for default in ('a tenth, at most 200', 'a fifth, at most 600', '0'):
    assert f'[default: {default}' in out


def test_a_part_of_the_glyphs_holds_out_a_part(capsys, tmp_path, monkeypatch):
  held_out = []
  monkeypatch.setattr(
    source,
    'render_glyphs',
    lambda *_, config, **__: held_out.append(
      (config.validation_identities, config.test_identities)
    ),
  )
  monkeypatch.setattr(commands_data, '_print_data_set', lambda *_: None)
  for arguments in (
    [],
    ['--identities', 50],
    ['--identities', 50, '--test', 9],
  ):
    code, _, err = _run(
      capsys, 'glyphs', '--output', tmp_path / 'set', *arguments
    )
    assert code == 0, err
  assert held_out == [(200, 600), (5, 10), (5, 9)]


def test_every_bad_file_is_listed_at_once(capsys, faces):
  files = _spoil(faces, 3)
  code, out, err = _import(capsys, faces)
  assert (code, out) == (2, '')
  *listed, error = err.splitlines()
  assert [line.split("'")[1] for line in listed] == files
  for line in listed:
    assert line.startswith('bad: ') and 'got 10 other bytes' in line
  assert error.startswith('dpemb: error: every image of --input')
  assert 'and 2 more' in error and '--skip-bad' in error
  assert [path.name for path in faces.parent.iterdir()] == ['faces']


def test_a_long_list_goes_into_a_file(capsys, faces):
  files = _spoil(faces, 50)
  whole_list = faces.parent / 'set.bad-files.tsv'
  code, _, err = _import(capsys, faces)
  assert code == 2
  assert len(err.splitlines()) == 22
  assert f'and 30 more; all 50 are in {whole_list}' in err
  assert whole_list.stat().st_mode & 0o077 == 0  # It names users.
  rows = [line.split('\t') for line in whole_list.read_text().splitlines()]
  assert [name for name, _ in rows] == [repr(file) for file in files]
  code, _, _ = _import(capsys, faces, '--skip-bad')
  assert code == 0
  assert not whole_list.exists()


def test_skip_bad(capsys, faces):
  files = _spoil(faces, 30)
  code, out, err = _import(capsys, faces, '--skip-bad', '--test', 1)
  assert code == 0
  assert out.count(' users') == 3
  assert err.count('skipped: ') == 30
  found = []
  for split in ('private', 'validation', 'test'):
    path = faces.parent / 'set' / split / 'manifest.json'
    assert path.parent.stat().st_mode & 0o077 == 0
    found += json.loads(path.read_text())['skipped']
  assert sorted(item['file'] for item in found) == files
  assert all('other bytes' in item['reason'] for item in found)
  code, _, _ = _run(capsys, 'verify', faces.parent / 'set')
  assert code == 0


def test_names_do_not_break_a_line(capsys, faces):
  for name in ('a\nb.png', 'c\x1b[2J.png'):
    (faces / 'a' / name).write_bytes(b'')
  _, _, err = _import(capsys, faces)
  assert len(err.splitlines()) == 3
  assert '\x1b' not in err


def test_an_archive_of_a_mac(capsys, faces):
  """What `zip` of macOS adds: resource forks of every folder and file."""
  (faces / '.DS_Store').write_bytes(b'Bud1')
  for folder in [*faces.iterdir()]:
    fork = faces / '__MACOSX' / 'faces' / folder.name
    fork.mkdir(parents=True)
    (fork / '._0.png').write_bytes(b'\0\5\x16\7')
    if folder.is_dir():
      (folder / '._0.png').write_bytes(b'\0\5\x16\7')
  code, out, err = _import(capsys, faces)
  assert code == 0, err
  assert out.count(' users') == 3
  assert 'note: 8 files or folders were ignored: ._* 6, .DS_Store 1,' in err
  assert '__MACOSX 1; read are' in err


def test_unicode_twins(capsys, faces, tmp_path):
  shutil.copytree(faces / 'a', faces / 'Jos\u00e9')
  shutil.copytree(faces / 'b', tmp_path / 'open' / 'Jose\u0301')
  code, _, err = _import(capsys, faces, '--public', tmp_path / 'open')
  assert code == 2
  assert '--public and --input must share no identity, got 1' in err
  shutil.copytree(faces / 'b', faces / 'Jose\u0301')
  code, _, err = _import(capsys, faces, '--skip-bad')
  assert code == 2 and err.count('\n') == 1
  assert r"as 'Jose\u0301' and 'Jos\xe9'; merge" in err
  assert not (tmp_path / 'set').exists()


def test_shared_pictures_are_reported(capsys, faces, tmp_path):
  rng = np.random.default_rng(0)
  for folder in faces.iterdir():
    picture = Image.fromarray(rng.integers(0, 256, (8, 9, 3), np.uint8))
    picture.save(folder / '0.png')
  shutil.copytree(faces / 'a', tmp_path / 'open' / 'zoe')
  brighter = np.asarray(Image.open(faces / 'b' / '0.png')) // 2 + 40
  Image.fromarray(brighter).save(tmp_path / 'open' / 'zoe' / '1.bmp')
  _import(capsys, faces)
  code, out, _ = _run(capsys, 'verify', faces.parent / 'set', '--strict')
  assert code == 0
  assert 'No picture is in two splits' in out
  _import(capsys, faces, '--public', tmp_path / 'open', '--replace')
  code, out, err = _run(capsys, 'verify', faces.parent / 'set')
  assert (code, err) == (0, '')
  assert out.splitlines()[1:] == [
    'private and public: 1 images of private are in public too, 1 more look'
    ' alike.',
    '    private/a/0 and public/zoe/0',
    '    private/b/0 and public/zoe/1',
  ]
  code, out, err = _run(capsys, 'verify', faces.parent / 'set', '--strict')
  assert code == 5
  assert 'must be in two splits (--strict)' in err and err.count('\n') == 1


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
    (['glyphs', '--images', '0'], "'--images'"),
    (
      ['glyphs', '--bundled', '--test', '2999'],
      '--validation + --test must leave at least one private identity of 3000,'
      ' got 200 + 2999',
    ),
    (['glyphs', '--identities', '0'], "'--identities'"),
    (['glyphs', '--split-seed', '-1'], "'--split-seed'"),
    (['folder', '--input', 'x', '--images', '0'], "'--images'"),
    (['folder', '--input', 'x'], '--input must be a directory'),
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
    assert code == 2
    assert 'data set directory, got no such directory' in err
