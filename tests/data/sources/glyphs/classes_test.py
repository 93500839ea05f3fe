import collections

import pytest

from tff_dpemb.data.sources.glyphs import classes


class TestRadicals:
  # Kangxi numbers of radicals, and of characters under them, by hand.
  @pytest.mark.parametrize(
    ('character', 'number'),
    [
      ('一', 1), ('丁', 1), ('丨', 2), ('丶', 3), ('丿', 4), ('乙', 5),
      ('亅', 6), ('二', 7), ('亠', 8), ('人', 9), ('休', 9), ('儿', 10),
      ('口', 30), ('名', 30), ('夊', 35), ('夏', 35), ('夕', 36), ('女', 38),
      ('好', 38), ('心', 61), ('思', 61), ('手', 64), ('持', 64), ('日', 72),
      ('木', 75), ('林', 75), ('水', 85), ('海', 85), ('火', 86), ('照', 86),
      ('糸', 120), ('紙', 120), ('艸', 140), ('花', 140), ('言', 149),
      ('語', 149), ('辵', 162), ('道', 162), ('金', 167), ('銀', 167),
      ('門', 169), ('魚', 195), ('鯨', 195), ('鳥', 196), ('龍', 212),
      ('龜', 213), ('龠', 214), ('龥', 214),
    ],
  )  # fmt: skip
  def test_known(self, character, number):
    assert classes.radical_index(ord(character)) == number - 1

  def test_names(self):
    assert len(classes.RADICAL_NAMES) == 214
    assert len(set(classes.RADICAL_NAMES)) == 214
    for index, name in enumerate(classes.RADICAL_NAMES):
      assert classes.radical_index(ord(name)) == index

  def test_never_decreases_and_reaches_all(self):
    indices = [
      classes.radical_index(point) for point in classes.unified_ideographs()
    ]
    assert indices == sorted(indices)
    assert set(indices) == set(range(214))

  @pytest.mark.parametrize('point', [0x4DFF, 0x9FA6, 0xAC00])
  def test_outside(self, point):
    with pytest.raises(ValueError, match=f'U\\+{point:04X}'):
      classes.radical_index(point)


class TestConsonants:
  @pytest.mark.parametrize(
    ('syllable', 'consonant'),
    [('가', 'ㄱ'), ('깋', 'ㄱ'), ('까', 'ㄲ'), ('안', 'ㅇ'), ('힣', 'ㅎ')],
  )
  def test_known(self, syllable, consonant):
    index = classes.category_index(ord(syllable))
    assert classes.CONSONANT_NAMES[index] == consonant

  def test_outside(self):
    with pytest.raises(ValueError, match='U\\+4E00'):
      classes.consonant_index(0x4E00)


class TestSets:
  # Sizes: JIS X 0208:1997 and KS X 1001:2004; the URO of Unicode 1.0.1.
  def test_sizes(self):
    assert len(classes.jis_kanji((1,))) == 2965
    assert len(classes.jis_kanji((2,))) == 3390
    assert len(set(classes.jis_kanji())) == 6355
    assert len(set(classes.ks_hangul())) == 2350
    assert len(classes.unified_ideographs()) == 20_902

  def test_ends(self):
    first, second = (classes.jis_kanji((level,)) for level in (1, 2))
    assert (chr(first[0]), chr(first[-1])) == ('亜', '腕')
    assert (chr(second[0]), chr(second[-1])) == ('弌', '熙')
    syllables = classes.ks_hangul()
    assert (chr(syllables[0]), chr(syllables[-1])) == ('가', '힝')

  def test_level(self):
    with pytest.raises(ValueError, match='1 or 2, got 3'):
      classes.jis_kanji((3,))

  def test_many_characters_share_a_radical(self):
    counts = collections.Counter(
      map(classes.radical_index, classes.jis_kanji())
    )
    assert sum(count >= 100 for count in counts.values()) >= 10
