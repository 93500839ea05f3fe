import importlib.resources

from tff_dpemb.data.sources.glyphs import faces as glyph_faces
from tff_dpemb.data.sources.glyphs import licences


def test_the_licence_page_names_every_bundled_face():
  page = (
    importlib.resources.files('tff_dpemb.data.sources.glyphs')
    .joinpath(licences.FILE_NAME)
    .read_text(encoding='utf-8')
  )
  faces = [
    face
    for name in ('kanji', 'hangul')
    for face in glyph_faces.known_faces(name)
    if face.bundled
  ]
  assert page == licences.page(faces)
  for face in faces:
    row = (
      f'| {face.name} | {face.package} | {face.licence} | {face.copyright} |'
    )
    assert row in page
