import numpy as np
import pytest

from tff_dpemb import images
from tff_dpemb.data import data_sets
from tff_dpemb.data.sources import folder_reading

_SHAPE = (4, 4, 3)
_PNG = images.encode_png(np.full(_SHAPE, 7, np.uint8))


@pytest.fixture
def faces(tmp_path):
  for name in ('ann', 'ben'):
    (tmp_path / name).mkdir()
    (tmp_path / name / '0.png').write_bytes(_PNG)
  return tmp_path


def _find(faces):
  return folder_reading.find_identities(faces, flag='--input')


def _read(faces, name='ann', **options):
  identity = folder_reading.Identity(name, faces / name)
  return folder_reading.Reader(_SHAPE, **options)(identity)


class TestSystemFiles:
  """What archives, desktops and disks leave is passed over and named."""

  @pytest.mark.parametrize(
    ('name', 'kind'),
    [
      ('__MACOSX', '__MACOSX'),
      ('@eaDir', '@eaDir'),
      ('.git', '.git'),
      ('.AppleDouble', '.AppleDouble'),
      ('$RECYCLE.BIN', '$RECYCLE.BIN'),
      ('System Volume Information', 'System Volume Information'),
      ('lost+found', 'lost+found'),
      ('.ann', 'hidden'),
    ],
  )
  def test_folders(self, faces, name, kind):
    for parent in (faces, faces / 'ann'):
      (parent / name / 'ann').mkdir(parents=True)
      (parent / name / '0.png').write_bytes(b'no picture')
    identities, bad, ignored = _find(faces)
    assert [item.name for item in identities] == ['ann', 'ben']
    assert (bad, ignored) == ([], {kind: 1})
    reading = _read(faces)
    assert len(reading.images) == 1
    assert (reading.bad, reading.ignored) == ([], {kind: 1})

  @pytest.mark.parametrize(
    ('name', 'kind'),
    [
      ('.DS_Store', '.DS_Store'),
      ('thumbs.DB', 'Thumbs.db'),
      ('Desktop.ini', 'desktop.ini'),
      ('._0.png', '._*'),
      ('.0.png.swp', 'hidden'),
      ('0.HEIC', '.heic'),
      ('0.png.part', '.part'),
      ('README', 'without suffix'),
      ('0.a\nb', r"'.a\nb'"),
    ],
  )
  def test_files(self, faces, name, kind):
    for parent in (faces, faces / 'ann'):
      (parent / name).write_bytes(b'no picture')
    _, bad, ignored = _find(faces)
    assert (bad, ignored) == ([], {kind: 1})
    reading = _read(faces)
    assert (reading.bad, reading.ignored) == ([], {kind: 1})

  def test_a_user_may_have_such_a_suffix(self, faces):
    (faces / 'ann.DS_Store').mkdir()
    assert len(_find(faces)[0]) == 3


class TestFindIdentities:
  def test_images_beside_the_folders(self, faces):
    (faces / '0.png').write_bytes(_PNG)
    assert _find(faces)[2] == {'image beside the folders': 1}

  def test_a_name_of_other_bytes(self, faces):
    (faces / 'caf\udce9').mkdir()
    identities, bad, _ = _find(faces)
    assert len(identities) == 2
    (item,) = bad
    assert item.file == r'caf\xe9' and 'UTF-8' in item.reason

  def test_where_there_is_nothing(self, faces):
    for path, message in (
      (faces / 'no', "--input must be.*no such directory '.*no'"),
      (faces / 'ann' / '0.png', '--input must be.*got a file'),
      (faces / 'ann', 'got none but image beside the folders 1'),
    ):
      with pytest.raises(data_sets.DataError, match=message):
        _find(path)


class TestReader:
  @pytest.mark.parametrize('encoding', ['raw', 'encoded'])
  def test_reading_goes_on_past_bad_files(self, faces, encoding):
    (faces / 'ann' / '0.bmp').write_bytes(b'')
    (faces / 'ann' / '1.png').mkdir()
    (faces / 'ann' / '2.png').symlink_to('nowhere')
    (faces / 'ann' / '3.png').write_bytes(_PNG)
    reading = _read(faces, encoding=encoding)
    assert len(reading.images) == 2
    reasons = {item.file: item.reason for item in reading.bad}
    assert list(reasons) == ['ann/0.bmp', 'ann/1.png', 'ann/2.png']
    assert reasons['ann/2.png'] == (
      'must be readable (No such file or directory)'
    )
    assert not any(reason.endswith('.') for reason in reasons.values())

  def test_nothing_to_read(self, faces):
    (faces / 'ann' / '0.png').unlink()
    (faces / 'ann' / 'a.svg').touch()
    reading = _read(faces)
    assert reading.images.shape == (0, *_SHAPE)
    (item,) = reading.bad
    assert item.file == 'ann'
    assert item.reason == 'must hold at least one image, got none but .svg 1'

  def test_a_folder_that_is_gone(self, faces):
    reading = _read(faces, 'cat')
    (item,) = reading.bad
    assert item.file == 'cat' and 'No such file' in item.reason

  def test_no_more_than_asked_for(self, faces):
    for number in range(1, 5):
      (faces / 'ann' / f'{number}.png').write_bytes(_PNG)
    (faces / 'ann' / '9.png').write_bytes(b'')
    reading = _read(faces, max_images=3)
    assert (len(reading.images), reading.bad) == (3, [])


def test_read_ahead_keeps_the_order(faces):
  for number in range(100):
    (faces / f'{number:03d}').mkdir()
    picture = images.encode_png(np.full(_SHAPE, number, np.uint8))
    (faces / f'{number:03d}' / '0.png').write_bytes(picture)
  identities = _find(faces)[0][:100]
  readings = folder_reading.read_ahead(
    folder_reading.Reader(_SHAPE), identities
  )
  assert [int(item.images[0, 0, 0, 0]) for item in readings] == list(range(100))


def test_describe():
  kinds = folder_reading.Ignored({'.a': 1, '.b': 3, 'hidden': 3})
  assert folder_reading.describe(kinds) == '.b 3, hidden 3, .a 1'
  many = folder_reading.Ignored({f'.{i:02d}': 1 for i in range(20)})
  assert folder_reading.describe(many).endswith('.11 1, others 8')


def test_image_files_are_those_that_a_reader_reads(tmp_path):
  for name in ('b.png', 'a.JPG', '._a.JPG', '.c.png', 'notes.txt', 'Thumbs.db'):
    (tmp_path / name).write_bytes(b'')
  (tmp_path / 'd.png').mkdir()
  found = folder_reading.image_files(tmp_path)
  assert [path.name for path in found] == ['a.JPG', 'b.png']
