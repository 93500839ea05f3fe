import pytest

from tff_dpemb.data import names

_NFC, _NFD = 'Jos\u00e9', 'Jose\u0301'


def test_both_spellings_become_one():
  assert _NFC != _NFD
  assert names.normal(_NFC) == names.normal(_NFD) == _NFC


@pytest.mark.parametrize(
  ('given', 'expected'),
  [
    ([], []),
    (['ann', 'ben', 'Ann'], []),
    (['ann', 'ann'], []),  # One name, given twice: nothing is spelt apart.
    ([_NFC, 'ben', _NFD], [(_NFC, _NFD)]),
    ([_NFD, _NFC, _NFD], [(_NFD, _NFC)]),
    (['\u212b', '\u00c5', 'A\u030a'], [('\u212b', '\u00c5'),
                                       ('\u212b', 'A\u030a')]),
    (['\u1112\u1161\u11ab', '\ud55c'], [('\u1112\u1161\u11ab', '\ud55c')]),
  ],
)  # fmt: skip
def test_twins(given, expected):
  assert names.twins(given) == expected


@pytest.mark.parametrize(
  ('one', 'other', 'alike'),
  [
    ('ann', 'Ann', True),
    ('strasse', 'STRASSE', True),
    ('stra\u00dfe', 'STRASSE', True),
    ('ann', 'ann ', True),
    ('ann', '\uff41\uff4e\uff4e', True),  # full width
    ('ann', 'an n', False),
    ('ann', 'anna', False),
    ('Jose', _NFC, False),  # An accent makes another name.
  ],
)
def test_look_alikes(one, other, alike):
  assert names.look_alikes([one, other]) == ([(one, other)] if alike else [])


def test_what_is_no_text():
  assert names.is_unicode(_NFD)
  assert not names.is_unicode('caf\udce9')
