"""Documents: canonical form, digest, refusals."""

import json
import math
from typing import Literal

import pydantic
import pytest

from tff_dpemb.artifacts import documents
from tff_dpemb.artifacts import storage


class _Part(documents.Value):
  count: documents.Count
  names: tuple[str, ...] = ()
  flag: bool = False


class _Example(documents.Manifest):
  remedy = 'run `dpemb example` again'
  schema_name: Literal['dpemb.example/2'] = documents.schema('dpemb.example/2')
  size: float = pydantic.Field(gt=0)
  part: _Part


def _example(**changes):
  content = {
    'files': {'a.bin': '0' * 64},
    'size': 1.5,
    'part': _Part(count=3, names=('x', 'y')),
  }
  return _Example(**content | changes)


class TestCanonicalJson:
  # Section 3.2.2 and appendix B of RFC 8785.
  @pytest.mark.parametrize(
    ('value', 'text'),
    [
      ({'b': 1, 'a': 2}, '{"a":2,"b":1}'),
      (333333333.33333329, '333333333.3333333'),
      (1e30, '1e+30'),
      (4.50, '4.5'),
      (2e-3, '0.002'),
      (1e-27, '1e-27'),
      (5e-324, '5e-324'),
      (-0.0, '0'),
      (1.0, '1'),
      ('\u20ac$\u000f\nA\'B"\\', '"€$\\u000f\\nA\'B\\"\\\\"'),
      ([None, True, False], '[null,true,false]'),
      # By UTF-16 code units: the emoji (a surrogate pair) before U+FB33.
      ({'\ufb33': 1, '\U0001f600': 2}, '{"\U0001f600":2,"\ufb33":1}'),
    ],
  )
  def test_known_values(self, value, text):
    assert documents.canonical_json(value) == text.encode()

  def test_the_order_of_keys_and_the_spelling_of_numbers_do_not_matter(self):
    one = json.loads('{"a": 1.50, "b": [1e2]}')
    other = json.loads('{"b": [100], "a": 15e-1}')
    assert documents.digest_of(one) == documents.digest_of(other)

  @pytest.mark.parametrize(
    'value', [math.nan, math.inf, 2**53, {1: 2}, object(), '\ud800']
  )
  def test_what_json_cannot_hold(self, value):
    with pytest.raises(documents.DocumentError, match='finite JSON values'):
      documents.canonical_json({'a': [value]})

  def test_nested_too_deeply(self):
    value: list = []
    for _ in range(100_000):
      value = [value]
    with pytest.raises(documents.DocumentError, match='nested too deeply'):
      documents.canonical_json(value)


class TestDocument:
  def test_round_trip(self, tmp_path):
    path = tmp_path / 'example.json'
    made = _example()
    made.write(path)
    again = _Example.read(path)
    assert again == made
    assert again.digest == made.digest
    assert storage.read_json(path)['schema'] == 'dpemb.example/2'

  def test_digest_is_of_every_field(self):
    assert _example().digest != _example(size=1.6).digest
    assert _example().digest != _example(files={'a.bin': '1' * 64}).digest

  def test_is_frozen(self):
    with pytest.raises(pydantic.ValidationError, match='frozen'):
      _example().size = 2.0

  @pytest.mark.parametrize('schema', ['dpemb.example/1', None, 3, 'other'])
  def test_another_form_is_refused_by_name(self, schema):
    content = _example().to_json() | {'schema': schema}
    with pytest.raises(
      documents.DocumentError,
      match=r"must have schema 'dpemb\.example/2', got .*; run `dpemb example`",
    ):
      _Example.from_json(content)

  @pytest.mark.parametrize('content', [None, [], 'text', 3])
  def test_no_object(self, content):
    with pytest.raises(
      documents.DocumentError, match='must hold a JSON object'
    ):
      _Example.from_json(content)

  @pytest.mark.parametrize(
    ('changes', 'sentence'),
    [
      ({'size': 0}, 'it.size must be > 0.0, got 0'),
      ({'size': True}, 'it.size must be a number, got True.'),
      ({'size': '1'}, "it.size must be a number, got '1'."),
      ({'size': None}, 'it.size must be a number, got None.'),
      ({'extra': 1}, 'it.extra is not part of this form.'),
      ({'part': {}}, 'it.part.count must be there.'),
      ({'part': {'count': -1}}, 'it.part.count must be >= 0, got -1.'),
      ({'part': {'count': 1.5}}, 'it.part.count must be a whole number'),
      ({'part': {'count': True}}, 'it.part.count must be a whole number'),
      ({'part': {'count': 1, 'flag': 1}}, 'must be true or false, got 1.'),
      ({'part': {'count': 1, 'names': [1]}}, 'part.names[0] must be text'),
      ({'part': {'count': 1, 'names': 'a'}}, 'part.names must be a list'),
      ({'part': 3}, 'it.part must be an object, got 3.'),
      ({'files': {'a': 'b'}}, 'it.files.a must match'),
    ],
  )
  def test_each_broken_rule_is_a_sentence(self, changes, sentence):
    content = _example().to_json() | changes
    with pytest.raises(documents.DocumentError) as caught:
      _Example.from_json(content, name='it')
    assert any(sentence in problem for problem in caught.value.problems)

  def test_all_problems_at_once(self):
    content = _example().to_json() | {'size': 0, 'part': {'count': -1}}
    with pytest.raises(documents.DocumentError) as caught:
      _Example.from_json(content)
    assert len(caught.value.problems) == 2

  def test_published_form(self):
    form = _Example.json_schema()
    assert form['$schema'].endswith('2020-12/schema')
    assert form['properties']['schema']['const'] == 'dpemb.example/2'
    assert form['additionalProperties'] is False
    assert set(form['required']) >= {'files', 'size', 'part'}


def test_files_of_a_manifest(tmp_path):
  (tmp_path / 'a.bin').write_bytes(b'one')
  digest = storage.sha256_of(tmp_path / 'a.bin')
  made = _example(files={'a.bin': digest, 'b.bin': '0' * 64})
  assert made.file_problems(tmp_path) == ["'b.bin' is missing"]
  (tmp_path / 'b.bin').write_bytes(b'two')
  assert made.file_problems(tmp_path) == [
    "'b.bin' has another SHA-256 than the manifest"
  ]
  assert made.files_digest == documents.digest_of_files(made.files)
