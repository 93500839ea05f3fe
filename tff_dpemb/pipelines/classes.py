"""The public class set of a synthetic release.

Which classes exist must not be learned from private data: a class that only
one user has would reveal that user. A store's vocabulary may have been
collected from its users (`data.sources.folder` does so), so neither a name nor
an index of it is published. The set is declared in the run page, or chosen
here from public knowledge alone, and published labels are positions in it.
"""

import collections
import dataclasses
import logging
from collections.abc import Sequence

from tff_dpemb.clustering import errors
from tff_dpemb.data import names as data_names
from tff_dpemb.data.sources.glyphs import classes

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ClassSet:
  """Declared classes and the public rule that chose them.

  Attributes:
    names: Public name of each class; its position is the published label.
    rule: Who chose them.
    store_labels: Label of each class in the private store: RESTRICTED. A class
      that the store does not know has a label that no row has.
  """

  names: tuple[str, ...]
  rule: str
  store_labels: tuple[int, ...] = dataclasses.field(repr=False)

  @property
  def labels(self) -> tuple[int, ...]:
    """Returns the published labels, 0 to the number of classes - 1."""
    return tuple(range(len(self.names)))


def choose(
  names: Sequence[str], *, count: int, declared: Sequence[str] = ()
) -> ClassSet:
  """Returns the declared classes or, for radicals only, the default choice.

  Default for radicals: the `count` with most characters in JIS X 0208 level 1
  (a published standard). There is no rule for other names.

  A declared class that no name of the store matches is a class without users:
  it gets noise as every other one and is dropped for its noisy count. Refusing
  it would tell whether a user with that class is in the store.

  Args:
    names: Every class name of the label column of the store. PRIVATE.
    count: How many classes are wanted; `declared` overrides it.
    declared: Names of the public classes (`synthesis.class_names`).

  Raises:
    ClusteringError: No class is declared and there is no public rule, a name
      is declared twice or is empty, or the store knows none of them (then no
      set could be published anyway).
  """
  if declared:
    return _declared(names, tuple(declared))
  if tuple(names) == classes.RADICAL_NAMES:
    points = classes.jis_kanji((1,))
    sizes = collections.Counter(map(classes.radical_index, points))
    ranked = sorted(range(len(names)), key=lambda label: (-sizes[label], label))
    labels = tuple(sorted(ranked[:count]))
    return ClassSet(
      names=tuple(names[label] for label in labels),
      rule='radicals with most characters in JIS X 0208 level 1',
      store_labels=labels,
    )
  raise errors.ClusteringError(
    'synthesis.class_names must list the classes to publish: those of this'
    ' label column may have been collected from private users, and there is no'
    ' public rule to choose among them. Set it to names that are public'
    ' knowledge.'
  )


def store_labels_of(
  names: Sequence[str], declared: Sequence[str]
) -> tuple[int, ...]:
  """Returns the label of each declared class in a store's vocabulary.

  Both Unicode forms of a name are one name: a page may be written in another
  one than the store. Absent ones get labels past the vocabulary, which no row
  has.
  """
  index = {data_names.normal(name): label for label, name in enumerate(names)}
  return tuple(
    index.get(data_names.normal(name), len(names) + i)
    for i, name in enumerate(declared)
  )


def _declared(names: Sequence[str], declared: tuple[str, ...]) -> ClassSet:
  distinct = set(map(data_names.normal, declared))
  if len(distinct) != len(declared) or not all(declared):
    raise errors.ClusteringError(
      'synthesis.class_names must be distinct names that are not empty, got'
      f' {list(declared)}.'
    )
  labels = store_labels_of(names, declared)
  absent = sum(label >= len(names) for label in labels)
  if absent == len(declared):
    raise errors.ClusteringError(
      'synthesis.class_names must name classes of the label column, got none'
      f' of them in {list(declared)}; check the spelling and synthesis.label.'
    )
  if absent:
    _log.warning(
      '%d of %d synthesis.class_names are not in the private store and count'
      ' as classes without users. Correct a misspelling; but do not remove a'
      ' name because of this line: that would publish who is in the store.',
      absent,
      len(declared),
    )
  return ClassSet(
    names=declared,
    rule='declared in synthesis.class_names',
    store_labels=labels,
  )
