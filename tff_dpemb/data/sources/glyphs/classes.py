"""The characters of the glyph data, and the class that many of them share.

A kanji's class is its Kangxi radical; a Hangul syllable's class is its initial
consonant. Nothing here reads a font.
"""

import bisect
from collections.abc import Iterable

# The first code point of each of the 214 Kangxi radicals in the Unified
# Ideographs block (URO, U+4E00..U+9FA5), which is ordered by radical.
# Derived from kRSUnicode of Unicode 15.0 (Unihan_IRGSources.txt), which agrees
# with this order for all but 38 of the 20 902 ideographs (such as 章, which
# stands under 立 but is filed under 音 today). Radical 35 starts at 変: 夊
# itself comes later in the block.
_RADICAL_STARTS = (
  '一丨丶丿乙亅二亠人儿入八冂冖冫几凵刀力勹匕匚匸十卜卩厂厶又口'
  '囗土士夂変夕大女子宀寸小尢尸屮山巛工己巾干幺广廴廾弋弓彐彡彳'
  '心戈戶手支攴文斗斤方无日曰月木欠止歹殳毋比毛氏气水火爪父爻爿'
  '片牙牛犬玄玉瓜瓦甘生用田疋疒癶白皮皿目矛矢石示禸禾穴立竹米糸'
  '缶网羊羽老而耒耳聿肉臣自至臼舌舛舟艮色艸虍虫血行衣襾見角言谷'
  '豆豕豸貝赤走足身車辛辰辵邑酉釆里金長門阜隶隹雨靑非面革韋韭音'
  '頁風飛食首香馬骨高髟鬥鬯鬲鬼魚鳥鹵鹿麥麻黃黍黑黹黽鼎鼓鼠鼻齊'
  '齒龍龜龠'
)
_STARTS = tuple(ord(character) for character in _RADICAL_STARTS)

URO_FIRST = 0x4E00
URO_LAST = 0x9FA5  # What later versions appended is not in radical order.

# Names of the 214 classes of kanji, in Kangxi order.
RADICAL_NAMES = tuple(_RADICAL_STARTS.replace('変', '夊'))

# Names of the 19 classes of Hangul syllables, in code point order.
CONSONANT_NAMES = tuple('ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ')

_HANGUL_FIRST = 0xAC00
_HANGUL_LAST = 0xD7A3
_SYLLABLES_PER_CONSONANT = 588


def radical_index(code_point: int) -> int:
  """Returns the Kangxi radical of an ideograph, 0 to 213.

  Raises:
    ValueError: `code_point` is not in U+4E00..U+9FA5.
  """
  if not URO_FIRST <= code_point <= URO_LAST:
    raise ValueError(
      f'code_point must be in U+4E00..U+9FA5, got U+{code_point:04X}.'
    )
  return bisect.bisect_right(_STARTS, code_point) - 1


def consonant_index(code_point: int) -> int:
  """Returns the initial consonant of a Hangul syllable, 0 to 18.

  Raises:
    ValueError: `code_point` is not in U+AC00..U+D7A3.
  """
  if not _HANGUL_FIRST <= code_point <= _HANGUL_LAST:
    raise ValueError(
      f'code_point must be in U+AC00..U+D7A3, got U+{code_point:04X}.'
    )
  return (code_point - _HANGUL_FIRST) // _SYLLABLES_PER_CONSONANT


def category_index(code_point: int) -> int:
  """Returns the class of a kanji (radical) or of a syllable (consonant)."""
  if code_point >= _HANGUL_FIRST:
    return consonant_index(code_point)
  return radical_index(code_point)


def jis_kanji(levels: Iterable[int] = (1, 2)) -> list[int]:
  """Returns the kanji of JIS X 0208 in the order of that standard.

  Args:
    levels: Level 1 (2 965 characters, by reading) and level 2 (3 390, by
      radical), or one of them.
  """
  rows = {1: range(0x30, 0x50), 2: range(0x50, 0x75)}
  kanji = []
  for level in levels:
    if level not in rows:
      raise ValueError(f'levels must be 1 or 2, got {level}.')
    kanji += _decode_rows(rows[level], b'\x1b$B%b\x1b(B', 'iso2022_jp')
  return [point for point in kanji if URO_FIRST <= point <= URO_LAST]


def ks_hangul() -> list[int]:
  """Returns the 2 350 Hangul syllables of KS X 1001 in code point order."""
  points = []
  for row in range(0xB0, 0xC9):
    for column in range(0xA1, 0xFF):
      text = bytes((row, column)).decode('euc_kr', errors='ignore')
      points += [ord(text)] if len(text) == 1 else []
  return points


def unified_ideographs() -> list[int]:
  """Returns the 20 902 ideographs of the URO in code point order."""
  return list(range(URO_FIRST, URO_LAST + 1))


def _decode_rows(rows: range, pattern: bytes, codec: str) -> list[int]:
  points = []
  for row in rows:
    for column in range(0x21, 0x7F):
      text = (pattern % bytes((row, column))).decode(codec, errors='ignore')
      points += [ord(text)] if len(text) == 1 else []
  return points
