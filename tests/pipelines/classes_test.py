"""The class set comes from public knowledge only."""

import pytest

from tff_dpemb.clustering import errors
from tff_dpemb.data.sources import glyph_classes
from tff_dpemb.pipelines import classes


def test_radicals_with_most_characters():
  chosen = classes.choose(glyph_classes.RADICAL_NAMES, count=10)
  names = {glyph_classes.RADICAL_NAMES[label] for label in chosen.labels}
  # Every ranking of common kanji has water, hand, tree, person and mouth.
  assert len(names) == 10 and set('水手木人口') <= names
  assert 'JIS X 0208' in chosen.rule


def test_few_declared_classes_are_all_taken():
  assert classes.choose(['a', 'b', 'c'], count=5).labels == (0, 1, 2)


def test_caller_declares():
  chosen = classes.choose(['a', 'b', 'c'], count=5, declared=[2, 0])
  assert chosen.labels == (2, 0)
  assert chosen.rule == 'declared by the caller'


def test_no_public_rule_is_refused():
  with pytest.raises(errors.ClusteringError, match='no public rule'):
    classes.choose(['a', 'b', 'c'], count=2)


@pytest.mark.parametrize('declared', [[], [3], [-1]])
def test_unknown_classes_are_refused(declared):
  with pytest.raises(errors.ClusteringError, match=r'must be in \[0, 3\)'):
    classes.choose(['a', 'b', 'c'], count=2, declared=declared)
