import collections

import pytest

from tff_dpemb.data.sources.glyphs import faces as glyph_faces

_FREE = ('OFL', 'Apache', 'IPA', 'MIT', 'BSD', 'Baekmuk', 'Hanazono', 'Ume')


class TestKnownFaces:
  def test_enough_of_each_set(self):
    counts = collections.Counter(
      face.character_set for face in glyph_faces.known_faces()
    )
    assert counts == {'kanji': 40, 'hangul': 52, 'unified': 26}

  def test_names_and_files_are_distinct_in_a_set(self):
    for name in ('kanji', 'hangul', 'unified'):
      faces = glyph_faces.known_faces(name)
      assert len({face.name for face in faces}) == len(faces)
      assert len({(face.file, face.index) for face in faces}) == len(faces)

  def test_only_free_licences_are_bundled(self):
    bundled = [face for face in glyph_faces.known_faces() if face.bundled]
    assert len(bundled) >= 50
    for face in bundled:
      assert face.licence.startswith(_FREE), face
      assert face.copyright


class TestInstalledFaces:
  def test_found_by_file_name(self, fonts, tmp_path):
    made = fonts.make('ume-hgo4', {'一': [(0, 0, 500, 500)]})
    found = glyph_faces.installed_faces(
      glyph_faces.known_faces('kanji'), directories=[tmp_path]
    )
    assert [item.face.name for item in found] == ['Ume Hy Gothic']
    assert found[0].path == made.path

  def test_too_few_names_the_packages(self, fonts, tmp_path):
    fonts.make('ume-hgo4', {'一': [(0, 0, 500, 500)]})
    with pytest.raises(
      glyph_faces.FaceError, match='found 1; install.*fonts-konatu.*--bundled'
    ):
      glyph_faces.require_faces('kanji', 2, directories=[tmp_path])

  def test_more_than_are_known(self, tmp_path):
    with pytest.raises(glyph_faces.FaceError, match='at most 40.*got 41'):
      glyph_faces.require_faces('kanji', 41, directories=[tmp_path])

  def test_missing_directory(self, tmp_path):
    with pytest.raises(glyph_faces.FaceError, match='--fonts.*nothing'):
      glyph_faces.require_faces('kanji', 1, directories=[tmp_path / 'nothing'])
