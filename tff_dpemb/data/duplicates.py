"""Pictures that are in two splits: figures on held-out users would flatter.

Two kinds are found, in one pass over a data set and time linear in its images.

- *Exact*: the pixels, decoded and at the store's size, are the same (64 bits of
  BLAKE2b: among a million images two others agree with probability 3e-8).
- *Near*: the difference hashes (dHash; N. Krawetz, "Kind of Like That", 2013)
  differ in at most 3 of 64 bits. The hash is of the grey picture in 8 x 9 cells
  and tells in which direction brightness changes, so it stands another file
  format, another size, moderate noise and another brightness. It does not
  stand a crop, a turn or a mirror; and two simple drawings may share a hash:
  near is a hint to look, not a verdict.

Hashes at a distance of at most 3 agree in one of their four 16-bit parts
(pigeonhole). Each part is sorted, and each hash compared with the next 64 that
agree in it: where more than that agree, as in a data set of near-identical
pictures, some near pairs are missed; exact ones never are. Pictures with hardly
any contrast have no hash.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping

import numpy as np

from tff_dpemb.data import data_sets
from tff_dpemb.data import user_store

MOST_DIFFERENT_BITS = 3

_BATCH = 1024  # images hashed at once
_ROWS, _COLUMNS = 8, 9  # cells of the difference hash
_BITS = 64
_BANDS = MOST_DIFFERENT_BITS + 1
_WINDOW = 64  # followers that a hash is compared with, in each band
# A cell counts as a step when brightness changes by so many of 255 grey levels;
# a picture with fewer steps has no hash: noise would decide its bits.
_STEP = 2.0
_FEWEST_STEPS = 16
_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601


class OverlapError(data_sets.DataError):
  """Splits share pictures, and were asked not to."""

  exit_code = 5  # a gate failed


@dataclasses.dataclass(frozen=True)
class Overlap:
  """What two splits share.

  Attributes:
    split: The split whose images were counted.
    other: The split that has them too.
    exact: Number of images of `split` that are in `other`.
    near: Number of further ones that resemble an image of `other`.
    examples: Up to three pairs of `user/position` in `split` and in `other`,
      exact ones first. PRIVATE, for the owner of the images.
  """

  split: str
  other: str
  exact: int
  near: int
  examples: tuple[tuple[str, str], ...]


def find_overlaps(
  stores: Mapping[str, user_store.UserStore],
) -> list[Overlap]:
  """Returns what each two splits share; nothing for those that share nothing.

  Args:
    stores: By split. Of each two, images of the later one are counted.
  """
  tables = [_read(store) for store in stores.values()]
  # Images of all splits, one after the other.
  digests, hashes, has_hash = (
    np.concatenate([table[column] for table in tables]) for column in range(3)
  )
  sizes = [len(table[0]) for table in tables]
  bounds = np.cumsum([0, *sizes])
  split_of = np.repeat(np.arange(len(sizes)), sizes)
  exact = _partners(digests, split_of, len(sizes), pairs=False)
  near = np.full_like(exact, -1)
  near[has_hash] = _partners(
    hashes[has_hash], split_of[has_hash], len(sizes), pairs=True
  )
  rows_with_hash = np.append(np.flatnonzero(has_hash), -1)
  near = rows_with_hash[near]  # Positions among all images; -1 stays -1.
  found = []
  named = list(stores)
  for other, split in itertools.combinations(range(len(named)), 2):
    rows = np.arange(bounds[split], bounds[split + 1])
    same = rows[exact[rows, other] >= 0]
    alike = rows[(exact[rows, other] < 0) & (near[rows, other] >= 0)]
    if not len(same) and not len(alike):
      continue
    pairs = [(row, exact[row, other]) for row in same[:3]]
    pairs += [(row, near[row, other]) for row in alike[:3]]
    found.append(
      Overlap(
        split=named[split],
        other=named[other],
        exact=len(same),
        near=len(alike),
        examples=tuple(
          (
            _example_id(stores[named[split]], int(one - bounds[split])),
            _example_id(stores[named[other]], int(two - bounds[other])),
          )
          for one, two in pairs[:3]
        ),
      )
    )
  return found


def difference_hashes(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the difference hash of each image, and whether it has one.

  Args:
    images: uint8 [n, height, width, 1 or 3].

  Returns:
    uint64 [n]: bit k, from the highest one, is whether cell k % 8 of row k // 8
    is darker than the cell right of it. bool [n]: enough cells differ.
  """
  grey = images.astype(np.float32)
  grey = grey @ _GREY if images.shape[3] == 3 else grey[..., 0]
  rows = _averaging(images.shape[1], _ROWS)
  columns = _averaging(images.shape[2], _COLUMNS)
  steps = np.diff(rows @ grey @ columns.T, axis=2).reshape(-1, _BITS)
  bits = np.packbits(steps > 0, axis=1).view('>u8').astype(np.uint64)
  has_hash = np.sum(np.abs(steps) >= _STEP, axis=1) >= _FEWEST_STEPS
  return bits.reshape(-1), has_hash


