import numpy as np
import pytest

from tff_dpemb import config
from tff_dpemb.artifacts import storage
from tff_dpemb.data import data_sets
from tff_dpemb.data.sources.glyphs import bundle
from tff_dpemb.data.sources.glyphs import classes
from tff_dpemb.data.sources.glyphs import faces
from tff_dpemb.data.sources.glyphs import source

_SMALL = config.DataConfig(
  images_per_identity=2, validation_identities=100, test_identities=300
)


@pytest.fixture(scope='module')
def stores(tmp_path_factory):
  path = tmp_path_factory.mktemp('glyphs') / 'set'
  assert source.build_glyphs(path, config=_SMALL) == path
  return data_sets.open_stores(path)


class TestBundledGlyphs:
  def test_users_of_each_split(self, stores):
    assert {split: store.num_users for split, store in stores.items()} == {
      'public': 1000,
      'private': 2600,
      'validation': 100,
      'test': 300,
    }
    for store in stores.values():
      assert store.image_shape == (28, 28, 1)
      assert set(store.examples_per_user) == {2}
      assert 'LICENCES' in store.manifest.licence

  def test_whole_and_disjoint(self, stores):
    directory = stores['test'].path.parent
    assert sum(data_sets.verify(directory).values()) == 4000
    every = [
      store.user_id(i)
      for store in stores.values()
      for i in range(store.num_users)
    ]
    assert len(set(every)) == 4000

  def test_labels_are_those_of_the_character(self, stores):
    for split, store in stores.items():
      names = (
        classes.CONSONANT_NAMES if split == 'public' else classes.RADICAL_NAMES
      )
      for user in range(0, store.num_users, 37):
        point = int(store.user_id(user).removeprefix('U+'), 16)
        labels = store.read_user(user).labels
        (identity,) = set(labels['identity'].tolist())
        (category,) = set(labels['category'].tolist())
        assert store.class_name('identity', identity) == chr(point)
        assert (
          store.class_name('category', category)
          == (names[classes.category_index(point)])
        )

  def test_many_users_share_a_category(self, stores):
    _, labels, _ = stores['private'].read_all(max_examples=1)
    counts = np.sort(np.bincount(labels['category']))[::-1]
    assert counts[9] >= 40  # Ten classes with at least forty users each.

  def test_pictures_show_the_character(self, stores):
    """A picture is nearest to its own clean glyphs among 40 characters.

    Shrunk to 7 x 7 and centred this is crude; chance is 1/40.
    """
    store = stores['private']
    clean = bundle.load()['kanji']
    rows = {int(p): i for i, p in enumerate(clean.code_points)}
    users = range(0, store.num_users, store.num_users // 40)
    templates, pictures = [], []
    for user in users:
      point = int(store.user_id(user).removeprefix('U+'), 16)
      glyph = clean.pixels(rows[point], rows[point] + 1)[0].mean(axis=0)
      framed = np.pad(glyph, 8).reshape(28, 2, 28, 2).mean(axis=(1, 3))
      templates.append(framed)
      pictures.append(store.read_user(user).images[:, :, :, 0])

    def feature(images):
      small = np.asarray(images, float).reshape(-1, 7, 4, 7, 4).mean((2, 4))
      flat = small.reshape(len(small), -1)
      flat = flat - flat.mean(axis=1, keepdims=True)
      return flat / np.linalg.norm(flat, axis=1, keepdims=True)

    nearest = feature(np.concatenate(pictures)) @ feature(templates).T
    right = nearest.argmax(axis=1) == np.repeat(np.arange(len(templates)), 2)
    assert right.mean() > 0.3

  def test_the_seed_decides(self, stores, tmp_path):
    again = source.build_glyphs(tmp_path / 'again', config=_SMALL)
    for split, store in data_sets.open_stores(again).items():
      assert store.digest == stores[split].digest
    other = _SMALL.model_copy(update={'nuisance_seed': 1})
    path = source.build_glyphs(tmp_path / 'other', config=other)
    changed = data_sets.open_stores(path)['private']
    assert changed.user_id(5) == stores['private'].user_id(5)
    assert not np.array_equal(
      changed.read_user(5).images, stores['private'].read_user(5).images
    )


class TestRefusals:
  def test_too_many_held_out(self, tmp_path):
    settings = config.DataConfig(validation_identities=1, test_identities=2999)
    with pytest.raises(data_sets.DataError, match='of 3000, got 1 \\+ 2999'):
      source.build_glyphs(tmp_path / 'set', config=settings)
    assert not any(tmp_path.iterdir())

  def test_an_existing_directory_is_kept(self, tmp_path):
    (tmp_path / 'set').mkdir()
    (tmp_path / 'set' / 'mine').write_text('keep')
    with pytest.raises(storage.ArtifactError, match='remove it first'):
      source.build_glyphs(tmp_path / 'set', config=_SMALL)
    assert (tmp_path / 'set' / 'mine').read_text() == 'keep'

  def test_fonts_that_are_not_there(self, tmp_path):
    (tmp_path / 'fonts').mkdir()
    with pytest.raises(faces.FaceError, match='apt install .*fonts-'):
      source.render_glyphs(
        tmp_path / 'set', config=_SMALL, directories=[tmp_path / 'fonts']
      )
    assert [item.name for item in tmp_path.iterdir()] == ['fonts']

  @pytest.mark.parametrize(
    ('options', 'message'),
    [
      ({'character_set': 'latin'}, "one of .*got 'latin'"),
      ({'identities': 0}, r'in \[1, 6355\].*got 0'),
      ({'identities': 6356}, 'got 6356'),
      ({'identities': 400}, r'of 400, got 100 \+ 300'),
    ],
  )
  def test_wrong_sets(self, tmp_path, options, message):
    with pytest.raises(data_sets.DataError, match=message):
      source.render_glyphs(tmp_path / 'set', config=_SMALL, **options)
