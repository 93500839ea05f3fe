import pytest

from tff_dpemb.data import data_sets
from tff_dpemb.data.sources import folder_categories


@pytest.fixture
def table(tmp_path):
  return tmp_path / 'classes.csv'


def test_without_a_file_there_is_one():
  assert folder_categories.read(None, ['a', 'b']) == {'a': 'all', 'b': 'all'}


def test_a_spreadsheet(table):
  """Byte-order mark, other columns, quotes, and people who are not here."""
  table.write_bytes(
    b'\xef\xbb\xbfage,category,identity\r\n7,"x, y",a\r\n8,z,b\r\n9,z,c\r\n'
  )
  found = folder_categories.read(table, ['a', 'b'])
  assert (found['a'], found['b']) == ('x, y', 'z')


def test_forms_of_a_name_are_one_name(table):
  table.write_text(
    'identity,category\nJose\u0301,caf\u00e9\nJos\u00e9,cafe\u0301\n'
  )
  found = folder_categories.read(table, ['Jos\u00e9'])
  assert found == {'Jos\u00e9': 'caf\u00e9'}


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'name,class\na,x\n', "header 'identity,category'"),
    (b'', 'header'),
    (b'identity,category\na,x\n', "list every identity, got none for 'b'"),
    (b'identity,category\na,x\na,y\n', 'line 3.*second category'),
    (
      'identity,category\nJos\u00e9,x\nJose\u0301,y\n'.encode(),
      'line 3.*second category',
    ),
    (b'identity,category\na\n', 'line 2.*identity and a category'),
    (b'identity,category\ncaf\xe9,x\n', 'UTF-8'),
  ],
)
def test_refusals(table, content, message):
  table.write_bytes(content)
  with pytest.raises(
    data_sets.DataError, match=f'--categories .*classes.csv.*{message}'
  ):
    folder_categories.read(table, ['a', 'b'])


def test_a_missing_file(table):
  with pytest.raises(data_sets.DataError, match='--categories.*No such file'):
    folder_categories.read(table, ['a'])
