"""The class set comes from public knowledge only."""

import logging

import pytest

from tff_dpemb.clustering import errors
from tff_dpemb.data.sources.glyphs import classes as glyph_classes
from tff_dpemb.pipelines import classes


def test_radicals_with_most_characters():
  chosen = classes.choose(glyph_classes.RADICAL_NAMES, count=10)
  # Every ranking of common kanji has water, hand, tree, person and mouth.
  assert len(chosen.names) == 10 and set('水手木人口') <= set(chosen.names)
  assert chosen.labels == tuple(range(10))
  assert chosen.names == tuple(
    glyph_classes.RADICAL_NAMES[label] for label in chosen.store_labels
  )
  assert 'JIS X 0208' in chosen.rule


def test_declared_names_in_their_order():
  chosen = classes.choose(['a', 'b', 'c'], count=5, declared=['c', 'a'])
  assert chosen.names == ('c', 'a')
  assert chosen.labels == (0, 1)
  assert chosen.store_labels == (2, 0)
  assert 'synthesis.class_names' in chosen.rule


@pytest.mark.parametrize('in_store', ['caf\u00e9', 'cafe\u0301'])
@pytest.mark.parametrize('in_page', ['caf\u00e9', 'cafe\u0301'])
def test_both_unicode_forms_are_one_class(in_store, in_page):
  chosen = classes.choose(['a', in_store], count=5, declared=[in_page, 'x'])
  assert chosen.store_labels[0] == 1
  with pytest.raises(errors.ClusteringError, match='must be distinct'):
    classes.choose(['a'], count=5, declared=['a', 'caf\u00e9', 'cafe\u0301'])


def test_declared_names_go_before_the_rule_for_radicals():
  chosen = classes.choose(
    glyph_classes.RADICAL_NAMES, count=10, declared=['木', '水']
  )
  assert chosen.names == ('木', '水')


def test_what_is_published_does_not_depend_on_the_vocabulary():
  declared = ['b', 'rare']
  found = [
    classes.choose(names, count=5, declared=declared)
    for names in (['b', 'c'], ['b', 'c', 'rare'], ['a', 'b', 'c', 'rare'])
  ]
  assert len({(item.names, item.labels, item.rule) for item in found}) == 1


def test_absent_name_is_a_class_without_users(caplog):
  with caplog.at_level(logging.WARNING):
    chosen = classes.choose(['a', 'b'], count=5, declared=['x', 'b', 'y'])
  assert chosen.names == ('x', 'b', 'y')
  assert chosen.store_labels[1] == 1
  others = {chosen.store_labels[0], chosen.store_labels[2]}
  assert len(others) == 2 and min(others) >= 2  # No row has them.
  assert '2 of 3 synthesis.class_names' in caplog.text
  assert 'do not remove' in caplog.text


@pytest.mark.parametrize('names', [['a', 'b', 'c'], ['all'], []])
def test_no_public_rule_is_refused(names):
  with pytest.raises(
    errors.ClusteringError, match='synthesis.class_names must list'
  ) as error:
    classes.choose(names, count=5)
  assert str(len(names)) not in str(error.value)


@pytest.mark.parametrize(
  'declared, message',
  [
    (['x', 'y'], 'synthesis.class_names must name .* check the spelling'),
    (['a', 'a'], 'synthesis.class_names must be distinct'),
    (['a', ''], 'synthesis.class_names must be distinct'),
  ],
)
def test_wrong_names_are_refused(declared, message):
  with pytest.raises(errors.ClusteringError, match=message) as error:
    classes.choose(['a', 'secret'], count=2, declared=declared)
  assert 'secret' not in str(error.value)