def _read(
  store: user_store.UserStore,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns uint64 digests, uint64 hashes and bool has_hash of all images."""
  parts = []
  for images in _batches(store):
    digests = np.array([_digest(image) for image in images], np.uint64)
    parts.append((digests, *difference_hashes(images)))
  digests, hashes, has_hash = map(np.concatenate, zip(*parts, strict=True))
  return digests, hashes, has_hash


def _batches(store: user_store.UserStore) -> Iterator[np.ndarray]:
  """Yields the images user after user, in the order of `example_ids`."""
  pending: list[np.ndarray] = []
  threads = len(os.sched_getaffinity(0))
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for user in range(store.num_users):
      pending.append(store.read_user(user, apply=pool.map).images)
      if sum(map(len, pending)) >= _BATCH:
        yield np.concatenate(pending)
        pending = []
  if pending:
    yield np.concatenate(pending)


def _digest(image: np.ndarray) -> int:
  digest = hashlib.blake2b(image.tobytes(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def _averaging(size: int, cells: int) -> np.ndarray:
  """Returns float32 [cells, size]: each row averages the pixels of a cell."""
  edges = np.linspace(0, size, cells + 1)
  pixels = np.arange(size)
  upper = np.minimum(edges[1:, None], pixels + 1)
  lower = np.maximum(edges[:-1, None], pixels)
  weights = np.maximum(upper - lower, 0)
  return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _partners(
  keys: np.ndarray, split_of: np.ndarray, splits: int, *, pairs: bool
) -> np.ndarray:
  """Returns for each image one of each split with its key, or a near one.

  Args:
    keys: uint64 [n].
    split_of: int [n].
    splits: Number of splits.
    pairs: Whether keys that differ in a few bits count, too.

  Returns:
    int64 [n, splits]: positions of images, -1 where there is none.
  """
  distinct, key_of = np.unique(keys, return_inverse=True)
  # An image of each split with each distinct key.
  holder = np.full((len(distinct), splits), -1)
  holder[key_of[::-1], split_of[::-1]] = np.arange(len(keys))[::-1]
  partner = holder.copy()
  for one, two in _near_pairs(distinct) if pairs else ():
    for left, right in ((one, two), (two, one)):
      for split in range(splits):
        new = (partner[left, split] < 0) & (holder[right, split] >= 0)
        partner[left[new], split] = holder[right[new], split]
  return partner[key_of]


def _near_pairs(
  hashes: np.ndarray,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields positions (i, j) of distinct hashes that are near, array by array.

  Args:
    hashes: uint64 [n], distinct.
  """
  width = _BITS // _BANDS
  for band in range(_BANDS):
    turned = hashes << np.uint64(band * width)
    if band:
      turned |= hashes >> np.uint64(_BITS - band * width)
    order = np.argsort(turned)
    turned = turned[order]
    for step in range(1, min(_WINDOW, len(order) - 1) + 1):
      different = turned[:-step] ^ turned[step:]
      agrees = different >> np.uint64(_BITS - width) == 0
      if not agrees.any():
        break  # Those further apart in the order agree even less.
      bits = np.unpackbits(different[agrees, None].view(np.uint8), axis=1)
      near = np.flatnonzero(agrees)[bits.sum(axis=1) <= MOST_DIFFERENT_BITS]
      yield order[near], order[near + step]


def _example_id(store: user_store.UserStore, row: int) -> str:
  """Returns `user/position` of an image in the order of `example_ids`."""
  ends = np.cumsum(store.examples_per_user)
  user = int(np.searchsorted(ends, row, side='right'))
  first = int(ends[user - 1]) if user else 0
  return f'{store.user_id(user)}/{row - first}'
