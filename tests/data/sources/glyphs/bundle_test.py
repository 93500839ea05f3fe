import lzma

import numpy as np
import pytest
from scipy import ndimage

from tff_dpemb.data.sources.glyphs import bundle
from tff_dpemb.data.sources.glyphs import bundle_build
from tff_dpemb.data.sources.glyphs import faces as glyph_faces


@pytest.fixture(scope='module')
def sets():
  return bundle.load()


def _made(seed=0):
  rng = np.random.default_rng(seed)
  pixels = rng.random((5, 3, 16, 16)) < 0.3
  return pixels, bundle.GlyphSet(
    code_points=np.array([0x4E00, 0x4E01, 0x5000, 0x9000, 0xAC00]),
    face_names=('one', 'zwei', '三'),
    faces=rng.integers(0, 3, (5, 3)).astype(np.uint8),
    strips=bundle.pack(pixels),
  )


class TestFormat:
  def test_round_trip(self):
    pixels, first = _made(0)
    _, second = _made(1)
    read = bundle.decode(bundle.encode({'kanji': first, 'hangul': second}))
    assert list(read) == ['kanji', 'hangul']
    np.testing.assert_array_equal(read['kanji'].pixels(0, 5), pixels)
    np.testing.assert_array_equal(read['kanji'].pixels(2, 4), pixels[2:4])
    for name, made in (('kanji', first), ('hangul', second)):
      assert read[name].face_names == made.face_names
      np.testing.assert_array_equal(read[name].code_points, made.code_points)
      np.testing.assert_array_equal(read[name].faces, made.faces)
      np.testing.assert_array_equal(read[name].strips, made.strips)

  @pytest.mark.parametrize(
    'damage',
    [
      lambda data: data[: len(data) // 2],
      lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
      lambda data: b'',
      lambda data: lzma.compress(b'{"format": "other"}\n'),
      lambda data: lzma.compress(lzma.decompress(data) + b'more'),
      lambda data: lzma.compress(lzma.decompress(data)[:-1]),
    ],
  )
  def test_damage(self, damage):
    data = bundle.encode({'kanji': _made()[1]})
    with pytest.raises(bundle.BundleError, match='damaged'):
      bundle.decode(damage(data))

  def test_missing(self, tmp_path):
    with pytest.raises(bundle.BundleError, match='No such file'):
      bundle.load(tmp_path / 'nothing.xz')


class TestCommittedBundle:
  def test_size(self):
    file = bundle_build.__file__.replace('bundle_build.py', bundle.FILE_NAME)
    with open(file, 'rb') as opened:
      assert len(opened.read()) <= 3_000_000

  def test_characters(self, sets):
    assert sets['kanji'].strips.shape == (3000, 12, 5, 40)
    assert sets['hangul'].strips.shape == (1000, 12, 5, 40)
    kanji = sets['kanji'].code_points
    assert kanji.tolist() == bundle_build.kanji_of_bundle()
    hangul = sets['hangul'].code_points
    assert hangul.tolist() == bundle_build.hangul_of_bundle()

  def test_twelve_different_faces_an_identity(self, sets):
    for glyphs in sets.values():
      ordered = np.sort(glyphs.faces, axis=1)
      assert (np.diff(ordered, axis=1) > 0).all()
      assert ordered.max() < len(glyphs.face_names)

  def test_faces_are_the_licensed_ones(self, sets):
    for name, glyphs in sets.items():
      licensed = [
        face.name for face in glyph_faces.known_faces(name) if face.bundled
      ]
      assert list(glyphs.face_names) == licensed

  def test_nothing_is_blank_and_no_face_draws_one_picture_twice(self, sets):
    for glyphs in sets.values():
      flat = glyphs.strips.reshape(*glyphs.faces.shape, -1)
      ink = np.unpackbits(flat, axis=-1).sum(axis=-1)
      assert ink.min() >= 20  # 一 of the thinnest face
      assert ink.max() < 1200  # of 1 600: nothing is a block
      drawn = {
        (int(face), strip.tobytes())
        for face, strip in zip(
          glyphs.faces.ravel(), flat.reshape(-1, flat.shape[-1]), strict=True
        )
      }
      assert len(drawn) == glyphs.faces.size

  def test_faces_draw_the_characters_they_should(self, sets):
    """Blurred, a kanji is nearest to its own character in the other faces.

    Of 300 characters; a face with a wrong cmap would score 1/300. The real
    ones score 0.81 (Reggae One, a display face) to 1.
    """
    glyphs = sets['kanji']
    rows = np.random.default_rng(0).choice(3000, 300, replace=False)
    size = glyphs.strips.shape[3]
    pictures = np.stack(
      [
        ndimage.gaussian_filter(
          glyphs.pixels(row, row + 1)[0].astype(np.float32), (0, 2.5, 2.5)
        )[:, ::2, ::2]
        for row in rows
      ]
    ).reshape(len(rows), 12, size**2 // 4)
    pictures -= pictures.mean(axis=-1, keepdims=True)
    pictures /= np.linalg.norm(pictures, axis=-1, keepdims=True)
    total = pictures.sum(axis=1)
    others = total[:, None] - pictures
    own = (pictures * others).sum(-1) / np.linalg.norm(others, axis=-1)
    centres = total / np.linalg.norm(total, axis=-1, keepdims=True)
    alike = np.einsum('nkd,md->nkm', pictures, centres)
    alike[np.arange(300), :, np.arange(300)] = -1
    right = own > alike.max(axis=-1)
    faces = glyphs.faces[rows]
    for face, name in enumerate(glyphs.face_names):
      assert right[faces == face].mean() > 0.7, name
