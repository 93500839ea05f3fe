import io

import numpy as np
import pytest
from PIL import Image

from tff_dpemb.data import duplicates
from tff_dpemb.data import user_store

_SHAPE = (48, 48, 3)


def _photos(count, seed):
  """Smooth random pictures, uint8 [count, 48, 48, 3]."""
  rng = np.random.default_rng(seed)
  coarse = rng.integers(0, 256, (count, 6, 6, 3), np.uint8)
  return np.stack(
    [
      np.asarray(Image.fromarray(item).resize((48, 48), Image.BICUBIC))
      for item in coarse
    ]
  )


def _jpeg(image, quality):
  buffer = io.BytesIO()
  Image.fromarray(image).save(buffer, 'JPEG', quality=quality)
  return buffer.getvalue()


def _store(path, images_of, encoding='raw'):
  with user_store.StoreWriter(
    path,
    name=path.name,
    image_shape=_SHAPE,
    label_names={'identity': ['a']},
    encoding=encoding,
  ) as writer:
    for user, images in images_of.items():
      writer.add_user(user, images, {'identity': 0})
  return user_store.UserStore.open(path)


def _changed(image, kind):
  """Returns the picture as it may come back under another name."""
  pixels = image.astype(float)
  match kind:
    case 'jpeg':
      return np.asarray(Image.open(io.BytesIO(_jpeg(image, 60))))
    case 'resized':
      small = Image.fromarray(image).resize((30, 30), Image.LANCZOS)
      return np.asarray(small.resize((48, 48), Image.LANCZOS))
    case 'brighter':
      return (pixels * 0.8 + 30).astype(np.uint8)
    case 'noisy':
      noise = np.random.default_rng(0).normal(0, 5, image.shape)
      return np.clip(pixels + noise, 0, 255).astype(np.uint8)
  raise AssertionError(kind)


class TestDifferenceHashes:
  def test_by_hand(self):
    """Eight rows of nine grey cells; brighter to the right sets a bit."""
    rising = np.arange(9) * 20
    image = np.stack([rising] * 4 + [rising[::-1]] * 4).astype(np.uint8)
    hashes, has_hash = duplicates.difference_hashes(image[None, :, :, None])
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [0xFFFF_FFFF_0000_0000]
    assert has_hash.tolist() == [True]
    image[0, 0] = 255  # Only the first step changes.
    hashes, _ = duplicates.difference_hashes(image[None, :, :, None])
    assert hashes.tolist() == [0x7FFF_FFFF_0000_0000]

  @pytest.mark.parametrize('size', [1, 5, 9, 28, 100])
  def test_any_size(self, size):
    ramp = np.linspace(0, 255, size).astype(np.uint8)
    image = np.broadcast_to(ramp[None, None, :, None], (1, size, size, 1))
    hashes, has_hash = duplicates.difference_hashes(image)
    if size >= 9:
      assert hashes.tolist() == [2**64 - 1]
    assert has_hash.tolist() == [size > 1]

  def test_colour_is_seen_as_its_grey(self):
    image = _photos(1, 0)
    grey = np.asarray(Image.fromarray(image[0]).convert('L'))[None, :, :, None]
    one, _ = duplicates.difference_hashes(image)
    two, _ = duplicates.difference_hashes(grey)
    assert bin(int(one[0] ^ two[0])).count('1') <= 1

  def test_a_flat_picture_has_none(self):
    flat = np.full((2, *_SHAPE), 128, np.uint8)
    flat[1] += np.random.default_rng(0).integers(0, 3, _SHAPE, np.uint8)
    assert duplicates.difference_hashes(flat)[1].tolist() == [False, False]


