"""The public class set of a synthetic release.

Which classes exist must not be learned from private data: a label that only
one user has would reveal that user. The set is declared by the caller, or
chosen here from public knowledge alone.
"""

import collections
import dataclasses
from collections.abc import Sequence

from tff_dpemb.clustering import errors
from tff_dpemb.data.sources import glyph_classes


@dataclasses.dataclass(frozen=True)
class ClassSet:
  """Declared classes and the public rule that chose them."""

  labels: tuple[int, ...]
  rule: str


def choose(
  names: Sequence[str], *, count: int, declared: Sequence[int] | None = None
) -> ClassSet:
  """Returns the declared classes, or the default choice.

  Default: for radicals, the `count` radicals with most characters in JIS X
  0208 level 1 (a published standard); for a label column with at most `count`
  names, all of them.

  Args:
    names: Every class name of the label column, from the store's manifest
      (the vocabulary that the owner declared, not what users own).
    count: How many classes are wanted.
    declared: The caller's choice; returned as it is.

  Raises:
    ClusteringError: A declared class is not in `names`, or there is no public
      rule for these names.
  """
  if declared is not None:
    labels = tuple(int(label) for label in declared)
    if not labels or not all(0 <= label < len(names) for label in labels):
      raise errors.ClusteringError(
        f'classes must be in [0, {len(names)}), at least one, got'
        f' {list(labels)}.'
      )
    return ClassSet(labels, 'declared by the caller')
  if tuple(names) == glyph_classes.RADICAL_NAMES:
    points = glyph_classes.jis_kanji((1,))
    sizes = collections.Counter(map(glyph_classes.radical_index, points))
    ranked = sorted(range(len(names)), key=lambda label: (-sizes[label], label))
    return ClassSet(
      tuple(sorted(ranked[:count])),
      'radicals with most characters in JIS X 0208 level 1',
    )
  if len(names) <= count:
    return ClassSet(
      tuple(range(len(names))), 'every class that the data set declares'
    )
  raise errors.ClusteringError(
    f'classes must be declared: the label column has {len(names)} classes,'
    f' more than synthesis.classes = {count}, and there is no public rule to'
    f' choose among them; pass the list, or set synthesis.classes ='
    f' {len(names)}.'
  )