class TestFindOverlaps:
  @pytest.fixture
  def stores(self, tmp_path):
    """Ten users of three pictures each in every split; none is shared."""

    def build(encoding='raw', **more):
      stores = {}
      for seed, split in enumerate(('public', 'private', 'test')):
        pictures = _photos(30, seed).reshape(10, 3, *_SHAPE)
        users = {f'{split}{i}': list(pictures[i]) for i in range(10)}
        for user, images in more.get(split, {}).items():
          users.setdefault(user, []).extend(images)
        if encoding == 'raw':
          users = {user: np.stack(images) for user, images in users.items()}
        else:
          users = {
            user: [
              item if isinstance(item, bytes) else _jpeg(item, 95)
              for item in images
            ]
            for user, images in users.items()
          }
        path = tmp_path / f'{encoding}-{len(stores)}-{len(more)}'
        stores[split] = _store(path, users, encoding)
      return stores

    return build

  def test_nothing_shared(self, stores):
    assert duplicates.find_overlaps(stores()) == []

  def test_exact(self, stores):
    picture = _photos(30, 1)[4]  # of private1, its second
    found = duplicates.find_overlaps(
      stores(test={'test0': [picture], 'zoe': [picture, picture]})
    )
    (overlap,) = found
    assert overlap == duplicates.Overlap(
      split='test',
      other='private',
      exact=3,
      near=0,
      examples=(
        ('test0/3', 'private1/1'),
        ('zoe/0', 'private1/1'),
        ('zoe/1', 'private1/1'),
      ),
    )

  @pytest.mark.parametrize('kind', ['jpeg', 'resized', 'brighter', 'noisy'])
  def test_near(self, stores, kind):
    pictures = [_changed(picture, kind) for picture in _photos(30, 0)]
    found = duplicates.find_overlaps(stores(private={'zoe': pictures}))
    (overlap,) = found
    assert (overlap.split, overlap.other) == ('private', 'public')
    assert overlap.exact == 0
    assert overlap.near >= 24  # of 30; and no other pair of splits
    for number, (one, two) in enumerate(overlap.examples):
      assert one.startswith('zoe/')
      position = int(one.removeprefix('zoe/'))
      assert two == f'public{position // 3}/{position % 3}', number

  def test_files_are_compared_as_they_are_read(self, stores):
    picture = _photos(30, 0)[0]
    same = _jpeg(picture, 95)
    found = duplicates.find_overlaps(
      stores(
        'encoded',
        test={'zoe': [same + b'another tail', _jpeg(picture, 60)]},
      )
    )
    (overlap,) = found
    assert (overlap.split, overlap.other) == ('test', 'public')
    assert (overlap.exact, overlap.near) == (1, 1)
    assert overlap.examples == (('zoe/0', 'public0/0'), ('zoe/1', 'public0/0'))

  def test_flat_pictures_are_exact_or_nothing(self, stores):
    flat = [np.full(_SHAPE, value, np.uint8) for value in range(100, 104)]
    found = duplicates.find_overlaps(
      stores(private={'p': flat[:2]}, test={'t': flat[1:]})
    )
    (overlap,) = found
    assert (overlap.exact, overlap.near) == (1, 0)

  def test_without_any_hash(self, tmp_path):
    flat = np.zeros((1, *_SHAPE), np.uint8)
    stores = {
      split: _store(tmp_path / split, {split: flat + i})
      for i, split in enumerate(('private', 'test'))
    }
    assert duplicates.find_overlaps(stores) == []


def test_near_pairs_are_all_found():
  """Against every pair: 300 random hashes, each with near and far ones."""
  rng = np.random.default_rng(0)
  hashes = set()
  for _ in range(300):
    base = int(rng.integers(0, 2**63)) * 2
    for flips in range(7):
      bits = rng.choice(64, flips, replace=False)
      hashes.add(base ^ sum(1 << int(bit) for bit in bits))
  keys = np.array(sorted(hashes), np.uint64)
  different = keys[:, None] ^ keys[None, :]
  distances = np.unpackbits(
    np.ascontiguousarray(different)[..., None].view(np.uint8), axis=2
  ).sum(axis=2)
  limit = duplicates.MOST_DIFFERENT_BITS
  ones, twos = np.nonzero(np.triu(distances <= limit, 1))
  expected = set(zip(ones.tolist(), twos.tolist(), strict=True))
  assert len(expected) > 900
  found = set()
  for left, right in duplicates._near_pairs(keys):
    for one, two in zip(left.tolist(), right.tolist(), strict=True):
      found.add((min(one, two), max(one, two)))
  assert found == expected
